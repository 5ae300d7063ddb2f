"""Operators' calls in this process as Prometheus metrics of the application's own registry."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch.plans import PROCESS, status
from tilewright.tuner.runtime.memory.room import ROOM

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric


class OperatorMetrics:
    """A collector; the numbers are those of `status()` at the moment of the scrape."""

    def describe(self) -> Iterator[Metric]:
        """The metrics without values, by which a registry tells that it has them already."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Calls by operator and by who ran them and why, the time gained as estimated, and scratch memory."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - may be missing

        calls: Counter[tuple[str, str, str]] = Counter()
        gained_ms = defaultdict[str, float](float)
        for one in status():
            calls[one.operator, "ours", ""] += one.calls_ours
            calls[one.operator, "pytorch", one.fallback or "turns"] += one.calls_pytorch
            gained_ms[one.operator] += one.gained_ms or 0
        for operator, count in PROCESS.calls_off.items():
            calls[operator, "pytorch", "off"] += count
        counted = CounterMetricFamily(
            "tilewright_operator_calls", "Calls by who ran them, and why that was PyTorch.", labels=_CALLS
        )
        for labels, count in calls.items():
            if count:
                counted.add_metric(labels, count)
        gained = GaugeMetricFamily(
            "tilewright_operator_gained_seconds",
            "GPU time that calls of ours took less than PyTorch's would have, by what the turns or the records say.",
            labels=["operator"],
        )
        for operator, ms in gained_ms.items():
            gained.add_metric([operator], ms / 1000)
        memory = GaugeMetricFamily(
            "tilewright_scratch_bytes", "Scratch memory that launches keep on each GPU.", labels=["device"]
        )
        for ordinal, size_bytes in ROOM.by_device().items():
            memory.add_metric([f"cuda:{ordinal}"], size_bytes)
        yield from (counted, gained, memory)


_CALLS = ("operator", "runs", "reason")


def export_metrics(registry: CollectorRegistry | None = None) -> None:
    """Adds the metrics to the registry, by default prometheus_client's own.

    Raises TunerError where prometheus_client is not installed, ValueError where the registry has them already.
    """
    try:
        from prometheus_client import REGISTRY  # noqa: PLC0415 - a light installation may lack it
    except ImportError as error:
        raise TunerError("metrics need prometheus_client: pip install prometheus-client") from error
    (registry or REGISTRY).register(OperatorMetrics())
