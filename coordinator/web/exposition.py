"""A snapshot as text for Prometheus: its own format, or OpenMetrics for those who accept it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder

from coordinator.histogram import Distribution
from coordinator.metrics.definitions import METRICS
from coordinator.metrics.snapshot import Snapshot


class _Collected:
    """A snapshot as a collector of prometheus-client's."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Any]:
        """The metrics that have samples."""
        for name, samples in self._snapshot.samples.items():
            if not samples:
                continue
            metric = METRICS[name]
            if metric.kind == "counter":
                family: Any = CounterMetricFamily(name, metric.text, labels=metric.labels)
            elif metric.kind == "gauge":
                family = GaugeMetricFamily(name, metric.text, labels=metric.labels)
            else:
                family = HistogramMetricFamily(name, metric.text, labels=metric.labels)
            for labels, value in samples:
                if isinstance(value, Distribution):
                    family.add_metric(labels, _buckets(value), value.total)
                else:
                    family.add_metric(labels, value)
            yield family


def _buckets(value: Distribution) -> list[tuple[str, int]]:
    bounds = [*map(str, value.bounds), "+Inf"]
    return list(zip(bounds, accumulate(value.counts), strict=True))


def exposed(snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
    """The text and its content type, as an ``Accept`` header asks for it.

    Takes some 10 µs a series: called in a thread, whose turns with the loop the interpreter keeps short.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(snapshot))  # type: ignore[arg-type,unused-ignore]
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
