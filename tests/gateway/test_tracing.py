"""Traces: one client span for each exchange, after the conventions, exported beside the request, and without a word of what was said."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, server_attributes
from opentelemetry.semconv.schemas import Schemas

from reef import config as configuration
from reef.errors import ConfigError
from reef.gateway.tracing import CONVENTIONS, PARAMETERS, PROVIDERS, Tracing
from tests.support import dialects
from tests.support.gateway import CHAT, Service, service
from tests.support.upstream import FakeUpstream, greeting, stream, upstream

SECRET = "the word nobody may hear"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Takes spans by OTLP over HTTP."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    @property
    def spans(self) -> list[Span]:
        """All of them, in the order they began."""
        found = [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        return sorted(found, key=lambda span: span.start_time_unix_nano)


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


@pytest.fixture
def fake() -> Iterator[FakeUpstream]:
    with upstream(lambda seen: server.replies.pop(0) if server.replies else dialects.answer(seen)) as server:
        yield server


def traced(tmp_path: Path, fake: FakeUpstream, collector: Collector) -> Any:
    section = {"dialects": ["chat", "messages", "responses"]}
    return service(tmp_path, upstream=fake.url, upstream_section=section, telemetry={"otlp_endpoint": collector.url})


def attributes(span: Span) -> dict[str, Any]:
    found = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


def test_an_exchange_is_one_span_after_the_conventions(tmp_path: Path, fake: FakeUpstream, collector: Collector) -> None:
    with traced(tmp_path, fake, collector) as gateway:
        body = {"model": "m", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 9, "temperature": 0.5}
        answers = [
            gateway.chat(body, x_reef_session="run", x_reef_scenario="work"),
            gateway.chat({**body, "stream": True}, path="/v1/messages"),
            gateway.chat({"model": "m", "input": SECRET, "stream": True}, path="/v1/responses"),
        ]
    chat, messages, responses = collector.spans  # a stop sends what waits
    assert {scope.schema_url for r in collector.requests for resource in r.resource_spans for scope in resource.scope_spans} == {
        CONVENTIONS
    }
    assert (chat.name, chat.kind) == ("chat m", Span.SPAN_KIND_CLIENT)
    said = attributes(chat)
    assert said["gen_ai.operation.name"] == "chat"
    assert said["gen_ai.provider.name"] == "openai"
    assert (said["gen_ai.request.model"], said["gen_ai.response.model"], said["gen_ai.response.id"]) == ("m", "fake-1", "chatcmpl-1")
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (7, 3)
    assert (said["gen_ai.request.max_tokens"], said["gen_ai.request.temperature"]) == (9, 0.5)
    assert said["gen_ai.response.finish_reasons"] == ["stop"]
    assert said["gen_ai.conversation.id"] == "run"
    assert (said["server.address"], str(said["server.port"])) == ("127.0.0.1", fake.url.split(":")[2].split("/")[0])
    assert (said["reef.record.id"], said["reef.scenario"], said["reef.end"]) == (answers[0].receipt, "work", "complete")
    assert "error.type" not in said
    assert chat.status.code == Status.STATUS_CODE_UNSET
    assert attributes(messages)["gen_ai.provider.name"] == "anthropic"
    assert attributes(messages)["gen_ai.response.finish_reasons"] == ["tool_use"]
    assert attributes(responses)["gen_ai.response.finish_reasons"] == ["completed"]
    for words in (SECRET, "hello", "hm, hm"):
        assert words.encode() not in b"".join(request.SerializeToString() for request in collector.requests)


def test_names_and_values_are_those_of_the_conventions(tmp_path: Path, fake: FakeUpstream, collector: Collector) -> None:
    names = {
        value
        for module in (gen_ai_attributes, server_attributes, http_attributes, error_attributes)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    assert CONVENTIONS in {schema.value for schema in Schemas}
    assert {*PARAMETERS.values()} <= names
    assert {*PROVIDERS.values()} <= {value.value for value in gen_ai_attributes.GenAiProviderNameValues}
    with traced(tmp_path, fake, collector) as gateway:
        gateway.chat({**CHAT, "max_tokens": 9, "temperature": 0.5, "top_p": 1}, x_reef_session="run")
        fake.replies = [dialects.whole({"error": {"message": "no"}}, status=429)]
        gateway.chat({**CHAT, "stream": True})
    told = [attributes(span) for span in collector.spans]
    assert {name for span in told for name in span if not name.startswith("reef.")} <= names
    assert {span["gen_ai.operation.name"] for span in told} <= {value.value for value in gen_ai_attributes.GenAiOperationNameValues}


def test_a_failure_is_told_by_its_kind_alone(tmp_path: Path, fake: FakeUpstream, collector: Collector) -> None:
    with traced(tmp_path, fake, collector) as gateway:
        fake.replies = [stream(*greeting()[:2], end="reset"), dialects.whole({"error": {"message": SECRET}}, status=429)]
        gateway.chat({**CHAT, "stream": True})
        gateway.chat()
    cut, refused = collector.spans
    assert [attributes(span)["error.type"] for span in (cut, refused)] == ["truncated", "429"]
    assert {span.status.code for span in (cut, refused)} == {Status.STATUS_CODE_ERROR}
    assert all(not span.status.message for span in (cut, refused))
    assert SECRET.encode() not in b"".join(request.SerializeToString() for request in collector.requests)


def test_the_callers_span_is_the_parent_and_goes_on_only_if_it_came(tmp_path: Path, fake: FakeUpstream, collector: Collector) -> None:
    with traced(tmp_path, fake, collector) as gateway:
        gateway.chat(traceparent=f"00-{TRACE}-{PARENT}-01")
        gateway.chat()
        gateway.chat(traceparent="nonsense")
    child, root, other = collector.spans
    assert (child.trace_id.hex(), child.parent_span_id.hex()) == (TRACE, PARENT)
    assert {root.parent_span_id, other.parent_span_id} == {b""}
    assert fake.seen[0].headers["traceparent"] == f"00-{TRACE}-{PARENT}-01"
    assert "traceparent" not in fake.seen[1].headers


def test_a_collector_that_is_not_there_costs_no_answer(tmp_path: Path, fake: FakeUpstream) -> None:
    with service(tmp_path, upstream=fake.url, telemetry={"otlp_endpoint": "http://127.0.0.1:9"}) as gateway:
        for _ in range(20):
            assert gateway.chat().status == 200


def test_it_is_off_unless_it_is_configured(gateway: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    assert gateway.state.tracing is None
    assert Tracing.configured(configuration.load().telemetry) is None
    with pytest.raises(ConfigError, match="otlp_endpoint"):
        configuration.load(telemetry={"otlp_endpoint": "localhost:4318"})
