"""Token capture: ids and log-probabilities are asked for, kept with the record, and taken out of what the client sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reef.gateway.capture import Capture
from reef.types import End, TokenTrace
from tests.support.gateway import CHAT, Service, service
from tests.support.upstream import FakeUpstream, message, stream, upstream, whole

PROMPT, COMPLETION, LOGPROBS = [1, 2, 3], [7, 8], [-0.5, -1.25]
TRACE = TokenTrace((1, 2, 3), (7, 8), (-0.5, -1.25))


@pytest.fixture
def fake() -> Iterator[FakeUpstream]:
    with upstream() as server:
        yield server


@pytest.fixture
def gateway(tmp_path: Path, fake: FakeUpstream) -> Iterator[Service]:
    section = {"kind": "vllm"}
    with service(tmp_path, upstream=fake.url, upstream_section=section, storage_section={"tokens": "always"}) as running:
        yield running


def logprobs(values: list[float]) -> dict[str, Any]:
    return {"content": [{"token": "t", "logprob": value, "bytes": None, "top_logprobs": []} for value in values]}


def answer() -> dict[str, Any]:
    """As vLLM answers with `return_token_ids` and `logprobs`."""
    full = message()
    full["choices"][0] |= {"logprobs": logprobs(LOGPROBS), "token_ids": COMPLETION}
    return {**full, "prompt_token_ids": PROMPT}


def events() -> bytes:
    """The same as a stream: the prompt's ids in the first chunk, the others with their texts."""
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None}], "prompt_token_ids": PROMPT},
        {"choices": [{"index": 0, "delta": {"content": "hé"}, "logprobs": logprobs(LOGPROBS[:1]), "token_ids": COMPLETION[:1]}]},
        {
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": "y"},
                    "logprobs": logprobs(LOGPROBS[1:]),
                    "token_ids": COMPLETION[1:],
                    "finish_reason": "stop",
                }
            ]
        },
    ]
    data = [json.dumps({**head, **chunk}, ensure_ascii=False) for chunk in chunks]
    return "".join(f"data: {text}\n\n" for text in [*data, "[DONE]"]).encode()


def test_tokens_are_asked_for_kept_and_not_shown(gateway: Service, fake: FakeUpstream) -> None:
    fake.replies = [whole(answer())]
    shown = gateway.chat()
    sent = fake.seen[-1].body
    assert sent == {**CHAT, "return_token_ids": True, "logprobs": True}
    record = gateway.record(shown)
    assert record.tokens == TRACE
    assert record.request == CHAT
    assert record.response == shown.json
    plain = message()
    plain["choices"][0]["logprobs"] = None
    assert shown.json == plain


@pytest.mark.parametrize("streamed", [True, False])
def test_which_weights_made_which_tokens_is_asked_for_and_kept_where_a_swap_fell_into_the_answer(
    gateway: Service, fake: FakeUpstream, streamed: bool
) -> None:
    def said(spans: Any) -> Any:
        if not streamed:
            fake.replies = [whole({**answer(), "model": "s.4", "reef_weights": spans})]
        else:
            lines = events().replace(b'"model": "m"', b'"model": "s.4"').splitlines(keepends=True)
            last = [number for number, line in enumerate(lines) if line.startswith(b"data: {")][-1]
            lines[last] = lines[last][:-2] + b', "reef_weights": ' + json.dumps(spans).encode() + b"}\n"
            fake.replies = [stream(b"".join(lines))]
        shown = gateway.chat({**CHAT, "stream": streamed})
        assert fake.seen[-1].headers["x-reef-weights"] == "1"
        assert b"reef_weights" not in shown.raw
        record = gateway.record(shown)
        assert record.response["model"] == "s.4"
        return record.tokens

    assert said([[0, "s.4"]]) == TRACE
    assert said([[0, "s.4"], [1, "s.5"]]) == replace(TRACE, served=("s.4", "s.5"), starts=(0, 1))
    assert said([[0, "s.5"]]) == replace(TRACE, served=("s.5",), starts=(0,)), "named before the swap, made after it"
    assert said([[0, "s.4"], [2, "s.5"]]) == TRACE, "the second made nothing that was said"
    for odd in ([[1, "s.4"]], [[0, "s.4"], [0, "s.5"]], 7, [7], [["0", "s.4"]]):
        assert said(odd) is None, "of such tokens nobody knows what made them"


