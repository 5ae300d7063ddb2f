"""create_app(): the ASGI application: guard, API, dashboard."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import AsyncIterator

from fastapi import FastAPI

import tilewright
from tilewright.service import dashboard
from tilewright.service.api import openapi, problems
from tilewright.service.api.demand_buffer import DemandBuffer
from tilewright.service.api.event_stream import Streams
from tilewright.service.api.middleware.best_door import BestDoor
from tilewright.service.api.middleware.guard import Guard
from tilewright.service.api.middleware.metrics import LOOK_EVERY_S, Meters, Witness
from tilewright.service.api.routes import (
    best,
    browser_session,
    comparisons,
    demand,
    devices,
    digits,
    exchange,
    health,
    jobs,
    kernels,
    keys,
    results,
    schedules,
    studies,
    webhooks,
)
from tilewright.service.api.routes import (
    metrics as metrics_page,
)
from tilewright.service.api.server import siblings
from tilewright.service.dashboard.error_pages import ErrorPages
from tilewright.service.dashboard.packed_files import PackedFiles
from tilewright.service.dashboard.pages import results as pages
from tilewright.service.operations.best_cache.memory import BestMemory
from tilewright.service.operations.best_cache.watch import BestWatch
from tilewright.service.operations.fleet.observed import Observer
from tilewright.service.settings import settings
from tilewright.tuner.runtime.local_service import NotedAddress

CHECK_S = 0.2
GARBAGE_AFTER = 20_000
"""Containers made and not freed before a look for cycles among them; Python's 700 is two or three requests."""


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Does the maintenance chores, sends the messages of webhooks and writes down demand beside the requests."""
    # Imported here: whoever only wants the OpenAPI document needs no job engine.
    from tilewright.service.worker.maintenance import Maintenance  # noqa: PLC0415
    from tilewright.service.worker.webhook_sender import WebhookSender  # noqa: PLC0415

    address = NotedAddress(settings().data_dir, settings().host, settings().port)
    beside: tuple[Maintenance | WebhookSender | DemandBuffer | BestWatch | NotedAddress, ...]
    beside = (Maintenance(), WebhookSender(), app.state.demand, BestWatch(app.state.best), address)
    for one in beside:
        one.start()
    # What is here stays, and a request leaves next to no cycles: looking for garbage often would only hold it up.
    gc.freeze()
    gc.collect()  # of nothing: a look at all comes only after growth by a quarter of what the last such look left
    gc.set_threshold(GARBAGE_AFTER, 10, 10)
    if siblings.folder() is not None and siblings.listen_on(settings().host, settings().port):
        await _until_warm(app.state.best)
    looking = asyncio.create_task(_look(app.state.meters))
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.gather(*(asyncio.to_thread(one.stop) for one in beside))


async def _until_warm(memory: BestMemory) -> None:
    """Returns when requests are answered from memory. Until then the siblings answer them, and a stop need not wait."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while memory.what_is_missing() is not None:  # noqa: ASYNC110 - a thread fills it, which knows no event loop
        await asyncio.sleep(CHECK_S)
    signal.signal(signal.SIGTERM, before)


async def _look(meters: Meters) -> None:
    """Keeps the gauges fresh that siblings tell of."""
    while siblings.folder() is not None:
        meters.look()
        await asyncio.sleep(LOOK_EVERY_S)


def create_app() -> FastAPI:
    """A fresh application. It migrates nothing; `/ready` says whether that is needed."""
    app = FastAPI(
        title="Tilewright",
        version=tilewright.__version__,
        summary="The best known configuration of a CUDA kernel, per problem and GPU.",
        description=(
            "Lists are pages: pass `next_cursor` back as `cursor`. Every refusal is a problem document (RFC 9457) "
            "whose `type` is an address that says what to do; who asks for text/html, not JSON, gets a page. "
            "Inside `/v1` changes are only additions."
        ),
        lifespan=_lifespan,
        docs_url=None,  # FastAPI's pages load scripts from other hosts, which the content policy forbids
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
        # It would pass on the address of every request, which may hold a secret; api/metrics.py counts and times.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.streams, app.state.demand = Streams(), DemandBuffer()
    app.state.best = BestMemory(settings().best_kept)
    app.state.meters, app.state.observer = Meters(), Observer()
    app.state.meters.gauge("tilewright_best_in_memory", "Best configurations in memory.", app.state.best.__len__)
    looks = (best, comparisons, demand, kernels, studies, devices, results)
    for module in (*looks, jobs, schedules, keys, browser_session, webhooks, exchange, digits, health, metrics_page):
        app.include_router(module.router)
    app.include_router(pages.router)
    app.mount("/static", PackedFiles(directory=dashboard.STATIC), name="static")
    problems.install(app)
    app.openapi = lambda: openapi.build(app)  # type: ignore[method-assign]
    app.add_middleware(Guard, known=BestDoor(app.state))
    app.add_middleware(ErrorPages, remedies={kind.uri: kind.remedy for kind in problems.all_types()})
    app.add_middleware(Witness, meters=app.state.meters)
    return app
