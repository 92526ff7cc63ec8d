"""Who calls, and what that caller may do. Decided before anything else is looked at, with no database in the way."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fastapi import Request

from reef.config import Config
from reef.errors import Forbidden, Unauthorized
from reef.process import PROPOSER_TOKEN, TRIAL_TOKEN
from reef.types import Origin

ALL_SCOPES = frozenset({"infer", "report", "read", "harness", "admin"})
INFER_ONLY = frozenset({"infer"})


@dataclass(frozen=True, slots=True)
class Caller:
    """What a token stands for."""

    scopes: frozenset[str]
    origin: Origin

    def require(self, scope: str) -> None:
        """Check a scope.

        Raises:
            Forbidden: this caller lacks it.
        """
        if scope not in self.scopes:
            raise Forbidden(f"this token may not {scope}", hint="It is a token of Reef's own processes; use the service's token.")


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

    @classmethod
    def from_environment(cls, config: Config) -> Auth:
        """The tokens this process was started with."""
        return cls(token=os.environ.get(config.auth.token_env), trial=os.environ.get(TRIAL_TOKEN), proposer=os.environ.get(PROPOSER_TOKEN))

    def identify(self, headers: Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]]) -> Caller:
        """The caller that sent these headers.

        Raises:
            Unauthorized: no token, or none that is known.
        """
        found = headers if isinstance(headers, Mapping) else dict(headers)
        for secret in (_bearer(found.get(b"authorization", b"")), found.get(b"x-api-key", b"")):
            if secret and (caller := self._caller(secret)) is not None:
                return caller
        if self._anyone is not None:
            return self._anyone
        raise Unauthorized(
            "this service needs a token",
            hint="Send `Authorization: Bearer $REEF_TOKEN` (or x-api-key), the token `reef serve` was started with.",
        )

    def _caller(self, secret: bytes) -> Caller | None:
        digest = _digest(secret)
        found = None
        for known, caller in self._known:  # no early end: the time taken tells nothing
            if hmac.compare_digest(known, digest):
                found = caller
        return found


def require(scope: str) -> Callable[[Request], Caller]:
    """A FastAPI dependency: the caller, who has ``scope``."""

    def dependency(request: Request) -> Caller:
        caller: Caller = request.app.state.reef.auth.identify(request.scope["headers"])
        caller.require(scope)
        return caller

    return dependency


def _bearer(header: bytes) -> bytes:
    return header[7:].strip() if header[:7].lower() == b"bearer " else b""


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
