"""Tokens over HTTP: issue, list, revoke, rotate."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from reef.errors import Forbidden
from reef.experience.tokens import SCOPES, Grant, Token
from reef.gateway.auth import CALLER, Caller, require
from reef.gateway.scenario_index import check_name, described

DAY_S = 86_400.0

router = APIRouter(prefix="/reef/tokens", tags=["tokens"], dependencies=[Depends(require("admin"))])


class NewToken(BaseModel):
    """A token to issue."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="What to call it when it is listed, revoked or rotated.", json_schema_extra=described)
    scopes: list[Literal["infer", "report", "read", "harness", "admin"]] = Field(min_length=1, max_length=16)
    scenario: Annotated[str, Field(json_schema_extra=described)] | None = Field(
        None, description="The only scenario it may touch; all of them if left out."
    )
    expires_in_days: Annotated[float, Field(gt=0, le=36_500)] | None = None
    requests_per_minute: Annotated[int, Field(ge=1, le=100_000)] | None = Field(None, description="In any 60 seconds, in each gateway.")
    concurrent: Annotated[int, Field(ge=1, le=100_000)] | None = Field(None, description="Under way at a time, in each gateway.")


class Issued(BaseModel):
    """A token and, this once, its secret."""

    token: dict[str, Any]
    secret: str


@router.post("", status_code=201)
def create(request: Request, response: Response, body: NewToken) -> Issued:
    """Issue a token. Its secret is in this answer and nowhere else, then or later."""
    state = request.app.state.reef
    check_name(body.name, what="token")
    if body.scenario is not None:
        state.scenarios.check_name(body.scenario)
    grant = Grant(
        scopes=frozenset(body.scopes),
        scenario=body.scenario,
        requests_per_minute=body.requests_per_minute,
        concurrent=body.concurrent,
        expires_at=None if body.expires_in_days is None else time.time() + body.expires_in_days * DAY_S,
    )
    _refuse_more(request, grant)
    return _issued(response, *state.tokens.create(body.name, grant=grant))


@router.get("")
def show(request: Request) -> dict[str, Any]:
    """Every token that was ever issued, oldest first, without its secret."""
    return {"tokens": [_shown(token) for token in request.app.state.reef.tokens.all()]}


@router.post("/{token}/revoke")
def revoke(request: Request, token: str) -> dict[str, Any]:
    """End a token, by its name or id: at once here, within 100 ms in every other gateway."""
    return _shown(request.app.state.reef.tokens.revoke(token))


@router.post("/{token}/rotate", status_code=201)
def rotate(request: Request, response: Response, token: str) -> Issued:
    """Replace a token by a new one that may do the same; the old one ends."""
    tokens = request.app.state.reef.tokens
    _refuse_more(request, tokens.find(token).grant)
    return _issued(response, *tokens.rotate(token))


def _refuse_more(request: Request, grant: Grant) -> None:
    """An admin can give away only what it may do itself: else `admin` alone would be every scope."""
    caller: Caller = request.scope[CALLER]
    if more := grant.scopes - caller.scopes:
        raise Forbidden(
            f"this token may not give away {', '.join(sorted(more))}", hint="A token gives scopes that it has; REEF_TOKEN has all of them."
        )


def _issued(response: Response, token: Token, secret: str) -> Issued:
    response.headers["cache-control"] = "no-store"
    return Issued(token=_shown(token), secret=secret)


def _shown(token: Token) -> dict[str, Any]:
    grant = token.grant
    return {
        "id": token.id,
        "name": token.name,
        "scopes": [scope for scope in SCOPES if scope in grant.scopes],
        "scenario": grant.scenario,
        "requests_per_minute": grant.requests_per_minute,
        "concurrent": grant.concurrent,
        "created_at": token.created_at,
        "expires_at": grant.expires_at,
        "revoked_at": token.revoked_at,
        "usable": token.usable(time.time()),
    }
