"""Tokens that were issued: their digests, and what each may do. A secret itself is never stored, and shown once.

A secret is ``reef_<id>_<random>``. The id is public and finds the row; the digest of the whole is what is compared.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from reef.errors import Conflict, NotFound
from reef.experience.database import announce, metadata, write

SCOPES = ("infer", "report", "read", "harness", "admin")
PREFIX = "reef_"
ID_CHARS = 12

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("digest", sa.LargeBinary, nullable=False),  # SHA-256 of the secret: 256 random bits need no slow hash
    sa.Column("scopes", sa.Text, nullable=False),  # separated by spaces
    sa.Column("scenario", sa.Text),  # None: every scenario
    sa.Column("requests_per_minute", sa.Integer),
    sa.Column("concurrent", sa.Integer),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float),
    sa.Column("revoked_at", sa.Float),
    sa.Index(
        "tokens_by_name",
        "name",
        unique=True,  # among those that are not revoked: a name can be used again
        sqlite_where=sa.text("revoked_at IS NULL"),
        postgresql_where=sa.text("revoked_at IS NULL"),
    ),
)

announce(tokens, sa.func.count(tokens.c.revoked_at))


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token may do."""

    scopes: frozenset[str]
    scenario: str | None = None
    """The only scenario it may touch; None: all of them."""
    requests_per_minute: int | None = None
    concurrent: int | None = None
    expires_at: float | None = None
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Token:
    """An issued token, as it is kept."""

    id: str
    name: str
    digest: bytes
    grant: Grant
    created_at: float
    revoked_at: float | None

    def usable(self, now: float) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.grant.expires_at is None or now < self.grant.expires_at)


def digest_of(secret: bytes) -> bytes:
    """What is kept of a secret."""
    return hashlib.sha256(secret).digest()


def id_of(secret: bytes) -> str | None:
    """The id inside a secret; None for a text that is no token of ours."""
    start, end = len(PREFIX), len(PREFIX) + ID_CHARS
    if not secret.startswith(PREFIX.encode()) or secret[end : end + 1] != b"_":
        return None
    return secret[start:end].decode("latin-1")


class TokenStore:
    """Issues and revokes. Threads and processes may each have one."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def all(self) -> list[Token]:
        """Every token that was ever issued, oldest first."""
        with self._engine.connect() as connection:
            return [_token(row) for row in connection.execute(sa.select(tokens).order_by(tokens.c.created_at, tokens.c.id)).mappings()]

    def find(self, name: str) -> Token:
        """The unrevoked token of that name or id.

        Raises:
            NotFound: there is none.
        """
        with self._engine.connect() as connection:
            return _find(connection, name)

    def create(self, name: str, *, grant: Grant) -> tuple[Token, str]:
        """Issue a token.

        Returns:
            The token and its secret, which nobody can be told again.

        Raises:
            Conflict: an unrevoked token has the name.
        """
        token, secret = _new(name, grant)
        try:
            with write(self._engine).begin() as tx:
                _insert(tx, token)
        except sa.exc.IntegrityError:
            raise Conflict(f"there is a token {name} already", hint="Take another name, or revoke it: reef token revoke NAME.") from None
        return token, secret

    def revoke(self, name: str) -> Token:
        """End the token of that name or id. It stays in the list.

        Raises:
            NotFound: there is none that is not revoked.
        """
        with write(self._engine).begin() as tx:
            return _revoke(tx, _find(tx, name))

    def rotate(self, name: str) -> tuple[Token, str]:
        """Replace a token by one that may do the same, in one transaction.

        Raises:
            NotFound: there is none that is not revoked.
        """
        with write(self._engine).begin() as tx:
            old = _revoke(tx, _find(tx, name))
            token, secret = _new(old.name, old.grant)
            _insert(tx, token)
        return token, secret


def unrevoked(connection: sa.Connection) -> list[Token]:
    """The tokens that are not revoked."""
    return [_token(row) for row in connection.execute(_UNREVOKED).mappings()]


def tally(connection: sa.Connection) -> tuple[int, int]:
    """How many tokens were issued, and revoked. A token changes in no other way, and none is deleted: an equal tally means no change."""
    issued, revoked = connection.execute(_TALLY).one()
    return issued, revoked


_TALLY = sa.select(sa.func.count(), sa.func.count(tokens.c.revoked_at)).select_from(tokens)
_UNREVOKED = sa.select(tokens).where(tokens.c.revoked_at.is_(None))


def _new(name: str, grant: Grant) -> tuple[Token, str]:
    identity = secrets.token_hex(ID_CHARS // 2)
    secret = f"{PREFIX}{identity}_{secrets.token_urlsafe(32)}"
    return Token(identity, name, digest_of(secret.encode()), grant, time.time(), None), secret


def _find(tx: sa.Connection, name: str) -> Token:
    query = sa.select(tokens).where(tokens.c.revoked_at.is_(None), sa.or_(tokens.c.name == name, tokens.c.id == name))
    row = tx.execute(query.order_by(tokens.c.name != name)).mappings().first()  # a name goes before an id that reads the same
    if row is None:
        raise NotFound(f"there is no token {name}", hint="`reef token list` shows them; one that is revoked stays so.")
    return _token(row)


def _insert(tx: sa.Connection, token: Token) -> None:
    grant = token.grant
    tx.execute(
        tokens.insert().values(
            id=token.id,
            name=token.name,
            digest=token.digest,
            scopes=" ".join(scope for scope in SCOPES if scope in grant.scopes),
            scenario=grant.scenario,
            requests_per_minute=grant.requests_per_minute,
            concurrent=grant.concurrent,
            created_at=token.created_at,
            expires_at=grant.expires_at,
        )
    )


def _revoke(tx: sa.Connection, token: Token) -> Token:
    now = time.time()
    tx.execute(tokens.update().where(tokens.c.id == token.id).values(revoked_at=now))
    return Token(token.id, token.name, token.digest, token.grant, token.created_at, now)


def _token(row: Any) -> Token:
    grant = Grant(
        scopes=frozenset(row["scopes"].split()),
        scenario=row["scenario"],
        requests_per_minute=row["requests_per_minute"],
        concurrent=row["concurrent"],
        expires_at=row["expires_at"],
    )
    return Token(row["id"], row["name"], bytes(row["digest"]), grant, row["created_at"], row["revoked_at"])
