"""Issued tokens in memory, so that no request asks the database; :mod:`reef.gateway.commit_watch` keeps them fresh."""

from __future__ import annotations

import hmac
import threading
import time

import sqlalchemy as sa

from reef.experience import tokens
from reef.experience.tokens import Grant, Token, TokenStore
from reef.gateway.auth import Auth, Caller
from reef.gateway.limits import UNLIMITED, Limits
from reef.types import Origin

_NOBODY = bytes(32)


class TokenIndex:
    """Finds the caller an issued token stands for, and issues and revokes for this process to know at once.

    Args:
        store: where tokens are kept.
        auth: is given this index to ask for the tokens it does not know itself.
    """

    def __init__(self, store: TokenStore, *, auth: Auth) -> None:
        self._store = store
        self._known: dict[str, tuple[Token, Caller]] = {}
        self._seen: tuple[int, int] | None = None
        self._lock = threading.Lock()  # who reads first must not be the last to say what it read: a revoked token would live on
        auth.issued = self.caller

    def caller(self, secret: bytes) -> Caller | None:
        """The caller of a secret; None where it is none of ours, is revoked or has expired."""
        found = self._known.get(tokens.id_of(secret) or "")
        kept = found[0].digest if found else _NOBODY  # an unknown id costs the same comparison as a wrong secret
        if not hmac.compare_digest(kept, tokens.digest_of(secret)) or found is None:
            return None
        token, caller = found
        return caller if token.usable(time.time()) else None

    def refresh(self, connection: sa.Connection) -> None:
        """Read the tokens again if any was issued or revoked. What a token has used up of its limits is kept."""
        with self._lock:
            seen = tokens.tally(connection)
            if seen != self._seen:
                self._know(tokens.unrevoked(connection))
                self._seen = seen

    def reload(self) -> None:
        """Read the tokens again, on a connection of its own."""
        with self._lock:
            self._know([token for token in self._store.all() if token.revoked_at is None])

    def all(self) -> list[Token]:
        """Every token that was ever issued, oldest first."""
        return self._store.all()

    def find(self, name: str) -> Token:
        """See :meth:`~reef.experience.tokens.TokenStore.find`."""
        return self._store.find(name)

    def create(self, name: str, *, grant: Grant) -> tuple[Token, str]:
        """See :meth:`~reef.experience.tokens.TokenStore.create`."""
        made = self._store.create(name, grant=grant)
        self.reload()
        return made

    def revoke(self, name: str) -> Token:
        """See :meth:`~reef.experience.tokens.TokenStore.revoke`."""
        token = self._store.revoke(name)
        self.reload()
        return token

    def rotate(self, name: str) -> tuple[Token, str]:
        """See :meth:`~reef.experience.tokens.TokenStore.rotate`."""
        made = self._store.rotate(name)
        self.reload()
        return made

    def _know(self, found: list[Token]) -> None:
        before = self._known
        self._known = {token.id: (token, _caller(token, before.get(token.id))) for token in found}


def _caller(token: Token, before: tuple[Token, Caller] | None) -> Caller:
    if before is not None and before[0] == token:
        return before[1]
    grant = token.grant
    limits = UNLIMITED
    if grant.requests_per_minute is not None or grant.concurrent is not None:
        limits = Limits(requests_per_minute=grant.requests_per_minute, concurrent=grant.concurrent)
    return Caller(grant.scopes, Origin.USER, token=token.name, scenario=grant.scenario, limits=limits)
