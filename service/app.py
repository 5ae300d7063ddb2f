"""create_app(): the ASGI application of guard, API and dashboard."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
from collections.abc import AsyncIterator

from fastapi import APIRouter, FastAPI

import tilewright
from tilewright.service import GARBAGE_AFTER, STACK_BYTES, SWITCH_S, dashboard
from tilewright.service.api import openapi, problem_types, problems
from tilewright.service.api.best_answers import answered
from tilewright.service.api.demand_buffer import DemandBuffer
from tilewright.service.api.event_stream import Streams
from tilewright.service.api.middleware.best_door import BestDoor
from tilewright.service.api.middleware.guard import Guard
from tilewright.service.api.middleware.head import Head
from tilewright.service.api.middleware.metrics import Meters, Witness
from tilewright.service.api.missing_answers import MissingAnswers
from tilewright.service.api.request_record import RequestRecord
from tilewright.service.api.routes import (
    attention,
    best,
    claims,
    comparisons,
    demand,
    devices,
    exchange,
    health,
    helion,
    jobs,
    kernels,
    results,
    schedules,
    studies,
    views,
    webhooks,
)
from tilewright.service.api.routes import (
    metrics as metrics_page,
)
from tilewright.service.api.routes.access import browser_session, keys, openid_sign_in, projects
from tilewright.service.dashboard.error_pages import ErrorPages
from tilewright.service.dashboard.packed_files import BuiltFiles, PackedFiles
from tilewright.service.dashboard.rendering import prepare_pages
from tilewright.service.dashboard.router import pages
from tilewright.service.operations.best_cache.memory import BestMemory
from tilewright.service.operations.best_cache.watch import BestWatch
from tilewright.service.operations.best_pool.pool import BestPool
from tilewright.service.operations.fleet.observed import Observer
from tilewright.service.operations.views.observed_results import ResultTally
from tilewright.service.settings import settings
from tilewright.tuner.runtime.known.local_service import NotedAddress


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Runs maintenance, webhooks, the recording of demand and the watch on bests beside the requests."""
    threading.stack_size(STACK_BYTES)  # of those that answer: predictions are made in them
    # Imported here: the OpenAPI document alone needs no job engine.
    from tilewright.service.worker.maintenance import Maintenance  # noqa: PLC0415
    from tilewright.service.worker.webhook_sender import WebhookSender  # noqa: PLC0415

    sys.setswitchinterval(SWITCH_S)
    address = NotedAddress(settings().data_dir, settings().host, settings().port)
    background: tuple[
        Maintenance | WebhookSender | DemandBuffer | BestWatch | MissingAnswers | NotedAddress | RequestRecord, ...
    ]
    missing = MissingAnswers(app.state.best, app.state.pool)
    background = (
        Maintenance(),
        WebhookSender(),
        app.state.demand,
        BestWatch(app.state.best),
        missing,
        app.state.record,
    )
    if settings().tls_certificate is None:  # it names another host: launchers need TILEWRIGHT_URL
        background += (address,)
    for part in background:
        part.start()
    threading.Thread(target=prepare_pages, name="pages", daemon=True).start()
    # What is loaded now stays, and requests leave next to no cycles: collecting often would only delay them.
    gc.freeze()
    gc.collect()  # of nothing: the next full one comes only after growth by a quarter of what this one leaves
    gc.set_threshold(GARBAGE_AFTER, 10, 10)
    try:
        yield
    finally:
        await asyncio.gather(*(asyncio.to_thread(part.stop) for part in background))


def create_app(routes: APIRouter | None = None) -> FastAPI:
    """A new application. It does not migrate the database; `/ready` says whether that is needed.

    `routes`: the router of another application, which takes 40 ms to make, as tests make hundreds.
    """
    app = FastAPI(
        title="Tilewright",
        version=tilewright.__version__,
        summary="The best known configuration of a CUDA kernel, per problem and GPU.",
        description=(
            "Lists are paged: pass `next_cursor` back as `cursor`. Every error is a problem document (RFC 9457) whose "
            "`type` is an address that says what to do; clients that accept text/html and not JSON get a page. "
            "Changes inside `/v1` are additions only."
        ),
        lifespan=_lifespan,
        docs_url=None,  # FastAPI's pages load scripts from other hosts, which the content policy forbids
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
        # It would pass on the address of every request, which may hold a secret; middleware/metrics.py counts.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.answered = answered
    app.state.streams, app.state.demand = Streams(), DemandBuffer()
    app.state.best, app.state.pool = BestMemory(settings().best_kept), BestPool(settings().prediction_processes)
    app.state.record = RequestRecord()
    app.state.meters, app.state.observer, app.state.results = Meters(), Observer(), ResultTally()
    app.state.meters.gauge("tilewright_best_in_memory", "Best configurations in memory.", app.state.best.__len__)
    waiting: BestPool = app.state.pool
    app.state.meters.gauge("tilewright_predictions_waiting", "Shapes to be predicted.", lambda: waiting.waiting)
    if routes is None:
        _add_routes(app)
    else:
        app.router = routes
    problems.install(app)
    app.openapi = lambda: openapi.build(app)  # type: ignore[method-assign]
    app.add_middleware(Guard, known=BestDoor(app.state))
    app.add_middleware(ErrorPages, remedies={kind.uri: kind.remedy for kind in problem_types.all_types()})
    app.add_middleware(Head)
    app.add_middleware(Witness, meters=app.state.meters, record=app.state.record.note)
    return app


def _add_routes(app: FastAPI) -> None:
    looks = (best, claims, comparisons, attention, demand, kernels, studies, devices, results)
    access = (keys, projects, browser_session, openid_sign_in)
    for module in (*looks, views, jobs, schedules, *access, webhooks, exchange, helion, health, metrics_page):
        app.include_router(module.router)
    app.include_router(pages())
    app.mount("/static", PackedFiles(directory=dashboard.STATIC), name="static")
    app.mount("/guide", BuiltFiles(directory=dashboard.GUIDE, html=True, check_dir=False), name="guide")
