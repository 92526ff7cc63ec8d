"""What `/openapi.json` says about every operation alike: who may call it, how it refuses, and what a name looks like.

Scopes are read where the routes declare them, so that the page cannot say another one than the gateway asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute

from reef.gateway import auth
from reef.gateway.scenario_index import NAME, PLAIN

SCOPE_KEY = "x-reef-scope"
"""The key of an operation that holds the scope a token needs for it; absent where no token is needed."""
Scopes = Mapping[tuple[str, str], str]

_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
_REFUSALS = {
    400: "Something in it is not allowed, such as a name",
    401: "No token, or an unknown one",
    403: "A token that may not do this",
    404: "What it names is not there",
    429: "The token is over its limits; `Retry-After` says when to come again",
}
_REFUSALS_OF_BODIES = {
    409: "The same id with other content, or a head that moved meanwhile",
    413: "The body is larger than 64 MiB",
    507: "It could not be stored",
}
_NAMES = {
    ("path", "scenario"): f"^{NAME.pattern}$",
    ("path", "session"): f"^{NAME.pattern}$",
    ("query", "scenario"): f"^({NAME.pattern})?$",  # empty: as if it were not there
    ("header", "x-reef-scenario"): f"^({NAME.pattern})?$",
    ("header", "x-reef-session"): f"^({NAME.pattern})?$",
}


def scopes_of(routers: Iterable[APIRouter]) -> dict[tuple[str, str], str]:
    """The scope that each route declares, by method in lower case and path."""
    found = {}
    for route in (route for router in routers for route in router.routes):
        if isinstance(route, APIRoute):
            for required in _required(route.dependant):
                found.update({(method.lower(), route.path): required.scope for method in route.methods or ()})
    return found


def apply(document: dict[str, Any], *, scopes: Scopes, open_to_all: bool) -> None:
    """Complete every operation of the document.

    Args:
        open_to_all: whoever comes without a token has full access.
    """
    document["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    document["security"] = [{"bearer": []}, {"key": []}, *([{}] if open_to_all else [])]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _complete(operation, method, path, scopes.get((method, path)))


def _complete(operation: dict[str, Any], method: str, path: str, scope: str | None) -> None:
    if auth.is_public(method.upper(), path):
        operation["security"] = []
        return
    if scope is not None:
        operation[SCOPE_KEY] = scope
    responses = operation["responses"]
    for status, text in {**_REFUSALS, **(_REFUSALS_OF_BODIES if method != "get" else {})}.items():
        responses.setdefault(str(status), {"description": text, "content": _ERROR})
    if "422" in responses:  # FastAPI describes the form of its own errors, which no answer here has
        responses["422"] = {"description": "A body or parameter with something wrong in it, named in the message", "content": _ERROR}
    for parameter in operation.get("parameters", ()):
        pattern = _NAMES.get((parameter["in"], parameter["name"]))
        if pattern:
            parameter["schema"] = {"type": "string", "pattern": pattern}
        for schema in (parameter["schema"], *parameter["schema"].get("anyOf", ())):
            if schema.get("type") == "string":
                schema.setdefault("pattern", PLAIN)


def _required(dependant: Any) -> Iterator[auth.Required]:
    if isinstance(dependant.call, auth.Required):
        yield dependant.call
    for inner in dependant.dependencies:
        yield from _required(inner)
