"""Issued tokens, for tests of a guarded gateway."""

from __future__ import annotations

from typing import Any

from tests.support.gateway import Service

ADMIN = {"authorization": "Bearer root"}
"""The token of ``Auth(token="root")``."""


def issue(gateway: Service, name: str, *scopes: str, headers: dict[str, str] = ADMIN, **more: Any) -> dict[str, str]:
    """A new token, as the headers that send it."""
    answer = gateway.request("POST", "/reef/tokens", {"name": name, "scopes": scopes, **more}, headers)
    assert answer.status == 201, answer.raw
    return {"authorization": f"Bearer {answer.json['secret']}"}