def test_a_trace_over_a_swap_is_given_back_as_json_and_others_are_as_before(gateway: Service, fake: FakeUpstream) -> None:
    fake.replies = [whole({**answer(), "reef_weights": spans}) for spans in ([[0, "fake-1"]], [[0, "a.1"], [1, "a.2"]])]
    plain, swapped = (gateway.request("GET", f"/reef/records/{gateway.chat().receipt}").json["tokens"] for _ in range(2))
    assert plain == {"prompt_ids": PROMPT, "completion_ids": COMPLETION, "logprobs": LOGPROBS}
    assert swapped == {**plain, "served": ["a.1", "a.2"], "starts": [0, 1]}


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_stream_split_anywhere_is_captured_the_same(gateway: Service, fake: FakeUpstream, size: int) -> None:
    data = events()
    fake.replies = [stream(*(data[start : start + size] for start in range(0, len(data), size)))]
    shown = gateway.chat({**CHAT, "stream": True})
    assert b"token_ids" not in shown.raw
    assert b'"logprob"' not in shown.raw
    assert shown.raw.endswith(b"data: [DONE]\n\n")
    record = gateway.record(shown)
    assert record.end is End.COMPLETE
    assert record.response["choices"][0]["message"]["content"] == "héy"
    assert record.tokens == TRACE


def test_what_the_client_asked_for_it_gets(gateway: Service, fake: FakeUpstream) -> None:
    fake.replies = [whole(answer()), whole(answer())]
    assert gateway.chat({**CHAT, "logprobs": True}).json["choices"][0]["logprobs"] == logprobs(LOGPROBS)
    shown = gateway.chat({**CHAT, "return_token_ids": True})
    assert shown.json["prompt_token_ids"] == PROMPT
    assert shown.json["choices"][0]["token_ids"] == COMPLETION
    assert shown.json["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("change", [{"n": 2}, {"n": 0}])
def test_several_choices_are_passed_through(gateway: Service, fake: FakeUpstream, change: dict[str, int]) -> None:
    fake.replies = [whole()]
    gateway.chat({**CHAT, **change})
    assert fake.seen[-1].body == {**CHAT, **change}


def test_a_stream_that_breaks_off_has_no_tokens(gateway: Service, fake: FakeUpstream) -> None:
    data = events()
    fake.replies = [stream(data[: len(data) // 2], end="reset")]
    record = gateway.record(gateway.chat({**CHAT, "stream": True}))
    assert (record.end, record.tokens) == (End.TRUNCATED, None)


def test_an_upstream_that_gives_none_has_its_answer_passed_on(gateway: Service, fake: FakeUpstream) -> None:
    fake.replies = [whole(), whole({"error": {"message": "no logprobs here"}}, status=400)]
    record = gateway.record(gateway.chat())
    assert (record.end, record.tokens) == (End.COMPLETE, None)
    assert gateway.chat().json == {"error": {"message": "no logprobs here"}}


@pytest.mark.parametrize("tokens", ["auto", "never"])
def test_without_need_requests_are_passed_on_as_they_are(tmp_path: Path, fake: FakeUpstream, tokens: str) -> None:
    with service(tmp_path, upstream=fake.url, upstream_section={"kind": "vllm"}, storage_section={"tokens": tokens}) as gateway:
        fake.replies = [whole()]
        gateway.chat()
        assert fake.seen[-1].body == CHAT
        assert "x-reef-weights" not in fake.seen[-1].headers


@pytest.mark.parametrize("odd", [{"prompt_token_ids": "x"}, {"prompt_token_ids": [-1]}, {"choices": 3}, {"choices": [{"token_ids": [1]}]}])
def test_odd_answers_give_no_tokens_and_no_error(odd: dict[str, Any]) -> None:
    capture = Capture(CHAT)
    capture.feed(b"data: " + json.dumps(odd).encode() + b"\n\n")
    assert capture.trace() is None
