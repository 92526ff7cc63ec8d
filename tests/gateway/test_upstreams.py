"""Several upstreams behind one gateway: aliases, fallback, retries; what was asked for, and who really answered."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reef.types import End
from tests.support import dialects
from tests.support.gateway import CHAT, Service, service, until
from tests.support.upstream import FakeUpstream, Reply, chunk, message, stream, upstream, whole

GONE = "http://127.0.0.1:9/v1"
"""Nobody listens at the discard port."""
QUICK = {"retry_wait_s": 0.05}


@pytest.fixture
def two() -> Iterator[tuple[FakeUpstream, FakeUpstream]]:
    with upstream() as first, upstream() as second:
        yield first, second


@contextlib.contextmanager
def behind(
    folder: Path,
    first: FakeUpstream | str,
    second: FakeUpstream | str,
    *,
    models: dict[str, Any] | None = None,
    of_a: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[Service]:
    """A gateway in front of upstreams called ``a`` and ``b``; ``options`` are both's."""
    urls = {"a": first if isinstance(first, str) else first.url, "b": second if isinstance(second, str) else second.url}
    sections = {name: {"url": url, "model": f"model-{name}", **options} for name, url in urls.items()}
    sections["a"] |= of_a or {}
    with service(folder, upstream="", upstreams=sections, models=models or {"smart": ["a", "b/other"]}) as gateway:
        yield gateway


def ask(gateway: Service, model: str, **more: Any) -> Any:
    return gateway.chat({**CHAT, "model": model, **more})


def test_the_model_picks_an_alias_or_an_upstream_by_name_and_else_the_first(tmp_path: Path, two: tuple[FakeUpstream, FakeUpstream]) -> None:
    first, second = two
    with behind(tmp_path, first, second, models={"smart": ["b/other"], "b/odd": "a", "plain": ["a"]}) as gateway:
        for model in ("smart", "b/gpt/x", "b/odd", "plain", "reef", "m", "c/m", "b/"):
            assert ask(gateway, model).status == 200
        assert gateway.chat({"messages": CHAT["messages"]}).status == 200
        assert gateway.chat({**CHAT, "model": ["odd"]}).status == 200
    assert [seen.body.get("model") for seen in second.seen] == ["other", "gpt/x"]
    assert [seen.body.get("model") for seen in first.seen] == ["model-a", "model-a", "model-a", "m", "c/m", "b/", "model-a", ["odd"]]


def test_the_callers_own_bytes_reach_the_default_untouched(tmp_path: Path, two: tuple[FakeUpstream, FakeUpstream]) -> None:
    raw = b'{"messages" : [{"role":"user","content":"hi"}],  "model": "mine"}'
    with behind(tmp_path, *two) as gateway:
        gateway.request("POST", "/v1/chat/completions", raw)
    assert two[0].seen[0].raw == raw


@pytest.mark.parametrize(("model", "asked"), [("mine", "mine"), ("reef", "model-a"), ("smart", "other")])
def test_a_long_history_that_grows_reaches_whoever_answers_and_the_record_as_it_is(
    tmp_path: Path, two: tuple[FakeUpstream, FakeUpstream], model: str, asked: str
) -> None:
    """The gateway parses only what is new of it, unless it must write it anew."""
    first, second = two
    sent, turns = [], [{"role": "system", "content": "Read before you write. " * 2000}]
    with behind(tmp_path, GONE if model == "smart" else first, second) as gateway:
        for number in range(5):
            turns = [*turns, {"role": "user", "content": f"{number}"}]
            sent.append({"messages": turns, "stream": number % 2 == 1, "model": model})
            answer = gateway.chat(sent[-1])
            assert answer.status == 200
            assert gateway.record(answer).request == sent[-1]
    assert [seen.body for seen in (second if model == "smart" else first).seen] == [{**body, "model": asked} for body in sent]


