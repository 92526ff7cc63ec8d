"""What a gateway process counts, and how Prometheus reads it.

Counting is a few additions to plain numbers, on the event loop alone; prometheus-client only writes the page, on a thread, from a copy.
Labels are bounded: nothing a caller makes up becomes one, and of scenarios only the first :data:`MOST_SCENARIOS` have a name of their own.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
import structlog
from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from reef.experience.writer import Writer
from reef.types import End, Record

log = structlog.get_logger()

MOST_SCENARIOS = 100
MOST_SERIES = 1000
"""Of scenario, upstream and dialect together; upstreams that come later have no name of their own."""
OTHER = "other"
"""The scenario, or upstream, of all that came later."""
OWN_S = (0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5)
"""Bounds for times of the gateway's own."""
FIRST_BYTE_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
SIZE_EVERY_S = 15.0
"""How old the known size of the store may be."""
SIZE_WITHIN_S = 5.0
_USER_INFO = re.compile(r"//[^/@]*@")
LABELS = ("process", "scenario", "upstream", "dialect")


class Histogram:
    """How often a time fell between which bounds."""

    __slots__ = ("bounds", "counts", "total_s")

    def __init__(self, bounds: tuple[float, ...], *, counts: list[int] | None = None, total_s: float = 0.0) -> None:
        self.bounds = bounds
        self.counts = counts or [0] * (len(bounds) + 1)
        self.total_s = total_s

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total_s += seconds

    def copy(self) -> Histogram:
        """As it is now."""
        return Histogram(self.bounds, counts=self.counts.copy(), total_s=self.total_s)

    def buckets(self) -> list[tuple[str, float]]:
        """Counts as Prometheus wants them: each with all below it."""
        found: list[tuple[str, float]] = []
        sum_ = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            sum_ += count
            found.append((str(bound), sum_))
        return found


class Series:
    """What was counted of one scenario, upstream and dialect."""

    __slots__ = ("ends", "first_byte", "own")

    def __init__(self) -> None:
        self.ends: dict[End, int] = {}
        self.own = Histogram(OWN_S)
        self.first_byte = Histogram(FIRST_BYTE_S)

    def copy(self) -> Series:
        """As it is now."""
        found = Series()
        found.ends, found.own, found.first_byte = self.ends.copy(), self.own.copy(), self.first_byte.copy()
        return found


class Metrics:
    """The counters of one process. They belong to its event loop: nothing here is locked."""

    def __init__(self) -> None:
        self.under_way = 0
        self.not_stored = 0
        self.refused: dict[str, int] = {}
        self.commit = Histogram(OWN_S)
        self.series: dict[tuple[str, str, str], Series] = {}
        self._scenarios: set[str] = set()

    def exchange(self, record: Record, *, own_s: float, commit_s: float) -> None:
        """Count an exchange that has ended.

        Args:
            own_s: the gateway's own share of its time.
            commit_s: how long its record took to be stored.
        """
        labels = (record.scenario, record.upstream, record.dialect)
        series = self.series.get(labels) or self._add_series(*labels)
        series.ends[record.end] = series.ends.get(record.end, 0) + 1
        series.own.add(own_s)
        self.commit.add(commit_s)
        if record.first_byte_ms is not None:
            series.first_byte.add(record.first_byte_ms / 1000)

    def refuse(self, kind: str) -> None:
        """Count a request that was refused before it became an exchange.

        Args:
            kind: the type of the error; there are only so many.
        """
        self.refused[kind] = self.refused.get(kind, 0) + 1

    def snapshot(self) -> Metrics:
        """A copy that another thread may read."""
        found = Metrics()
        found.under_way, found.not_stored = self.under_way, self.not_stored
        found.refused, found.commit = self.refused.copy(), self.commit.copy()
        found.series = {labels: series.copy() for labels, series in self.series.items()}
        return found

    def _add_series(self, scenario: str, upstream: str, dialect: str) -> Series:
        if scenario not in self._scenarios:
            if len(self._scenarios) >= MOST_SCENARIOS:
                scenario = OTHER
            else:
                self._scenarios.add(scenario)
        if len(self.series) >= MOST_SERIES:
            upstream = OTHER
        found = self.series.get((scenario, upstream, dialect))
        if found is None:
            found = self.series[scenario, upstream, dialect] = Series()
        return found


