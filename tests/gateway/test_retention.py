"""What retention dropped, as clients and operators see it; and a whole service that keeps to its budget."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reef.experience import usage
from reef.experience.retention import Budget, Policy, Retention
from tests.cli.test_cli import reef
from tests.support import dialects
from tests.support.gateway import Service, service
from tests.support.service import serving, wait_for
from tests.support.upstream import upstream

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Service]:
    with upstream(dialects.answer) as fake, service(tmp_path, upstream=fake.url) as running:
        yield running


def drop_everything(gateway: Service) -> None:
    engine = gateway.state.engine
    usage.Usage(engine).look()
    Retention(engine, Policy(default=Budget(max_bytes=1), grace_s=-60), wait=lambda seconds: None).run_all()


def test_a_dropped_record_is_410_with_what_is_kept_and_reports_on_it_go_on(gateway: Service) -> None:
    receipt = gateway.chat(x_reef_session="run", x_reef_release="3").receipt
    report = {"references": [receipt], "score": 0.5, "agent_record_id": "mine"}
    assert gateway.request("POST", "/reef/report", report).status == 201
    drop_everything(gateway)
    answer = gateway.request("GET", f"/reef/records/{receipt}")
    assert answer.status == 410
    assert answer.error["type"] == "gone_error"
    assert receipt in answer.error["message"]
    kept = answer.json["kept"]
    assert (kept["id"], kept["session"], kept["release"], kept["end"]) == (receipt, "run", 3, "complete")
    assert gateway.request("POST", "/reef/report", report).status == 200
    assert gateway.request("POST", "/reef/report", {"session": "run", "score": 1}).status == 201
    assert gateway.request("GET", "/reef/reports/mine").json["references"] == [receipt]
    assert gateway.request("GET", "/reef/scenarios/default/records").json["records"] == []
    lines = [json.loads(line) for line in gateway.request("GET", "/reef/export").raw.splitlines()]
    assert [line["kind"] for line in lines] == ["tombstone", "report", "report"]
    assert (lines[0]["id"], lines[1]["references"], "request" in lines[0]) == (receipt, [receipt], False)
    assert gateway.request("GET", "/reef/records/rec_never").status == 404


def test_the_status_says_what_each_scenario_holds_and_what_was_dropped(gateway: Service) -> None:
    gateway.chat()
    usage.Usage(gateway.state.engine).look()
    held = gateway.request("GET", "/reef/status").json["held"]["default"]
    assert (held["records"], held["dropped"], held["max_bytes"], held["max_age_days"]) == (1, 0, None, None)
    assert held["bytes"] > 0
    drop_everything(gateway)
    held = gateway.request("GET", "/reef/status").json["held"]["default"]
    assert (held["records"], held["bytes"], held["dropped"], held["dropped_unreported"]) == (0, 0, 1, 1)


def test_a_session_goes_on_after_it_was_dropped(gateway: Service) -> None:
    first = gateway.chat(x_reef_session="run")
    drop_everything(gateway)
    said = [*CHAT["messages"], first.json["choices"][0]["message"], {"role": "user", "content": "more"}]
    answer = gateway.chat({"model": "m", "messages": said}, x_reef_session="run")
    assert gateway.record(answer).request["messages"] == said


def test_a_service_keeps_to_its_budget_and_the_command_says_what_would_go(tmp_path: Path) -> None:
    budget = ("--set", "storage.retention.scenarios={nightly: {max_bytes: 2kB}}", "--set", "storage.retention.grace_s=0")
    state = ("--set", f"storage.dir={tmp_path / 'state'}")
    with serving(tmp_path, "--upstream", "rehearsal", *budget, "--set", "storage.retention.interval_s=1") as running:
        for number in range(10):
            running.post(f"/s/nightly/run-{number}/v1/chat/completions", CHAT)
            running.post(f"/s/default/run-{number}/v1/chat/completions", CHAT)

        def dropped() -> bool:
            held = running.get("/reef/status")["held"]
            return {"nightly", "default"} <= held.keys() and held["nightly"]["dropped"] > 0 and held["nightly"]["bytes"] <= 2000

        wait_for(dropped, "something to be dropped")
        status = running.get("/reef/status")
        assert status["held"]["nightly"]["records"] > 0
        assert status["held"]["default"]["dropped"] == 0
        assert (status["retention"]["error"], status["retention"]["reusable_bytes"] >= 0) == ("", True)
        assert time.time() - status["retention"]["at"] < 60
        shown = reef("status", "--url", running.url).stdout
        assert "2 kB" in shown
        told = reef("retention", "--dry-run", *state, "--set", "storage.retention.max_bytes=1", "--set", "storage.retention.grace_s=0")
        assert told.returncode == 0, told.stderr
        assert "would go" in told.stdout
        assert running.get("/reef/status")["held"]["default"]["dropped"] == 0
        done = reef("retention", *state, "--set", "storage.retention.max_bytes=1", "--set", "storage.retention.grace_s=0")
        assert done.returncode == 0, done.stderr
        assert running.get("/reef/status")["held"]["default"]["dropped"] == 10
        assert json.dumps(running.get("/reef/scenarios/default/records")["records"]) == "[]"


def test_without_a_budget_the_command_says_so(tmp_path: Path) -> None:
    told = reef("retention", "--set", f"storage.dir={tmp_path / 'state'}")
    assert (told.returncode, "no scenario has a budget" in told.stdout) == (0, True)
