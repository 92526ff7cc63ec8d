"""Who calls, and what that caller may do. Decided before anything else is looked at, with no database in the way."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fastapi import Request
from starlette.types import Scope

from reef.config import Config
from reef.errors import Forbidden, Unauthorized
from reef.experience.tokens import PREFIX, SCOPES
from reef.gateway import confinement
from reef.gateway.limits import UNLIMITED, Limits
from reef.process import PROPOSER_TOKEN, TRIAL_TOKEN
from reef.types import Origin

ALL_SCOPES = frozenset(SCOPES)
INFER_ONLY = frozenset({"infer"})
PUBLIC = frozenset({"/healthz", "/openapi.json"})
"""Paths that are answered without a token; and ``HEAD /``."""
CALLER = "reef.caller"
"""Where a request's scope keeps its caller."""


@dataclass(frozen=True, slots=True)
class Caller:
    """What a token stands for."""

    scopes: frozenset[str]
    origin: Origin
    token: str = ""
    """The name of an issued token; empty for those of the environment."""
    scenario: str | None = None
    """The only scenario it may touch; None: all of them."""
    limits: Limits = UNLIMITED

    def require(self, scope: str) -> None:
        """Check a scope.

        Raises:
            Forbidden: this caller lacks it.
        """
        if scope in self.scopes:
            return
        hint = "It is a token of Reef's own processes; use the service's token."
        if self.token:
            hint = f"It is named {self.token}; `reef token create --scope {scope}` makes one that may."
        raise Forbidden(f"this token may not {scope}", hint=hint)


class Auth:
    """Tells callers apart by their token.

    Args:
        token: gives full access. None: whoever comes without a known token has full access (a service on loopback).
        trial: the token of the learner's trials.
        proposer: the token of the learner's proposers.
    """

    def __init__(self, *, token: str | None, trial: str | None = None, proposer: str | None = None) -> None:
        user = Caller(ALL_SCOPES, Origin.USER)
        self._anyone = None if token else user
        known = ((token, user), (trial, Caller(INFER_ONLY, Origin.TRIAL)), (proposer, Caller(INFER_ONLY, Origin.PROPOSER)))
        self._known = [(_digest(secret.encode()), caller) for secret, caller in known if secret]
        self.issued: Callable[[bytes], Caller | None] = lambda _secret: None
        """Finds the caller of a token that was issued: :meth:`reef.gateway.token_index.TokenIndex.caller`."""

    @property
    def open(self) -> bool:
        """Whether whoever comes without a token has full access."""
        return self._anyone is not None

    @classmethod
    def from_environment(cls, config: Config) -> Auth:
        """The tokens this process was started with."""
        return cls(token=os.environ.get(config.auth.token_env), trial=os.environ.get(TRIAL_TOKEN), proposer=os.environ.get(PROPOSER_TOKEN))

    def identify(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """The caller that sent these headers.

        Raises:
            Unauthorized: no token, or none that is known.
        """
        found = dict(headers)
        ours = False
        for secret in (_bearer(found.get(b"authorization", b"")), found.get(b"x-api-key", b"")):
            if secret:
                if (caller := self._caller(secret) or self.issued(secret)) is not None:
                    return caller
                ours = ours or secret.startswith(PREFIX.encode())
        if self._anyone is not None and not ours:  # a token that was revoked must not become full access
            return self._anyone
        if ours:
            raise Unauthorized(
                "this token is unknown, revoked or expired", hint="Whoever has an admin's token makes another: `reef token create`."
            )
        raise Unauthorized(
            "this service needs a token",
            hint="Send `Authorization: Bearer $REEF_TOKEN` (or x-api-key), the token `reef serve` was started with.",
        )

    def admit(self, scope: Scope, *, scenario: str = "") -> Caller:
        """Identify the caller of a request, and keep it to its scenario; the request's scope says both from then on.

        Args:
            scenario: what the base URL names, if it names one.

        Raises:
            Unauthorized: no token, or none that is known.
            Forbidden: the request names another scenario than the token's.
        """
        caller = self.identify(scope["headers"])
        scope[CALLER] = caller
        if caller.scenario is not None:
            confinement.settle_header(scope, caller.scenario, named=scenario)
        return caller

    def _caller(self, secret: bytes) -> Caller | None:
        digest = _digest(secret)
        found = None
        for known, caller in self._known:  # no early end: the time taken tells nothing
            if hmac.compare_digest(known, digest):
                found = caller
        return found


def is_public(method: str, path: str) -> bool:
    """Whether a request is answered without a token."""
    return path in PUBLIC or (path == "/" and method == "HEAD")


@dataclass(frozen=True, slots=True)
class Required:
    """A FastAPI dependency: the caller, who has ``scope`` and keeps to its scenario. ``/openapi.json`` reads the scope of a route here.

    It waits for nothing, and is a coroutine all the same: FastAPI has anything else run on a thread.
    """

    scope: str

    async def __call__(self, request: Request) -> Caller:
        caller: Caller = request.scope[CALLER]
        caller.require(self.scope)
        if caller.scenario is not None:
            confinement.check(request, caller.scenario)
        return caller


def require(scope: str) -> Required:
    """The dependency that lets only callers with ``scope`` through."""
    return Required(scope)


def _bearer(header: bytes) -> bytes:
    return header[7:].strip() if header[:7].lower() == b"bearer " else b""


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
