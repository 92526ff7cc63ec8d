"""Feedback is stored once, and quotes what is there."""

from __future__ import annotations

import threading

from tests.support.gateway import Service


def test_a_report_quotes_receipts_oldest_first(gateway: Service) -> None:
    receipts = [gateway.chat().receipt for _ in range(3)]
    body = {"references": [receipts[2], receipts[0], receipts[2]], "score": 0, "feedback": {"why": ["wrong", None]}, "metadata": {"a": 1}}
    answer = gateway.request("POST", "/reef/report", body)
    assert answer.status == 201
    report = gateway.store.report(answer.json["agent_record_id"])
    assert report.references == (receipts[0], receipts[2])
    assert (report.score, report.feedback, report.metadata) == (0.0, {"why": ["wrong", None]}, {"a": 1})
    assert gateway.request("GET", f"/reef/reports/{report.id}").json["references"] == [receipts[0], receipts[2]]


def test_a_report_on_a_session_quotes_all_of_its_records(gateway: Service) -> None:
    receipts = [gateway.chat(x_reef_session="run").receipt for _ in range(3)]
    gateway.chat(x_reef_session="other")
    answer = gateway.request("POST", "/reef/report", {"session": "run", "score": 1.0, "feedback": "good"})
    assert answer.json["references"] == receipts


def test_the_same_id_is_stored_once_and_other_content_is_a_conflict(gateway: Service) -> None:
    receipt = gateway.chat(x_reef_session="run").receipt
    body = {"agent_record_id": "my-report", "references": [receipt], "score": 0.5}
    first, second = (gateway.request("POST", "/reef/report", body) for _ in range(2))
    assert (first.status, second.status) == (201, 200)
    assert {**first.json, "created": None} == {**second.json, "created": None}
    answer = gateway.request("POST", "/reef/report", {**body, "score": 0.6})
    assert (answer.status, answer.error["type"]) == (409, "conflict_error")
    assert gateway.store.counts()["reports"] == 1


def test_reports_wait_for_each_recipe_until_it_consumed_them(gateway: Service) -> None:
    receipt = gateway.chat().receipt
    ids = [gateway.request("POST", "/reef/report", {"references": [receipt], "score": n}).json["agent_record_id"] for n in range(3)]
    gateway.state.controller.consume("default", "cordis", ids[:1])
    assert [report.id for report in gateway.store.unconsumed_reports("default", "cordis")] == ids[1:]
    assert [report.id for report in gateway.store.unconsumed_reports("default", "other", limit=2)] == ids[:2]
    assert [report.id for report in gateway.store.reports("default")] == ids[::-1]


def test_a_report_needs_no_thread_of_its_own(gateway: Service) -> None:
    receipt = gateway.chat().receipt
    before = set(threading.enumerate())
    assert gateway.request("POST", "/reef/report", {"references": [receipt], "score": 1}).status == 201
    assert not [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("AnyIO")]


def test_a_session_can_be_registered_and_updated(gateway: Service) -> None:
    for release in (1, 2):
        answer = gateway.request("POST", "/reef/sessions", {"session": "run", "adapter": "pi", "release": release})
        assert answer.status == 201
    assert gateway.store.counts()["sessions"] == 1
    refused = gateway.request("POST", "/reef/sessions", {"session": "run", "adapter": "pi", "relaese": 1})
    assert "relaese: unknown field" in refused.error["message"]


def test_records_are_listed_page_by_page(gateway: Service) -> None:
    receipts = [gateway.chat(x_reef_session=f"run{n % 2}").receipt for n in range(5)]
    first = gateway.request("GET", "/reef/scenarios/default/records?limit=2").json["records"]
    rest = gateway.request("GET", f"/reef/scenarios/default/records?after={first[-1]['id']}").json["records"]
    assert [record["id"] for record in first + rest] == receipts
    odd = gateway.request("GET", "/reef/scenarios/default/records?session=run1").json["records"]
    assert [record["id"] for record in odd] == receipts[1::2]
    assert gateway.request("GET", "/reef/scenarios/default/records?origin=trial").json["records"] == []


def test_the_api_page_lists_every_route(gateway: Service) -> None:
    paths = gateway.request("GET", "/openapi.json").json["paths"]
    for path in ("/v1/chat/completions", "/s/{scenario}/{session}/v1/chat/completions", "/v1/models", "/reef/report", "/healthz"):
        assert path in paths
    assert "requestBody" in paths["/v1/chat/completions"]["post"]
