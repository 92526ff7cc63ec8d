"""Traces of exchanges for OpenTelemetry: one client span each, after GenAI's semantic conventions, without a word of what was said.

Off unless ``telemetry.otlp_endpoint`` is set. A span is made once its answer has left, and exported by the SDK's own thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from reef.config import TelemetryConfig
from reef.errors import ConfigError
from reef.experience.dialects import token_counts
from reef.types import JSON, End, Record

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

CONVENTIONS = "https://opentelemetry.io/schemas/1.37.0"
"""The version of the semantic conventions that names and values here are of."""
PROVIDERS = {"chat": "openai", "responses": "openai", "messages": "anthropic"}
"""The format of a request; who really answers behind the upstream cannot be record."""
PARAMETERS = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
}
EXPORT_WITHIN_S = 5
"""Bound on sending one batch; what cannot be sent is dropped, as the SDK does."""
CLOSE_WITHIN_MS = 5000
Attributes = dict[str, str | int | float | bool | list[str]]


class Tracing:
    """Makes spans and has them exported.

    Args:
        provider: the SDK's, with its processors.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("reef", schema_url=CONVENTIONS)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def configured(cls, config: TelemetryConfig) -> Self | None:
        """What the configuration asks for; None if that is nothing.

        ``OTEL_EXPORTER_OTLP_HEADERS``, ``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_TRACES_SAMPLER`` and the like are the SDK's own affair.

        Raises:
            ConfigError: the extra is not installed.
        """
        if not config.otlp_endpoint:
            return None
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ModuleNotFoundError:
            raise ConfigError(
                "telemetry.otlp_endpoint is set, and OpenTelemetry is not installed", hint="pip install 'reef[otel]'"
            ) from None
        provider = TracerProvider(resource=Resource.create({"service.name": "reef"}), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=f"{config.otlp_endpoint}/v1/traces", timeout=EXPORT_WITHIN_S)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return cls(provider)

    def exchange(self, record: Record, *, own_ms: float, traceparent: str = "") -> None:
        """Make the span of an exchange that has ended.

        Args:
            own_ms: the gateway's own share of its time.
            traceparent: as the caller sent it; it names the span's parent.
        """
        from opentelemetry.trace import SpanKind, Status, StatusCode

        begun_ns = int(record.started_at * 1e9)
        span = self._tracer.start_span(
            f"chat {record.model}".rstrip(),
            context=self._propagator.extract({"traceparent": traceparent}) if traceparent else None,
            kind=SpanKind.CLIENT,
            attributes={**attributes(record), "reef.overhead_ms": round(own_ms, 3)},
            start_time=begun_ns,
        )
        if record.end is not End.COMPLETE:
            span.set_status(Status(StatusCode.ERROR))  # without words: an upstream's error may quote the prompt
        span.end(begun_ns + int(record.duration_ms * 1e6))

    def close(self) -> None:
        """Send what waits, within bounds."""
        self._provider.force_flush(CLOSE_WITHIN_MS)
        self._provider.shutdown()


def attributes(record: Record) -> Attributes:
    """What a span says."""
    found: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDERS.get(record.dialect, record.dialect),
        "reef.record.id": record.id,
        "reef.scenario": record.scenario,
        "reef.end": record.end.value,
        "http.response.status_code": record.status,
    }
    if record.model:
        found["gen_ai.request.model"] = record.model
    if record.session:
        found["gen_ai.conversation.id"] = record.session
    if record.first_byte_ms is not None:
        found["reef.first_byte_ms"] = round(record.first_byte_ms, 3)
    where = urlsplit(record.upstream)
    if where.hostname:
        found["server.address"] = where.hostname
        found["server.port"] = where.port or (443 if where.scheme == "https" else 80)
    for name, attribute in PARAMETERS.items():
        value = record.request.get(name)
        if isinstance(value, int | float):
            found[attribute] = value
    found.update(_answered(record.response))
    if record.end is not End.COMPLETE:
        found["error.type"] = str(record.status) if record.status >= 400 else record.end.value
    return found


def _answered(response: JSON) -> Attributes:
    """What an answer says about itself."""
    if not isinstance(response, dict):
        return {}
    found: Attributes = {}
    for name in ("id", "model"):
        if isinstance(value := response.get(name), str):
            found[f"gen_ai.response.{name}"] = value
    counts = token_counts(response)
    for name, attribute in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")):
        if name in counts:
            found[f"gen_ai.usage.{attribute}"] = counts[name]
    if reasons := _finish_reasons(response):
        found["gen_ai.response.finish_reasons"] = reasons
    return found


def _finish_reasons(response: dict[str, JSON]) -> list[str]:
    choices = response.get("choices")
    if isinstance(choices, list):
        said = [choice.get("finish_reason") for choice in choices if isinstance(choice, dict)]
    else:
        said = [response.get("stop_reason", response.get("status"))]
    return [reason for reason in said if isinstance(reason, str)]
