"""The pages of results, device models and kernels. They work without scripts."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import views
from tilewright.service.dashboard.charts.roofline import roofline
from tilewright.service.dashboard.pages import (
    ask as ask_page,
)
from tilewright.service.dashboard.pages import (
    compare as compare_page,
)
from tilewright.service.dashboard.pages import (
    demand as demand_pages,
)
from tilewright.service.dashboard.pages import (
    digits as digits_page,
)
from tilewright.service.dashboard.pages import (
    fleet as fleet_pages,
)
from tilewright.service.dashboard.pages import (
    jobs as job_pages,
)
from tilewright.service.dashboard.pages import (
    overview as overview_page,
)
from tilewright.service.dashboard.pages import (
    schedules as schedule_pages,
)
from tilewright.service.dashboard.pages import (
    sign_in as sign_in_page,
)
from tilewright.service.dashboard.pages import (
    studies as study_pages,
)
from tilewright.service.dashboard.rendering import PageRoute, address, own_url, page
from tilewright.service.errors import NotFoundError
from tilewright.service.operations import catalog, registry
from tilewright.service.operations.best.results import results, results_by_model
from tilewright.service.operations.pages import cursor_of
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.studies import studies
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SHOWN_EACH = 10
SHOWN_RESULTS = 50
SHOWN_STUDIES = 20
DRAWN_RESULTS = 100

Name = Annotated[str | None, Query(max_length=128)]
Cursor = Annotated[str | None, Query(max_length=64)]


@router.get("/results")
def newest(request: Request, kernel: Name = None, device_model: Name = None) -> HTMLResponse:
    """Device models with their newest best configurations."""
    kernel, device_model = kernel or None, device_model or None  # a form sends empty ones
    with transaction() as session:
        models, devices = registry.device_models(session), registry.devices(session)
        found = results_by_model(session, kernel=kernel, device_model=device_model, each=SHOWN_EACH)
    ordered = sorted((r for each in found.values() for r in each.items), key=lambda r: -r.id)
    chosen = [model for model in models if device_model in (None, model.slug)]
    return page(
        "results.html",
        source=address("/results", {"kernel": kernel, "device_model": device_model}),
        data=address("/v1/results", {"kernel": kernel, "device_model": device_model}),
        kernel=kernel,
        device_model=device_model,
        kernels=sorted(catalogue().by_name),
        models=models,
        sections=views.sections(chosen, devices, found),
        curl=views.curl_line(own_url(request), ordered),
    )


@router.get("/device-models/{slug}")
def device_model(slug: str, kernel: Name = None, cursor: Cursor = None) -> HTMLResponse:
    """One device model: its limits, its devices, all its best configurations, its newest studies."""
    kernel = kernel or None
    with transaction() as session:
        models = {model.slug: model for model in registry.device_models(session)}
        if slug not in models:
            raise NotFoundError("device model", slug, list(models))
        devices = [device for device in registry.devices(session) if device.model == slug]
        drawn = results(session, kernel=kernel, device_model=slug, limit=DRAWN_RESULTS, cursor=cursor)
        newest = studies.studies(session, device_model=slug, kernel=kernel, limit=SHOWN_STUDIES)
    path = f"/device-models/{slug}"
    shown = drawn.items[:SHOWN_RESULTS]
    more = cursor_of(shown[-1].id) if len(drawn.items) > len(shown) else drawn.next_cursor
    return page(
        "device_model.html",
        model=models[slug],
        devices=devices,
        kernel=kernel,
        data=address("/v1/results", {"device_model": slug, "kernel": kernel}),
        roofline=roofline(drawn.items, models[slug].details),
        drawn=len(drawn.items),
        kernels=sorted(catalogue().by_name),
        rows=views.result_lines(shown, devices),
        studies=newest.items,
        first=address(path, {"kernel": kernel}) if cursor else None,
        next=address(path, {"kernel": kernel, "cursor": more}) if more else None,
    )


@router.get("/kernels")
def kernels() -> HTMLResponse:
    """Every kernel."""
    with transaction() as session:
        return page("kernels.html", kernels=catalog.kernels(session))


@router.get("/kernels/{name}")
def kernel(name: str) -> HTMLResponse:
    """One kernel: its declaration, its sources, its newest best configurations."""
    with transaction() as session:
        found = catalog.kernel(session, name)
        newest = results(session, kernel=name, limit=SHOWN_EACH)
        devices = registry.devices(session)
    declared = catalogue().by_name.get(name)
    sources = {variant.name: declared.source(variant.name) for variant in declared.variants} if declared else {}
    example: dict[str, Any] = found.declaration["example_shape"]
    return page(
        "kernel.html",
        kernel=found,
        sources=sources,
        example=",".join(f"{axis}={size}" for axis, size in example.items()),
        rows=views.result_lines(newest.items, devices),
        is_cut=newest.next_cursor is not None,
    )


for module in (overview_page, study_pages, ask_page, compare_page, job_pages, fleet_pages, demand_pages, digits_page):
    router.include_router(module.router)
router.include_router(schedule_pages.router)
router.include_router(sign_in_page.router)
