"""Keeps a token that is bound to a scenario inside it: one check for every route, those to come included.

A route is open to such a token only if it can be seen to be about one scenario: by its path, by the header or query parameter it
declares, or by the record, report or candidate it names. Any other route is closed to it, so a new one cannot forget the check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fastapi import Request
from starlette.types import Scope

from reef.errors import Forbidden, NotFound

HEADER = b"x-reef-scenario"
NEUTRAL = frozenset({"/v1/models", "/reef/harness/adapters"})
"""Routes that say nothing about any scenario."""

_OWNERS: dict[str, Callable[[Any, str], str]] = {
    "record": lambda state, name: state.store.scenario_of(name),
    "report": lambda state, name: state.store.report(name).scenario,
    "candidate": lambda state, name: state.controller.candidate(name).scenario,
}
"""The scenario of what a path parameter names."""


def settle_header(scope: Scope, own: str, *, named: str = "") -> None:
    """See to it that a request's header names the token's scenario, whether or not the caller wrote one.

    Args:
        named: the scenario of a base URL that names one.

    Raises:
        Forbidden: the request names another one.
    """
    written = [value.decode("latin-1") for name, value in scope["headers"] if name == HEADER and value]
    for other in (named, *written):
        if other and other != own:
            raise _elsewhere(own)
    scope["headers"] = [*((name, value) for name, value in scope["headers"] if name != HEADER), (HEADER, own.encode())]


def check(request: Request, own: str) -> None:
    """Let a request of a bound token through, or refuse it.

    Raises:
        Forbidden: it is about another scenario, or about the service as a whole.
    """
    route = request.scope["route"]
    asked = request.query_params.getlist("scenario")
    if "scenario" in request.path_params:
        asked.append(request.path_params["scenario"])
    for other in asked:
        if other and other != own:
            raise _elsewhere(own)
    if route.path in NEUTRAL or "scenario" in request.path_params or _declares_scenario(route.dependant):
        return
    for parameter, owner in _OWNERS.items():
        if parameter in request.path_params:
            _check_owner(request, own, owner=owner, name=request.path_params[parameter])
            return
    raise Forbidden(
        f"this token is bound to the scenario {own}, and {request.method} {route.path} is about the whole service",
        hint="Use a token without a scenario.",
    )


def _check_owner(request: Request, own: str, *, owner: Callable[[Any, str], str], name: str) -> None:
    try:
        scenario = owner(request.app.state.reef, name)
    except NotFound:
        return  # the route says so
    if scenario != own:
        raise _elsewhere(own)


def _declares_scenario(dependant: Any) -> bool:
    return any(name in ("scenario", HEADER.decode()) for name in _parameters(dependant))


def _parameters(dependant: Any) -> Iterator[str]:
    for field in (*dependant.header_params, *dependant.query_params):
        yield field.alias
    for inner in dependant.dependencies:
        yield from _parameters(inner)


def _elsewhere(own: str) -> Forbidden:
    return Forbidden(f"this token is bound to the scenario {own}", hint="Leave x-reef-scenario out, or use a token of the other scenario.")
