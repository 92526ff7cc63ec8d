"""The OpenAPI page of the inference routes, which FastAPI does not know because it does not serve them."""

from __future__ import annotations

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
    400: "Malformed JSON, or a name that is not allowed",
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


def extend(document: dict[str, Any]) -> dict[str, Any]:
    """Add the inference routes to FastAPI's document."""
    paths = document.setdefault("paths", {})
    paths["/v1/chat/completions"] = {"post": _chat("chat_completions", _HEADERS)}
    paths["/s/{scenario}/{session}/v1/chat/completions"] = {"post": _chat("chat_completions_by_path", [*_PATH, _HEADERS[2]])}
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


def _chat(name: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    receipt = {"x-reef-agent-record-id": {"description": "The receipt, there from the start of the answer.", "schema": {"type": "string"}}}
    answer = {
        "description": "The provider's answer. Its last byte leaves when the record is on disk.",
        "headers": receipt,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/ChatCompletion"}},
            "text/event-stream": {"schema": {"type": "string", "description": "`chat.completion.chunk` events, then `[DONE]`."}},
        },
    }
    errors = {
        str(status): {"description": text, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
        for status, text in _ERRORS.items()
    }
    return {
        "tags": ["inference"],
        "summary": "Chat completions",
        "description": "Passed through to the upstream, streamed or not, and recorded.",
        "operationId": name,
        "parameters": parameters,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ChatCompletionRequest"}}},
        },
        "responses": {"200": answer, **errors},
    }
