"""What a caller and `reef status` are told while the engine is not there."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from reef import process
from reef.serving.engine import notes
from reef.serving.engine.notes import Note
from tests.support.gateway import CHAT, service

NOWHERE = "http://127.0.0.1:1"


def told(state: str, *, seconds: float = 0.0, **further: object) -> Note:
    return Note(state, time.time() - seconds, "tiny", NOWHERE, **further)  # type: ignore[arg-type]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_while_the_engine_starts_is_told_to_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    run = tmp_path / ".reef" / "run"
    run.mkdir(parents=True)
    notes.write(run, told("starting", seconds=23, start_s=30.0))
    monkeypatch.setenv(process.ENGINE_NOTE, str(run / notes.FILE))
    with service(tmp_path, upstream="", serving={"vllm": {"attach": NOWHERE, "name": "tiny"}}) as gateway:
        answer = gateway.chat({**CHAT, "stream": stream})
        assert answer.status == 503
        assert re.fullmatch(r"the engine is starting, 2\d s so far", answer.error["message"])
        assert 2 <= int(answer.headers["retry-after"]) <= 7
        assert gateway.record(answer).end == "upstream_error"
        assert gateway.request("GET", "/reef/status").json["engine"]["state"].startswith("starting, 2")


def test_without_an_engine_of_ours_an_upstream_that_is_away_is_just_that(tmp_path: Path) -> None:
    with service(tmp_path, upstream=NOWHERE + "/v1", upstream_section={"kind": "vllm"}) as gateway:
        assert gateway.chat().status == 502
        assert "engine" not in gateway.request("GET", "/reef/status").json


def test_a_note_survives_being_written_and_a_broken_one_is_none(tmp_path: Path) -> None:
    note = told("ready", pid=7, start_s=31.5)
    notes.write(tmp_path, note)
    assert notes.read(tmp_path / notes.FILE) == note
    (tmp_path / notes.FILE).write_text('{"state": "rea')
    assert notes.read(tmp_path / notes.FILE) is None
    assert notes.described(tmp_path) is None


def test_the_wait_is_what_is_left_of_a_usual_start_and_never_more_than_clients_accept() -> None:
    assert told("starting", seconds=25, start_s=30.0).retry_after_s == pytest.approx(5, abs=1)
    assert told("starting", seconds=90, start_s=30.0).retry_after_s == 2
    assert told("starting", start_s=500.0).retry_after_s == notes.MOST_RETRY_S
    assert told("fetching").retry_after_s == notes.MOST_RETRY_S


def test_the_person_at_the_terminal_is_told_once_when_it_is_ready(tmp_path: Path) -> None:
    news = notes.News(tmp_path)
    assert news.line() == ""
    notes.write(tmp_path, told("starting"))
    assert news.line() == ""
    notes.write(tmp_path, told("ready", start_s=31.4))
    assert news.line() == "the engine is ready, 31 s after its start: tiny answers"
    notes.write(tmp_path, told("ready", start_s=31.4, pid=7))
    assert news.line() == news.line() == ""
    notes.write(tmp_path, told("silent", detail="refused"))
    assert news.line() == f"the engine at {NOWHERE} gives no sign of life: refused"
    notes.write(tmp_path, told("ready"))
    assert news.line() == "the engine is ready: tiny answers"
