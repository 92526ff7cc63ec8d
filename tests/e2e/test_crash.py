"""SIGKILL at any moment: every receipt whose answer reached its end is there afterwards, and no release is half made."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path

import sqlalchemy as sa

from reef.artifacts.repository import ArtifactRepository
from reef.experience.database import connect, create_tables
from reef.experience.schema import consumptions, records, reports
from reef.harness.tree import starter
from reef.releases.controller import Controller
from reef.types import File
from tests.support.chain import publish
from tests.support.service import Service, serving, wait_for

KILLS = 20
PROMPTS = ("Write the date 7 March 2024 to date.txt", "Write the sum of 17 and 25 to sum.txt")


class Client(threading.Thread):
    """Works without pause, as the demo does: asks (streamed and not), reports, and now and then rolls back."""

    def __init__(self, service: Service, number: int) -> None:
        super().__init__(daemon=True)
        self.service = service
        self.number = number
        self.random = random.Random(number)
        self.stop = threading.Event()
        self.receipts: list[str] = []
        self.reports: list[str] = []
        self.rollbacks: list[int] = []

    def run(self) -> None:
        turn = 0
        while not self.stop.is_set():
            turn += 1
            with contextlib.suppress(OSError, HTTPException, ValueError):  # the gateway was killed under this request: not acknowledged
                receipt = self.ask(turn)
                if self.random.random() < 0.1:
                    body = {"references": [receipt], "score": 0, "feedback": "Dates must be written as YYYY-MM-DD."}
                    answer = self.service.post("/reef/report", body)
                    self.reports.append(answer["agent_record_id"])
                if self.random.random() < 0.02:
                    step = self.random.choice((1, 2))  # refused where it serves already
                    self.rollbacks.append(self.service.post("/reef/scenarios/default/rollback", {"step": step})["step"])

    def ask(self, turn: int) -> str:
        stream = turn % 2 == 0
        body = {"model": "reef", "stream": stream, "messages": [{"role": "user", "content": f"{PROMPTS[turn % 2]} ({self.number}/{turn})"}]}
        request = urllib.request.Request(self.service.url + "/v1/chat/completions", data=json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        request.add_header("x-reef-session", f"client-{self.number}-{turn // 4}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            data = answer.read()
            if stream and not data.rstrip().endswith(b"data: [DONE]"):
                raise ValueError("the stream did not reach its end")
            if not stream:
                json.loads(data)
            receipt = answer.headers["x-reef-agent-record-id"]
        self.receipts.append(receipt)
        return receipt


def test_twenty_kills_lose_no_acknowledged_record_and_leave_no_half_release(tmp_path: Path) -> None:
    moments = random.Random(7)
    prepare_chain(tmp_path / "state")
    arguments = ("--upstream", "rehearsal", "--set", "reef.recipe=cordis", "--set", "reef.options={attempts: 2}")
    with serving(tmp_path, *arguments) as service:
        clients = [Client(service, number) for number in range(4)]
        for client in clients:
            client.start()
        for number in range(KILLS):
            time.sleep(moments.uniform(0.05, 0.8))  # the moment of the kill, not a wait for something
            service.kill("gateway" if number % 2 == 0 else "learner")
            wait_for(service.healthy, "the gateway to answer again")
        for client in clients:
            client.stop.set()
        for client in clients:
            client.join(60)
            assert not client.is_alive()

        receipts = [receipt for client in clients for receipt in client.receipts]
        assert len(receipts) > 100
        assert len(set(receipts)) == len(receipts)
        for receipt in moments.sample(receipts, 50):
            record = service.get(f"/reef/records/{receipt}")
            assert record["response"]["choices"][0]["finish_reason"]
    check_records(tmp_path / "state", receipts)
    check_releases(tmp_path / "state", clients)


def open_controller(state: Path) -> Controller:
    return Controller(connect(f"sqlite:///{state / 'reef.db'}"), ArtifactRepository(state / "artifacts.git"))


def prepare_chain(state: Path) -> None:
    """Two releases with different content, so that there is something to roll back to."""
    create_tables(connect(f"sqlite:///{state / 'reef.db'}"))
    controller = open_controller(state)
    controller.ensure_scenario("default", starter=starter())
    publish(controller, {**starter(), "AGENTS.md": File(b"Be brief.\n")})


def check_records(state: Path, receipts: list[str]) -> None:
    with connect(f"sqlite:///{state / 'reef.db'}").connect() as connection:
        ends = {row.id: row.end for row in connection.execute(sa.select(records.c.id, records.c.end))}
    assert [receipt for receipt in receipts if ends.get(receipt) != "complete"] == []


def check_releases(state: Path, clients: list[Client]) -> None:
    controller = open_controller(state)
    controller.repair()
    assert controller.verify("default") == []
    releases = controller.releases("default")
    acknowledged = {step for client in clients for step in client.rollbacks}
    assert acknowledged, "no rollback was acknowledged: the test did not do its work"
    assert acknowledged <= {release.step for release in releases}
    assert [release.step for release in releases] == list(range(1, len(releases) + 1))
    assert controller.head("default").step == len(releases)
    known = {candidate.id for candidate in controller.candidates("default")}
    with connect(f"sqlite:///{state / 'reef.db'}").connect() as connection:
        stored = {row.id for row in connection.execute(reports.select())}
        for consumption in connection.execute(consumptions.select()):
            assert consumption.candidate is None or consumption.candidate in known
            assert consumption.report in stored
    assert {report for client in clients for report in client.reports} <= stored
