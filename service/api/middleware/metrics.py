"""Metrics of this process's requests in Prometheus' format, and the ASGI application that counts them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import tilewright
from tilewright.service import logs
from tilewright.service.api.middleware import request_log
from tilewright.service.errors import NoConfigurationError
from tilewright.service.operations.answers import BestAnswer, Match
from tilewright.service.operations.fleet.observed import connections

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Any other method is counted as `other`: labels hold nothing that a caller can choose."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the latency histogram. Looking an answer up takes 1 to 10 ms, the largest page a second."""

NOTHING = "none"
"""A lookup that had no answer: no variant runs that problem on that device model."""

_CONNECTIONS = (
    ("tilewright_database_connections_open", "Connections of this process.", lambda: connections().open),
    ("tilewright_database_connections_in_use", "Those that answer a request now.", lambda: connections().in_use),
)


# Else each counter has a second line, with the moment of its first event.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Meters:
    """The counters of one application, from zero at its start."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._gauges: list[tuple[Gauge, Callable[[], float]]] = []
        for name, text, of in _CONNECTIONS:
            self.gauge(name, text, of)
        version = Gauge(
            "tilewright_build_info",
            "1, with the version.",
            ["version"],
            registry=self.registry,
        )
        version.labels(tilewright.__version__).set(1)
        self._requests = Counter(
            "tilewright_http_requests",
            "Requests answered, by method, route and status.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "tilewright_http_request_seconds",
            "Seconds from a request to the head of its answer.",
            ["method", "route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        lookups = Counter(
            "tilewright_lookups",
            "Requests for a best configuration, by how the answer was found; each shape of a batch counts.",
            ["match"],
            registry=self.registry,
        )
        self._lookups = {match: lookups.labels(match) for match in (*Match, NOTHING)}
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def gauge(self, name: str, text: str, of: Callable[[], float]) -> None:
        """Adds a number that is read on request."""
        self._gauges.append((Gauge(name, text, registry=self.registry), of))

    def text(self) -> bytes:
        """The counts and gauges in Prometheus' text format."""
        for gauge, of in self._gauges:
            gauge.set(of())
        own = CollectorRegistry()
        ProcessCollector(registry=own)
        return generate_latest(own) + generate_latest(self.registry)

    def note_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts one answered request."""
        counters = self._children.get((method, route, status))
        if counters is None:  # as many as there are routes and statuses; `labels` would look each one up under a lock
            counters = self._requests.labels(method, route, str(status)), self._seconds.labels(method, route)
            self._children[method, route, status] = counters
        counters[0].inc()
        counters[1].observe(seconds)

    def note_lookups(self, answers: Iterable[BestAnswer]) -> None:
        """Counts answers of `best` by their match."""
        for answer in answers:
            self._lookups[answer.match].inc()

    @contextmanager
    def looking_up(self) -> Iterator[None]:
        """Counts a lookup that ends without an answer."""
        try:
            yield
        except NoConfigurationError:
            self._lookups[NOTHING].inc()
            raise


@dataclass
class Witness:
    """An ASGI application around another that counts, times and logs every request once, refused ones too."""

    app: ASGIApp
    meters: Meters = field(default_factory=Meters)
    record: Callable[[Scope, str, str, int], None] = lambda *_: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; anything but HTTP passes."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began_s = time.perf_counter()
        status, head_s = 500, None  # what the outermost frame answers where nothing was sent

        async def send_watched(message: Message) -> None:
            nonlocal status, head_s
            if message["type"] == "http.response.start":
                status, head_s = message["status"], time.perf_counter()
            await send(message)

        # Not reset: the server logs the traceback of a failed request in the same task, after this has ended.
        logs.speak_of(partial(request_log.facts, scope))
        try:
            await self.app(scope, receive, send_watched)
        finally:
            ended_s = time.perf_counter()
            method = scope["method"] if scope["method"] in METHODS else "other"
            route = route_of(scope, status)
            self.meters.note_request(method, route, status, (head_s or ended_s) - began_s)
            self.record(scope, method, route, status)
            request_log.write(scope, method, route, status, 1e3 * (ended_s - began_s))


def route_of(scope: Scope, status: int) -> str:
    """The template of the answering route, like `/v1/jobs/{job_id}`; without one, a word in brackets."""
    path: str | None = getattr(scope.get("route"), "path", None)
    if path is not None:
        return path
    for folder in ("/static", "/guide"):
        if scope["path"].startswith(f"{folder}/"):
            return folder
    return "(unknown)" if status == HTTPStatus.NOT_FOUND else "(refused)"