@pytest.mark.parametrize(
    "failure",
    [whole({"error": {"message": "slow"}}, status=429), whole({}, status=503), Reply(silent=True, end="close"), None],
    ids=["429", "503", "reset", "refused"],
)
def test_a_failing_upstream_is_followed_by_the_next_and_the_record_says_who_answered(
    tmp_path: Path, two: tuple[FakeUpstream, FakeUpstream], failure: Reply | None
) -> None:
    first, second = two
    first.replies = [failure] if failure else []
    with behind(tmp_path, first if failure else GONE, second) as gateway:
        for streamed in (False, True):
            first.replies = [failure] if failure else []
            answer = ask(gateway, "smart", stream=streamed)
            record = gateway.record(answer)
            assert (answer.status, record.end, record.upstream, record.model) == (200, End.COMPLETE, second.url, "other")
            assert record.request["model"] == "smart"
    assert [seen.body["model"] for seen in second.seen] == ["other", "other"]
    assert len(first.seen) == (2 if failure else 0)


def test_an_upstream_that_says_nothing_in_time_is_followed_by_the_next(tmp_path: Path, two: tuple[FakeUpstream, FakeUpstream]) -> None:
    first, second = two
    first.replies = [Reply(silent=True, end="hang")]
    with behind(tmp_path, first, second, of_a={"timeout_s": 0.2}) as gateway:
        assert gateway.record(ask(gateway, "smart")).upstream == second.url
    assert until(first.seen[0].hung_up.is_set)


def test_a_refusal_of_the_request_itself_is_passed_on_and_not_tried_elsewhere(
    tmp_path: Path, two: tuple[FakeUpstream, FakeUpstream]
) -> None:
    first, second = two
    first.replies = [whole({"error": {"message": "no such tool"}}, status=400)]
    with behind(tmp_path, first, second, retries=2, **QUICK) as gateway:
        answer = ask(gateway, "smart")
    assert (answer.status, answer.json["error"]["message"], second.seen) == (400, "no such tool", [])


def test_when_all_fail_the_error_names_every_try(tmp_path: Path, two: tuple[FakeUpstream, FakeUpstream]) -> None:
    first, _ = two
    first.replies = [whole({}, status=500), whole({}, status=502)]
    with behind(tmp_path, first, GONE, retries=1, **QUICK) as gateway:
        answer = ask(gateway, "smart")
        assert answer.status == 502
        said = answer.error["message"]
        assert said.startswith("no upstream answered: a: answered 500; a: answered 502; b: http://127.0.0.1:9/v1 cannot be reached")
        assert said.count("b: ") == 2
        record = gateway.record(answer)
        assert (record.end, record.upstream, record.error) == (End.UPSTREAM_ERROR, first.url, said)


def test_when_all_refuse_for_now_the_client_hears_429_and_when_to_come_again(
    tmp_path: Path, two: tuple[FakeUpstream, FakeUpstream]
) -> None:
    for server, after in zip(two, ("30", "20"), strict=True):
        server.replies = [whole({}, status=429, headers={"retry-after": after})]
    with behind(tmp_path, *two) as gateway:
        answer = ask(gateway, "smart")
    assert (answer.status, answer.headers["retry-after"]) == (429, "20")


def test_retries_respect_retry_after_and_the_last_word_of_a_lone_upstream_is_passed_on(
    tmp_path: Path, two: tuple[FakeUpstream, FakeUpstream]
) -> None:
    first, second = two
    with behind(tmp_path, first, second, retries=2, retry_wait_s=2) as gateway:
        first.replies = [whole({}, status=429, headers={"retry-after": "1"})]
        started = time.monotonic()
        assert ask(gateway, "m").status == 200
        assert time.monotonic() - started >= 1
        assert len(first.seen) == 2
        first.seen.clear()
        first.replies = [whole({"error": {"message": "much later"}}, status=429, headers={"retry-after": "60"})]
        answer = ask(gateway, "m")
        assert (answer.status, answer.headers["retry-after"], len(first.seen)) == (429, "60", 1)
        first.seen.clear()
        first.replies = [whole({"error": {"message": f"try {number}"}}, status=500) for number in range(3)]
        answer = ask(gateway, "m")
        assert (answer.status, answer.json["error"]["message"], len(first.seen)) == (500, "try 2", 3)
    assert second.seen == []


