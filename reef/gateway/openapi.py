"""The OpenAPI page: FastAPI's own, the inference routes, which FastAPI does not know because it does not serve them, and what all share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reef.gateway import openapi_access, openapi_links
from reef.gateway.correlation import RELEASE

_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message", "hint"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}, "hint": {"type": "string"}},
        }
    },
}
_INFERENCE_ERROR: dict[str, Any] = {
    "description": "Reef's own error, with a hint; or the provider's, passed on as it is.",
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"anyOf": [_ERROR["properties"]["error"], {"type": "object"}, {"type": "string"}]}},
}
_MESSAGE: dict[str, Any] = {
    "type": "object",
    "required": ["role"],
    "properties": {"role": {"type": "string"}, "content": {}, "tool_calls": {"type": "array", "items": {"type": "object"}}},
    "additionalProperties": True,
}
_SCHEMAS: dict[str, Any] = {
    "Error": _ERROR,
    "InferenceError": _INFERENCE_ERROR,
    "ChatCompletionRequest": {
        "description": "The provider's own body; it is passed on as it is.",
        "type": "object",
        "properties": {
            "model": {"type": "string", "description": "`reef`, `default` or nothing asks for the configured model."},
            "messages": {"type": "array", "items": _MESSAGE},
            "stream": {"type": "boolean"},
        },
        "additionalProperties": True,
    },
    "ResponsesRequest": {
        "description": "The provider's own body; it is passed on as it is.",
        "type": "object",
        "properties": {
            "model": {"type": "string", "description": "`reef`, `default` or nothing asks for the configured model."},
            "input": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
            "stream": {"type": "boolean"},
        },
        "additionalProperties": True,
    },
    "ResponsesAnswer": {
        "description": "The provider's own answer; it is passed on as it is.",
        "type": "object",
        "properties": {"id": {"type": "string"}, "output": {"type": "array", "items": {"type": "object"}}, "usage": {"type": "object"}},
        "additionalProperties": True,
    },
    "MessagesRequest": {
        "description": "The provider's own body; it is passed on as it is.",
        "type": "object",
        "properties": {
            "model": {"type": "string", "description": "`reef`, `default` or nothing asks for the configured model."},
            "messages": {"type": "array", "items": _MESSAGE},
            "max_tokens": {"type": "integer"},
            "stream": {"type": "boolean"},
        },
        "additionalProperties": True,
    },
    "MessagesAnswer": {
        "description": "The provider's own answer; it is passed on as it is.",
        "type": "object",
        "properties": {"role": {"type": "string"}, "content": {"type": "array"}, "usage": {"type": "object"}},
        "additionalProperties": True,
    },
    "TokenCount": {"type": "object", "properties": {"input_tokens": {"type": "integer"}}, "additionalProperties": True},
    "MessagesError": {
        "type": "object",
        "required": ["type", "error"],
        "properties": {"type": {"const": "error"}, **_INFERENCE_ERROR["properties"]},
    },
    "ChatCompletion": {
        "description": "The provider's own answer; it is passed on as it is.",
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "choices": {"type": "array", "items": {"type": "object", "properties": {"message": _MESSAGE}}},
            "usage": {"type": "object"},
        },
        "additionalProperties": True,
    },
}
_ERRORS = {
    400: "Malformed JSON, a name that is not allowed, or a dialect the upstream does not speak",
    401: "No token, or an unknown one",
    403: "A token that may not do this",
    404: "Unknown scenario, and implicit creation is off",
    429: "The token is over its limits, or the provider's answer to too many requests",
    413: "The body is larger than 64 MiB",
    502: "The upstream cannot be reached, or broke off",
    504: "The upstream did not answer in time",
    507: "The exchange could not be stored",
}
_SCOPE = "infer"
"""What the handlers of these routes ask for."""
_PROVIDERS_OWN = {"description": "Whatever else the provider refuses with, passed on as it is."}


def _header(name: str, description: str, **schema: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": {"type": "string", **schema}}


_HEADERS = [
    _header("x-reef-scenario", "The workload this belongs to; the default one if it is left out."),
    _header(
        "x-reef-session", "The agent run this belongs to; else the agent's own session header says it, else the history it carries on."
    ),
    _header("x-reef-release", "The step of the harness release the client runs, or the candidate on canary.", pattern=RELEASE),
]
_PATH = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in ("scenario", "session")]


@dataclass(frozen=True, slots=True)
class _Route:
    """An inference route, and the schemas that describe it."""

    path: str
    name: str
    summary: str
    request: str
    answer: str
    error: str = "InferenceError"
    events: str = ""
    recorded: bool = True


_ROUTES = (
    _Route(
        "/v1/chat/completions", "chat_completions", "Chat completions", "ChatCompletionRequest", "ChatCompletion",
        events="`chat.completion.chunk` events, then `[DONE]`.",
    ),
    _Route(
        "/v1/responses", "responses", "Responses", "ResponsesRequest", "ResponsesAnswer",
        events="`response.…` events, the last one `response.completed`, `response.incomplete` or `response.failed`.",
    ),
    _Route(
        "/v1/messages", "messages", "Messages", "MessagesRequest", "MessagesAnswer", error="MessagesError",
        events="`message_start` to `message_stop`.",
    ),
    _Route(
        "/v1/messages/count_tokens", "count_tokens", "Tokens of a prompt", "MessagesRequest", "TokenCount", error="MessagesError",
        recorded=False,
    ),
)  # fmt: skip


def extend(document: dict[str, Any], *, scopes: openapi_access.Scopes, open_to_all: bool) -> dict[str, Any]:
    """Add the inference routes to FastAPI's document, and to every operation who may call it and how it refuses.

    Args:
        scopes: the scope of FastAPI's routes: :func:`reef.gateway.openapi_access.scopes_of`.
        open_to_all: whoever comes without a token has full access.
    """
    paths = document.setdefault("paths", {})
    for route in _ROUTES:
        paths[route.path] = {"post": _describe(route, route.name, _HEADERS if route.recorded else [])}
        by_path = [*_PATH, _HEADERS[2]] if route.recorded else _PATH
        paths["/s/{scenario}/{session}" + route.path] = {"post": _describe(route, f"{route.name}_by_path", by_path)}
    listed = paths["/v1/models"]["get"]
    listed["responses"].update(_refusals("InferenceError", 502, 504), default=_PROVIDERS_OWN)
    paths["/s/{scenario}/{session}/v1/models"] = {"get": {**listed, "operationId": "models_by_path", "parameters": _PATH}}
    inference = {(method, path): _SCOPE for path, methods in paths.items() if "/v1/" in path for method in methods}
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(_SCHEMAS)
    openapi_links.add(paths)
    openapi_access.apply(document, scopes={**inference, **scopes}, open_to_all=open_to_all)
    return document


def _refusals(schema: str, *statuses: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {str(status): {"description": _ERRORS[status], "content": content} for status in statuses}


def _describe(route: _Route, name: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": "The provider's answer.",
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{route.answer}"}}},
    }
    if route.recorded:
        receipt = {"description": "The receipt, there from the start of the answer.", "schema": {"type": "string"}}
        answer["description"] += " Its last byte leaves when the record is on disk."
        overhead = {"description": "The gateway's own share of the time until here.", "schema": {"type": "number"}}
        answer["headers"] = {"x-reef-agent-record-id": receipt, "x-reef-overhead-ms": overhead}
        answer["content"]["text/event-stream"] = {"schema": {"type": "object", "description": route.events}}
    errors = _refusals(route.error, *(status for status in _ERRORS if route.recorded or status != 507))
    return {
        "tags": ["inference"],
        "summary": route.summary,
        "description": "Passed through to the upstream, streamed or not, and recorded."
        if route.recorded
        else "Passed through, not recorded.",
        "operationId": name,
        "parameters": parameters,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{route.request}"}}},
        },
        "responses": {"200": answer, **errors, "default": _PROVIDERS_OWN},
    }
