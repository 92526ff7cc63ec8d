"""An agent that asks for longer answers than a small model has room for gets what there is room for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import dialects
from tests.support.gateway import service
from tests.support.upstream import Reply, Seen, upstream, whole

CONTEXT = 8192
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
BOUND = {"chat": "max_completion_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}


def refusing(bound: str, *, models: Any) -> Callable[[Seen], Reply]:
    """Answers as vLLM does where an answer may be longer than half of the context."""

    def answer(seen: Seen) -> Reply:
        if seen.path.endswith("/models"):
            return whole(models)
        if seen.body.get(bound, 0) > CONTEXT // 2 or "nonsense" in seen.body:
            return whole({"error": {"message": "it cannot be greater", "type": "BadRequestError", "code": 400}}, status=400)
        return dialects.answer(seen)

    return answer


def body(name: str, **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": "hi"}]
    return {"model": "m", ("input" if name == "responses" else "messages"): said, **more}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", list(PATHS))
def test_what_is_too_much_is_asked_once_more_for_less(tmp_path: Path, name: str, streamed: bool) -> None:
    asked = body(name, stream=streamed, **{BOUND[name]: 16_384})
    models = {"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": CONTEXT}]}
    with (
        upstream(refusing(BOUND[name], models=models)) as fake,
        service(tmp_path, upstream=fake.url, upstream_section={"kind": "vllm"}) as gateway,
    ):
        answer = gateway.chat(asked, path=PATHS[name])
        assert answer.status == 200
        sent = [seen.body for seen in fake.seen if seen.method == "POST"]
        assert sent[0] == asked
        assert sent[1].get(BOUND[name]) == (CONTEXT // 4 if name == "messages" else None)
        assert len(sent) == 2
        assert gateway.record(answer).request == asked, "the record keeps what the caller sent"


@pytest.mark.parametrize(
    "models", [{"object": "list", "data": [{"id": "m"}]}, {"data": None}, [], {"data": [{"id": "m", "max_model_len": CONTEXT}]}]
)
def test_what_is_refused_for_another_reason_is_passed_on(tmp_path: Path, models: Any) -> None:
    with (
        upstream(refusing("max_tokens", models=models)) as fake,
        service(tmp_path, upstream=fake.url, upstream_section={"kind": "vllm"}) as gateway,
    ):
        answer = gateway.chat(body("chat", nonsense=1, max_tokens=100))
        assert answer.status == 400
        assert answer.json["error"]["message"] == "it cannot be greater"
        assert gateway.record(answer).end == "upstream_error"
        assert len([seen for seen in fake.seen if seen.method == "POST"]) == 1
