"""The whole service on PostgreSQL."""

from __future__ import annotations

import secrets
from pathlib import Path

import sqlalchemy as sa

from tests.support.databases import fresh
from tests.support.service import serving, wait_for

CHAT = {"model": "reef", "messages": [{"role": "user", "content": "Write the sum of 17 and 25 to sum.txt"}]}


def test_a_service_keeps_everything_in_postgresql_and_loses_nothing_when_killed(tmp_path: Path, postgresql: sa.URL) -> None:
    with (
        fresh(postgresql, f"reef-{secrets.token_hex(6)}") as url,
        serving(tmp_path, "--upstream", "rehearsal", "--set", f"storage.url={url}") as service,
    ):
        for _ in range(3):
            service.post("/v1/chat/completions", CHAT)
        service.kill("gateway")
        wait_for(service.healthy, "the gateway to answer again")
        service.post("/v1/chat/completions", CHAT)
        assert len(service.get("/reef/scenarios/default/records")["records"]) == 4
        wait_for(lambda: service.get("/reef/scenarios")["scenarios"], "the scenario to exist")
        assert service.get("/reef/scenarios/default/releases")["head"] == 1
        assert not (tmp_path / "state" / "reef.db").exists()
