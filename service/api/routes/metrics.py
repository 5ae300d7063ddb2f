"""`GET /metrics` for Prometheus: counts of this process, and figures of the installation from the database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tilewright.service.operations.fleet.observed import Observed
from tilewright.service.operations.fleet.observed_trials import TrialSums

router = APIRouter(tags=["health"])


class _Text(PlainTextResponse):
    media_type = "text/plain"


@router.get("/metrics", operation_id="get_metrics", response_class=_Text)
def get_metrics(request: Request) -> PlainTextResponse:
    """Metrics in Prometheus' text format; those of the database are looked up at most every five seconds."""
    state = request.app.state
    text = state.meters.text() + generate_latest(_Registered(state.observer.look(), state.results.look()))
    return PlainTextResponse(text, headers={"Content-Type": CONTENT_TYPE_LATEST, "Cache-Control": "no-store"})


class _Registered(CollectorRegistry):
    """The observed figures as a registry for `generate_latest`; made for each answer."""

    def __init__(self, observed: Observed | None, results: Mapping[tuple[str, str], int] | None) -> None:
        super().__init__()
        self._observed, self._results = observed, results

    def collect(self) -> Iterator[Metric]:
        """The metrics of the database."""
        observed = self._observed
        yield GaugeMetricFamily(
            "tilewright_database_answers",
            "1 if the database answered, 0 if its figures are missing.",
            1 if observed else 0,
        )
        if observed is None:
            return
        if self._results is not None:
            text = "Current results: tuned in all, and those that are ahead, level, behind, stale, regressed or failed."
            yield _filled(
                GaugeMetricFamily("tilewright_results", text, labels=("device_model", "state")), self._results.items()
            )
        for name, labels, text, values in _GAUGES:
            yield _filled(GaugeMetricFamily(name, text, labels=labels), values(observed))
        for name, labels, text, values in _COUNTERS:
            yield _filled(CounterMetricFamily(name, text, labels=labels), values(observed))
        if observed.trials is None:
            return  # still counting those of earlier days: a part of them would look like a counter that jumps
        for name, labels, text, of_sums in _TRIALS:
            yield _filled(CounterMetricFamily(name, text, labels=labels), of_sums(observed.trials))


Values = Iterable[tuple[tuple[str, ...], float]]


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for labels, value in values:
        family.add_metric(labels, value)
    return family


_GAUGES: tuple[tuple[str, tuple[str, ...], str, Callable[[Observed], Values]], ...] = (
    ("tilewright_jobs_open", ("queue", "state"), "Jobs queued and running.", lambda o: o.open_jobs.items()),
    (
        "tilewright_oldest_queued_job_seconds",
        (),
        "Age of the oldest queued job.",
        lambda o: [((), o.oldest_queued_s)],
    ),
    (
        "tilewright_workers",
        ("device_model", "state"),
        "Devices with a worker: alive, silent for longer than the stall time, or lost.",
        lambda o: o.workers.items(),
    ),
    (
        "tilewright_schedules_late_seconds",
        (),
        "How long the oldest unfired due time is overdue; 0 if none is.",
        lambda o: [((), o.schedules_late_s)],
    ),
    (
        "tilewright_schedule_fire_delay_seconds",
        (),
        "Longest delay from a due time to its fire in the last ten minutes.",
        lambda o: [((), o.fire_delay_s)],
    ),
    (
        "tilewright_webhook_messages",
        ("state",),
        "Stored webhook messages.",
        lambda o: [((state,), count) for state, count in o.deliveries.items()],
    ),
    (
        "tilewright_demand_problems",
        (),
        "Requested problems that are not tuned yet.",
        lambda o: [((), o.demand)],
    ),
    ("tilewright_database_bytes", (), "Size of the database.", lambda o: [((), o.database_bytes)]),
    (
        "tilewright_cache_files",
        ("device",),
        "Compiled kernels kept on a worker's host, as last counted.",
        lambda o: [((device,), files) for device, (files, _) in o.caches.items()],
    ),
    (
        "tilewright_cache_bytes",
        ("device",),
        "Bytes of the compiled kernels kept on a worker's host, as last counted.",
        lambda o: [((device,), held) for device, (_, held) in o.caches.items()],
    ),
)

_COUNTERS: tuple[tuple[str, tuple[str, ...], str, Callable[[Observed], Values]], ...] = (
    (
        "tilewright_jobs_ended",
        ("state",),
        "Ended jobs by final state; imported results count as done.",
        lambda o: [((state,), count) for state, count in o.ended_jobs.items()],
    ),
)

_TRIALS: tuple[tuple[str, tuple[str, ...], str, Callable[[TrialSums], Values]], ...] = (
    (
        "tilewright_trials",
        ("device_model", "outcome"),
        "Trials measured here.",
        lambda sums: [(key, one.count) for key, one in sums.items()],
    ),
    (
        "tilewright_device_seconds",
        ("device_model", "outcome"),
        "Seconds of trials on devices, each from its turn to its outcome, without finals, baselines and preparation.",
        lambda sums: [(key, one.seconds) for key, one in sums.items()],
    ),
    (
        "tilewright_trial_compiles",
        ("device_model", "source"),
        "Where the compiled kernels of trials came from: the compiler, or the cache of the worker's host.",
        lambda sums: _compiles(sums).items(),
    ),
)


def _compiles(sums: TrialSums) -> dict[tuple[str, str], float]:
    counts: dict[tuple[str, str], float] = {}
    for (model, _), one in sums.items():
        for source, count in (("compiler", one.compiled), ("cache", one.from_cache)):
            counts[model, source] = counts.get((model, source), 0) + count
    return counts
