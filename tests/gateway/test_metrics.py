"""`/metrics` and `x-reef-overhead-ms`: what is counted is what happened, and nothing a caller makes up becomes a label."""

from __future__ import annotations

import os
import secrets
import threading
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from reef.gateway import metrics
from reef.gateway.auth import Auth
from reef.types import End, Origin, Record
from tests.support import dialects
from tests.support.gateway import CHAT, Service, service, until
from tests.support.tokens import ADMIN, issue
from tests.support.upstream import FakeUpstream, Reply, greeting, stream, upstream, whole

STREAM = {**CHAT, "stream": True}


class Page:
    """A scrape."""

    def __init__(self, gateway: Service, **headers: str) -> None:
        self.answer = gateway.request("GET", "/metrics", headers=headers)
        assert self.answer.status == 200
        self.samples = [sample for family in text_string_to_metric_families(self.answer.raw.decode()) for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The sum of all samples of a name that have these labels."""
        return sum(s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items())


def test_requests_are_counted_by_scenario_upstream_dialect_and_end(tmp_path: Path) -> None:
    with (
        upstream(lambda seen: fake.replies.pop(0) if fake.replies else dialects.answer(seen)) as fake,
        service(tmp_path, upstream=fake.url, upstream_section={"dialects": ["chat", "messages"]}) as gateway,
    ):
        gateway.chat(x_reef_scenario="work")
        gateway.chat(STREAM, x_reef_scenario="work")
        gateway.chat({**CHAT, "max_tokens": 3}, path="/v1/messages")
        fake.replies = [stream(*greeting()[:2], end="reset"), whole({"error": {}}, status=503)]
        gateway.chat(STREAM)
        gateway.chat()
        page = Page(gateway)
    common = {"upstream": fake.url, "process": str(os.getpid())}
    assert page.value("reef_requests_total", scenario="work", dialect="chat", end="complete", **common) == 2
    assert page.value("reef_requests_total", scenario="default", dialect="messages", end="complete", **common) == 1
    assert page.value("reef_requests_total", scenario="default", dialect="chat", end="truncated", **common) == 1
    assert page.value("reef_requests_total", scenario="default", dialect="chat", end="upstream_error", **common) == 1
    assert page.value("reef_requests_total") == 5
    for name in ("reef_added_latency_seconds", "reef_first_byte_seconds"):
        assert page.value(f"{name}_count", scenario="work", dialect="chat", **common) == 2
        assert page.value(f"{name}_sum") > 0
    assert page.value("reef_commit_seconds_count") == 5
    assert page.value("reef_requests_under_way") == 0
    assert (page.value("reef_writer_up"), page.value("reef_writer_waiting"), page.value("reef_not_stored_total")) == (1, 0, 0)
    assert page.value("process_resident_memory_bytes") > 1_000_000
    assert {sample.labels["process"] for sample in page.samples} == {str(os.getpid())}


@pytest.mark.alone
def test_waiting_for_the_upstream_is_not_the_gateways_own_time(gateway: Service, fake: FakeUpstream) -> None:
    for body, reply in ((CHAT, whole), (STREAM, stream)):
        go = threading.Event()
        pieces = reply().pieces
        fake.replies = [reply().__class__(pieces=[go, *pieces], content_type=reply().content_type)]
        timer = threading.Timer(0.4, go.set)
        timer.start()
        answer = gateway.chat(body)
        timer.join()
        assert 0 < float(answer.headers["x-reef-overhead-ms"]) < 200
        assert gateway.record(answer).duration_ms > 390
    page = Page(gateway)
    assert page.value("reef_added_latency_seconds_sum") < 0.4
    assert page.value("reef_first_byte_seconds_sum") > 0.39  # the stream's first event; the other answer's head came at once


def test_storing_is_the_gateways_own_time(gateway: Service) -> None:
    with gateway.state.engine.connect() as other:
        other.exec_driver_sql("ROLLBACK")
        other.exec_driver_sql("BEGIN IMMEDIATE")  # nobody else can commit now
        answers = []
        asking = threading.Thread(target=lambda: answers.append(gateway.chat()))
        asking.start()
        until(lambda: Page(gateway).value("reef_requests_under_way") == 1)
        asking.join(0.3)
        other.exec_driver_sql("ROLLBACK")
    asking.join()
    assert float(answers[0].headers["x-reef-overhead-ms"]) > 290
    assert Page(gateway).value("reef_commit_seconds_sum") > 0.29


@pytest.mark.parametrize("reply", [Reply(silent=True, end="close"), whole({"error": {}}, status=500)])
def test_errors_say_the_overhead_as_well_and_one_that_the_upstream_says_is_not_passed_on(
    gateway: Service, fake: FakeUpstream, reply: Reply
) -> None:
    reply.headers["x-reef-overhead-ms"] = "99999"
    fake.replies = [reply]
    assert 0 < float(gateway.chat().headers["x-reef-overhead-ms"]) < 5000


def test_what_is_refused_is_counted_by_the_kind_of_its_error_and_what_is_not_stored_too(tmp_path: Path, fake: FakeUpstream) -> None:
    with service(tmp_path, upstream=fake.url, auth=Auth(token="t")) as gateway:
        token = {"authorization": "Bearer t"}
        gateway.chat()
        gateway.chat(b"[", **token)
        gateway.chat(path="/s/../x/v1/chat/completions", **token)
        with gateway.state.engine.begin() as tx:
            tx.exec_driver_sql("ALTER TABLE records RENAME TO elsewhere")
        assert gateway.chat(**token).status == 507
        page = Page(gateway, **token)
    assert page.value("reef_refused_total", type="authentication_error") == 1
    assert page.value("reef_refused_total", type="invalid_request_error") == 2
    assert page.value("reef_not_stored_total") == 1
    assert page.value("reef_writer_up") == 0


def test_only_the_scope_read_may_look_and_no_token_of_one_scenario(tmp_path: Path, fake: FakeUpstream) -> None:
    with service(tmp_path, upstream=fake.url, auth=Auth(token="root", trial="trial")) as gateway:
        bound = issue(gateway, "bound", "read", scenario="default")
        for token, status in (
            (issue(gateway, "reader", "read"), 200),
            (ADMIN, 200),
            (issue(gateway, "other", "infer", "report", "harness"), 403),
            (bound, 403),
            ({"x-api-key": "trial"}, 403),
            ({"x-api-key": "wrong"}, 401),
            ({}, 401),
        ):
            assert gateway.request("GET", "/metrics", headers=token).status == status


def test_the_newer_format_is_given_to_who_asks_for_it(gateway: Service) -> None:
    gateway.chat()
    answer = gateway.request("GET", "/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert "reef_requests" in {family.name for family in openmetrics(answer.raw.decode())}


def test_nothing_a_caller_makes_up_becomes_a_label_without_bound() -> None:
    counted = metrics.Metrics()
    for number in range(3 * metrics.MOST_SCENARIOS):
        for _ in range(2):
            counted.exchange(record(scenario=f"s{number}", session=f"run{number}", model=f"m{number}"), own_s=0.001, commit_s=0.001)
    body, _ = metrics.Page(counted.snapshot(), waiting=0, storing=True, size_bytes=1).render("")
    samples = [sample for family in text_string_to_metric_families(body.decode()) for sample in family.samples]
    counts = {s.labels["scenario"]: s.value for s in samples if s.name == "reef_requests_total"}
    assert len(counts) == metrics.MOST_SCENARIOS + 1
    assert counts[metrics.OTHER] == 2 * 2 * metrics.MOST_SCENARIOS
    assert counts["s0"] == 2
    names = {name for sample in samples for name in sample.labels}
    assert names <= {"process", "scenario", "upstream", "dialect", "end", "type", "le", "implementation", "major", "minor", "version"}
    assert b"secret" not in body


def record(*, scenario: str, session: str, model: str) -> Record:
    return Record(
        id="rec_1", scenario=scenario, session=session, release=None, origin=Origin.USER, dialect="chat",
        upstream="http://me:secret@host/v1", model=model, end=End.COMPLETE, status=200, streamed=False, request={}, response={},
        usage={}, started_at=0.0, first_byte_ms=1.0, duration_ms=2.0,
    )  # fmt: skip


def test_upstreams_that_make_up_names_are_bounded_too() -> None:
    counted = metrics.Metrics()
    for number in range(metrics.MOST_SERIES + 200):
        counted.exchange(record(scenario="a", session="s", model="m")._replace(upstream=f"u{number}"), own_s=0.001, commit_s=0.001)
    assert len(counted.series) == metrics.MOST_SERIES + 1
    assert sum(counted.series["a", metrics.OTHER, "chat"].own.counts) == 200


def test_a_copy_stays_as_it_was() -> None:
    counted = metrics.Metrics()
    counted.exchange(record(scenario="a", session="s", model="m"), own_s=0.001, commit_s=0.001)
    copy = counted.snapshot()
    counted.exchange(record(scenario="a", session="s", model="m"), own_s=0.001, commit_s=0.001)
    counted.refuse("x")
    assert sum(copy.series[next(iter(copy.series))].own.counts) == 1
    assert copy.refused == {}


def test_the_size_of_the_store_is_known_on_both_databases(tmp_path: Path, fake: FakeUpstream, database_url: str) -> None:
    with service(tmp_path, upstream=fake.url, storage_section={"url": database_url}) as gateway:
        size = Page(gateway).value("reef_store_bytes")
        assert size > 10_000
        gateway.chat({**CHAT, "noise": secrets.token_hex(500_000)})
        assert Page(gateway).value("reef_store_bytes") == size  # not looked up again so soon
