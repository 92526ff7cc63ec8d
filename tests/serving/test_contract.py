"""What the contract of an upstream shows as an example works as it stands there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from reef import plugins
from reef.config import KINDS
from reef.serving.passthrough import OpenAIUpstream
from reef.serving.upstream import Answer, Upstream, WholeAnswer
from reef.types import End
from tests.support.gateway import CHAT, service
from tests.support.upstream import upstream


class Polite(OpenAIUpstream):
    """For a server with an odd greeting in front of its API."""

    async def post(self, path: str, body: bytes, *, headers: Mapping[str, str], query: bytes = b"") -> Answer:
        return await super().post("/please" + path, body, headers=headers, query=query)


class Parrot(Upstream):
    """Answers by itself."""

    async def post(self, path: str, body: bytes, *, headers: Mapping[str, str], query: bytes = b"") -> Answer:
        said = json.loads(body)["messages"][-1]["content"]
        message = {"role": "assistant", "content": said}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        whole = {"id": "parrot", "object": "chat.completion", "model": self.model, "choices": [choice]}
        return WholeAnswer(json.dumps(whole).encode(), where=self.where)

    async def models(self) -> Answer:
        return WholeAnswer(b'{"object": "list", "data": [{"id": "parrot", "object": "model"}]}', where=self.where)

    async def reachable(self, *, timeout_s: float = 2.0) -> bool:
        return True


def test_every_kind_that_is_shipped_is_there_by_its_name() -> None:
    assert set(KINDS) <= set(plugins.names("reef.upstreams"))
    assert all(issubclass(plugins.load("reef.upstreams", kind), Upstream) for kind in KINDS)


def test_a_class_of_a_third_party_serves_as_an_upstream(tmp_path: Path) -> None:
    with upstream() as server:
        sections = {"bird": {"kind": f"{__name__}:Parrot"}, "polite": {"kind": f"{__name__}:Polite", "url": server.url}}
        with service(tmp_path, upstream="", upstreams=sections) as gateway:
            answer = gateway.chat()
            assert answer.json["choices"][0]["message"]["content"] == "hi"
            record = gateway.record(answer)
            assert (record.end, record.upstream) == (End.COMPLETE, "bird")
            assert gateway.chat({**CHAT, "model": "polite/m"}).status == 200
            assert [model["id"] for model in gateway.request("GET", "/v1/models").json["data"]] == ["parrot", "polite/fake-1"]
            refused = gateway.request("POST", "/v1/messages", {**CHAT, "max_tokens": 9})
            assert (refused.status, refused.json["error"]["type"]) == (400, "invalid_request_error")
        assert [seen.path for seen in server.seen][:1] == ["/v1/please/chat/completions"]