class StoreSize:
    """The size of the store, looked up on a thread when it is asked for, and not too often.

    Args:
        engine: the database.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._looked_at = -SIZE_EVERY_S
        self._bytes: int | None = None

    async def look(self) -> int | None:
        """Its bytes; None if they cannot be told now."""
        now = time.monotonic()
        if now - self._looked_at >= SIZE_EVERY_S:
            self._looked_at = now
            try:
                async with asyncio.timeout(SIZE_WITHIN_S):
                    self._bytes = await asyncio.to_thread(self._look)
            except (sa.exc.SQLAlchemyError, OSError) as error:  # TimeoutError is an OSError
                self._bytes = None
                log.warning("size of the store unknown", reason=str(error) or type(error).__name__)
        return self._bytes

    def _look(self) -> int | None:
        if self._engine.dialect.name == "postgresql":
            with self._engine.connect() as connection:
                return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())
        if not (name := self._engine.url.database):
            return None
        files = (Path(name), Path(f"{name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())


@dataclass(frozen=True, slots=True)
class Page(Collector):
    """One answer to ``GET /metrics``."""

    counted: Metrics
    waiting: int
    storing: bool
    size_bytes: int | None

    @classmethod
    async def take(cls, metrics: Metrics, *, writer: Writer, size: StoreSize) -> Page:
        """How things stand now."""
        size_bytes = await size.look()
        storing = writer.alive and not writer.last_error
        return cls(counted=metrics.snapshot(), waiting=writer.waiting, storing=storing, size_bytes=size_bytes)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type, in the format that was asked for. Long: call it on a thread."""
        registry = CollectorRegistry()
        registry.register(self)
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    def describe(self) -> list[Metric]:
        """Nothing: names cannot clash in a registry with one collector."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every number, each with the process it is of."""
        process = str(os.getpid())
        yield from self._exchanges(process)
        counted = self.counted
        refused = CounterMetricFamily("reef_refused", "Requests refused before the upstream was asked.", labels=("process", "type"))
        for kind, count in sorted(counted.refused.items()):
            refused.add_metric((process, kind), count)
        yield refused
        commit = HistogramMetricFamily("reef_commit_seconds", "From handing a record over to its being on disk.", labels=("process",))
        commit.add_metric((process,), counted.commit.buckets(), counted.commit.total_s)
        yield commit
        lost = CounterMetricFamily("reef_not_stored", "Exchanges whose record could not be stored.", labels=("process",))
        lost.add_metric((process,), counted.not_stored)
        yield lost
        gauges: list[tuple[str, str, float]] = [
            ("reef_requests_under_way", "Exchanges under way.", counted.under_way),
            ("reef_writer_waiting", "Jobs that wait to be stored.", self.waiting),
            ("reef_writer_up", "1 while the writer stores what it gets.", float(self.storing)),
        ]
        if self.size_bytes is not None:
            gauges.append(("reef_store_bytes", "Size of the database, for all processes the same.", self.size_bytes))
        for name, text, value in gauges:
            gauge = GaugeMetricFamily(name, text, labels=("process",))
            gauge.add_metric((process,), value)
            yield gauge
        for metric in ProcessCollector(registry=None).collect():
            metric.samples = [sample._replace(labels={**sample.labels, "process": process}) for sample in metric.samples]
            yield metric

    def _exchanges(self, process: str) -> Iterator[Metric]:
        requests = CounterMetricFamily("reef_requests", "Exchanges that have ended, by how.", labels=(*LABELS, "end"))
        own = HistogramMetricFamily("reef_added_latency_seconds", "The gateway's own share of an exchange's time.", labels=LABELS)
        first = HistogramMetricFamily("reef_first_byte_seconds", "From the request to the upstream's first byte.", labels=LABELS)
        for (scenario, upstream, dialect), series in self.counted.series.items():
            labels = (process, scenario, _USER_INFO.sub("//", upstream), dialect)
            for end, count in series.ends.items():
                requests.add_metric((*labels, end.value), count)
            own.add_metric(labels, series.own.buckets(), series.own.total_s)
            first.add_metric(labels, series.first_byte.buckets(), series.first_byte.total_s)
        yield from (requests, own, first)