def test_nothing_is_tried_again_once_an_answer_has_begun(tmp_path: Path, two: tuple[FakeUpstream, FakeUpstream]) -> None:
    first, second = two
    first.replies = [stream(chunk({"content": "hel"}), end="reset"), Reply(pieces=[b'{"id"'], end="close")]
    with behind(tmp_path, first, second, retries=3, **QUICK) as gateway:
        broken = ask(gateway, "smart", stream=True)
        assert b"broke off" in broken.raw and b"[DONE]" not in broken.raw
        assert gateway.record(broken).end is End.TRUNCATED
        assert ask(gateway, "smart").status == 502
    assert (len(first.seen), second.seen) == (2, [])


def test_a_client_that_leaves_ends_the_tries_at_once(tmp_path: Path, two: tuple[FakeUpstream, FakeUpstream]) -> None:
    first, second = two
    first.replies = [whole({}, status=503, headers={"retry-after": "100"})]
    with behind(tmp_path, first, second, retries=1, retry_wait_s=200) as gateway:
        connection = gateway.connect()
        connection.request("POST", "/v1/chat/completions", b'{"model": "smart", "messages": []}', {"x-reef-session": "left"})
        until(lambda: first.seen)
        connection.close()
        (record,) = until(lambda: gateway.store.session_records("default", "left"))
        assert record.end is End.CLIENT_GONE
    assert (len(first.seen), second.seen) == (1, [])


def test_the_list_of_models_has_aliases_and_every_upstreams_models(tmp_path: Path, two: tuple[FakeUpstream, FakeUpstream]) -> None:
    with behind(tmp_path / "1", *two) as gateway:
        assert [model["id"] for model in gateway.request("GET", "/v1/models").json["data"]] == ["smart", "fake-1", "b/fake-1"]
        status = gateway.request("GET", "/reef/status").json
        assert [(one["name"], one["reachable"]) for one in status["upstreams"]] == [("a", True), ("b", True)]
        assert (status["aliases"], status["upstream"]["url"]) == (["smart"], two[0].url)
    with behind(tmp_path / "2", GONE, two[1]) as gateway:
        assert [model["id"] for model in gateway.request("GET", "/v1/models").json["data"]] == ["smart", "b/fake-1"]


def test_each_upstream_gets_its_own_key_and_nothing_of_the_callers(
    tmp_path: Path, two: tuple[FakeUpstream, FakeUpstream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KEY_A", "key-of-a")
    first, second = two
    first.replies = [whole({}, status=503)]
    sections = {"a": {"url": first.url, "key_env": "TEST_KEY_A"}, "b": {"url": second.url}}
    with service(tmp_path, upstream="", upstreams=sections, models={"smart": ["a", "b"]}) as gateway:
        body = {**CHAT, "model": "smart", "api_base": "http://127.0.0.1:9", "base_url": "http://127.0.0.1:9", "api_key": "theirs"}
        answer = gateway.chat(body, authorization="Bearer theirs", host="127.0.0.1:9", x_forwarded_host="127.0.0.1:9")
        assert answer.status == 200
    assert first.seen[0].headers["authorization"] == "Bearer key-of-a"
    assert "authorization" not in second.seen[0].headers


def test_those_that_speak_the_callers_dialect_go_first(tmp_path: Path) -> None:
    with upstream(dialects.answer) as chat, upstream(dialects.answer) as messages:
        sections: dict[str, Any] = {"chat": {"url": chat.url}, "claude": {"kind": "anthropic", "url": messages.url}}
        with service(tmp_path, upstream="", upstreams=sections, models={"smart": ["chat", "claude"]}) as gateway:
            asked = {"model": "smart", "max_tokens": 9, "messages": CHAT["messages"]}
            assert gateway.record(gateway.request("POST", "/v1/messages", asked)).upstream == messages.url
            assert gateway.record(ask(gateway, "smart")).upstream == chat.url


def test_a_slow_upstream_holds_up_nobody_else(tmp_path: Path, two: tuple[FakeUpstream, FakeUpstream]) -> None:
    go = threading.Event()
    first, second = two
    first.replies = [Reply(pieces=[go, b"{}"])]
    with behind(tmp_path, first, second) as gateway:
        waiting = threading.Thread(target=ask, args=(gateway, "m"))
        waiting.start()
        until(lambda: first.seen)
        assert ask(gateway, "b/x").json == message()
        go.set()
        waiting.join(10)
