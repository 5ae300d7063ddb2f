"""The pages of results: read in one transaction, shaped by `views`, rendered by Jinja2. They work without scripts."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import job_pages, schedule_pages, views
from tilewright.service.dashboard.rendering import PageRoute, address, page
from tilewright.service.errors import NotFoundError
from tilewright.service.operations import catalog, jobs, registry, studies
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.results import results, results_by_model
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SHOWN_EACH = 10
SHOWN_RESULTS = 50
SHOWN_TRIALS = 50
SHOWN_STUDIES = 20

Name = Annotated[str | None, Query(max_length=128)]
Cursor = Annotated[str | None, Query(max_length=64)]
PageNumber = Annotated[int, Query(alias="page", ge=1, le=10_000)]


@router.get("/")
def overview(request: Request, kernel: Name = None, device_model: Name = None) -> HTMLResponse:
    """Device models with their newest best configurations, and the newest jobs."""
    kernel, device_model = kernel or None, device_model or None  # a form sends empty ones
    with transaction() as session:
        models, devices = registry.device_models(session), registry.devices(session)
        found = results_by_model(session, kernel=kernel, device_model=device_model, each=SHOWN_EACH)
        recent = jobs.jobs(session, limit=job_pages.SHOWN_IN_SHORT)
    newest = sorted((r for each in found.values() for r in each.items), key=lambda r: -r.id)
    chosen = [model for model in models if device_model in (None, model.slug)]
    return page(
        "overview.html",
        refresh_s=job_pages.refresh_s(recent.items),
        source=address("/", {"kernel": kernel, "device_model": device_model}),
        kernel=kernel,
        device_model=device_model,
        kernels=sorted(catalogue().by_name),
        models=models,
        sections=views.sections(chosen, devices, found),
        curl=views.curl_line(str(request.base_url).rstrip("/"), newest),
        **job_pages.in_short(recent.items),
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
        found = results(session, kernel=kernel, device_model=slug, limit=SHOWN_RESULTS, cursor=cursor)
        newest = studies.studies(session, device_model=slug, kernel=kernel, limit=SHOWN_STUDIES)
    path = f"/device-models/{slug}"
    return page(
        "device_model.html",
        model=models[slug],
        devices=devices,
        kernel=kernel,
        kernels=sorted(catalogue().by_name),
        rows=views.result_lines(found.items, devices),
        studies=newest.items,
        first=address(path, {"kernel": kernel}) if cursor else None,
        next=address(path, {"kernel": kernel, "cursor": found.next_cursor}) if found.next_cursor else None,
    )


@router.get("/studies/{study_id}")
def study(study_id: int, sort: studies.Order = "fastest", number: PageNumber = 1) -> HTMLResponse:
    """One study with its trials, fastest or newest first."""
    skip = (number - 1) * SHOWN_TRIALS
    with transaction() as session:
        found = studies.study(session, study_id)
        trials = studies.shown_trials(session, study_id=study_id, order=sort, limit=SHOWN_TRIALS, skip=skip)

    def at(wanted: int) -> str:
        return address(f"/studies/{study_id}", {"sort": sort, "page": wanted})

    last = max(1, -(-found.trials // SHOWN_TRIALS))
    return page(
        "study.html",
        study=found,
        sort=sort,
        trials=views.trial_lines(found.problem.kernel, trials),
        outcomes=views.outcome_counts(found.outcomes),
        page=number,
        pages=last,
        previous=at(number - 1) if number > 1 else None,
        next=at(number + 1) if number < last else None,
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


router.include_router(job_pages.router)
router.include_router(schedule_pages.router)
