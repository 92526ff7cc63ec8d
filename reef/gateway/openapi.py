"""The OpenAPI page of the inference routes, which FastAPI does not know because it does not serve them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
_MESSAGE: dict[str, Any] = {
    "type": "object",
    "required": ["role"],
    "properties": {"role": {"type": "string"}, "content": {}, "tool_calls": {"type": "array", "items": {"type": "object"}}},
    "additionalProperties": True,
}
_SCHEMAS: dict[str, Any] = {
    "Error": _ERROR,
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
        "properties": {"type": {"const": "error"}, "error": _ERROR["properties"]["error"]},
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
    413: "The body is larger than 64 MiB",
    502: "The upstream cannot be reached, or broke off",
    504: "The upstream did not answer in time",
    507: "The exchange could not be stored",
}


def _header(name: str, description: str, kind: str = "string") -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": {"type": kind}}


_HEADERS = [
    _header("x-reef-scenario", "The workload this belongs to; the default one if it is left out."),
    _header("x-reef-session", "The agent run this belongs to."),
    _header("x-reef-release", "The step of the harness release the client runs.", "integer"),
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
    error: str = "Error"
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


def extend(document: dict[str, Any]) -> dict[str, Any]:
    """Add the inference routes to FastAPI's document."""
    paths = document.setdefault("paths", {})
    for route in _ROUTES:
        paths[route.path] = {"post": _describe(route, route.name, _HEADERS if route.recorded else [])}
        by_path = [*_PATH, _HEADERS[2]] if route.recorded else _PATH
        paths["/s/{scenario}/{session}" + route.path] = {"post": _describe(route, f"{route.name}_by_path", by_path)}
    if "/v1/models" in paths:
        models = dict(paths["/v1/models"]["get"], operationId="models_by_path", parameters=_PATH)
        paths["/s/{scenario}/{session}/v1/models"] = {"get": models}
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(_SCHEMAS)
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    document["security"] = [{"bearer": []}, {"key": []}, {}]
    return document


def _describe(route: _Route, name: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": "The provider's answer.",
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{route.answer}"}}},
    }
    if route.recorded:
        receipt = {"description": "The receipt, there from the start of the answer.", "schema": {"type": "string"}}
        answer["description"] += " Its last byte leaves when the record is on disk."
        answer["headers"] = {"x-reef-agent-record-id": receipt}
        answer["content"]["text/event-stream"] = {"schema": {"type": "string", "description": route.events}}
    errors = {
        str(status): {"description": text, "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{route.error}"}}}}
        for status, text in _ERRORS.items()
        if route.recorded or status != 507
    }
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
        "responses": {"200": answer, **errors},
    }
