"""`reef token …` against a running gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reef.gateway.auth import Auth
from tests.cli.test_cli import reef
from tests.support.gateway import Service, service


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Service]:
    with service(tmp_path, upstream="http://127.0.0.1:1/v1", auth=Auth(token="root")) as running:
        yield running


def test_a_token_is_created_used_listed_rotated_and_revoked(gateway: Service) -> None:
    admin = {"REEF_TOKEN": "root", "REEF_URL": gateway.url, "COLUMNS": "200", "REEF_SCENARIO": "not-this-one"}
    made = reef("token", "create", "--name", "ci", "--scope", "read", "--scope", "report", "--requests-per-minute", "9", **admin)
    assert made.returncode == 0, made.stderr
    secret = made.stdout.strip()
    assert "\n" not in secret, "a script can take it: the secret alone is on standard output"
    assert "read" in made.stderr
    assert reef("status", **{**admin, "REEF_TOKEN": secret}).returncode == 0
    refused = reef("rollback", "1", **{**admin, "REEF_TOKEN": secret})
    assert (refused.returncode, "may not admin" in refused.stderr) == (1, True)
    listed = reef("token", "list", **admin).stdout
    assert all(text in listed for text in ("ci", "report read", "9/min", "all", "usable"))
    assert secret not in listed
    rotated = reef("token", "rotate", "ci", **admin).stdout.strip()
    assert reef("status", **{**admin, "REEF_TOKEN": secret}).returncode == 1
    assert reef("status", **{**admin, "REEF_TOKEN": rotated}).returncode == 0
    assert reef("token", "revoke", "ci", **admin).returncode == 0
    gone = reef("status", **{**admin, "REEF_TOKEN": rotated})
    assert (gone.returncode, "revoked" in gone.stderr) == (1, True)
    assert "revoked" in reef("token", "list", **admin).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "--name", "x", "--scope", "everything"), "scopes"),
        (("create", "--name", "a b", "--scope", "read"), "token name"),
        (("create", "--name", "x", "--scope", "read", "--expires-in-days", "-1"), "expires_in_days"),
        (("revoke", "nobody"), "there is no token nobody"),
    ],
)
def test_a_mistake_is_explained(gateway: Service, arguments: tuple[str, ...], said: str) -> None:
    done = reef("token", *arguments, REEF_TOKEN="root", REEF_URL=gateway.url)
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    assert "Traceback" not in done.stderr
