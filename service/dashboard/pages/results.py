"""The pages of results, device models and kernels. They work without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import formatting, views
from tilewright.service.dashboard.charts.roofline import roofline
from tilewright.service.dashboard.rendering import PageRoute, address, own_url, page
from tilewright.service.dashboard.tables import Column, PageNumber, Sort, TableOrder, arranged
from tilewright.service.errors import InvalidRequestError, NotFoundError
from tilewright.service.operations import catalog, registry
from tilewright.service.operations.answers import DeviceAnswer, KernelAnswer
from tilewright.service.operations.best.results import results
from tilewright.service.operations.best.results_table import (
    COLUMNS,
    MOST_MODELS,
    KernelResults,
    TableFilter,
    count_results,
    result_table,
    results_by_kernel,
    results_by_model,
)
from tilewright.service.operations.best.tables import tables_shown
from tilewright.service.operations.parse import parse_selection
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.studies import studies
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SHOWN_EACH = 10
SHOWN_RESULTS = 50
SHOWN_STUDIES = 20
DRAWN_RESULTS = 300

Name = Annotated[str | None, Query(max_length=128)]
Select = Annotated[str | None, Query(max_length=1024)]


@dataclass(frozen=True)
class Choice:
    """The filter of a page's best configurations, or the reason why it cannot be read."""

    query: Mapping[str, str | None]
    which: TableFilter
    refusal: InvalidRequestError | None = None

    @classmethod
    def of(cls, device_model: str | None, kernel: str | None, variant: str | None, select: str | None) -> Choice:
        """The choice that the form's fields make; empty fields count as none."""
        query = {"kernel": kernel or None, "variant": variant or None, "select": select or None}
        try:
            selection = parse_selection(select)
        except InvalidRequestError as error:
            return cls(query, TableFilter(device_model or None), error)
        return cls(query, TableFilter(device_model or None, query["kernel"], selection, query["variant"]))

    @property
    def values(self) -> dict[str, Any]:
        """The values and choices of the form."""
        kernels = catalogue().by_name
        of_kernel = [kernels[self.which.kernel]] if self.which.kernel in kernels else list(kernels.values())
        return {
            "chosen": self.query,
            "is_narrowed": bool(self.query["select"] or self.query["variant"]),
            "refusal": self.refusal,
            "kernels": sorted(kernels),
            "variants": sorted({variant.name for kernel in of_kernel for variant in kernel.variants}),
        }


@router.get("/results")
def by_model(
    request: Request,
    *,
    kernel: Name = None,
    device_model: Name = None,
    variant: Name = None,
    select: Select = None,
    sort: Sort = None,
) -> HTMLResponse:
    """Device models with their best configurations, newest first or by any column."""
    choice = Choice.of(device_model, kernel, variant, select)
    kept = {"device_model": device_model or None, **choice.query}
    order = TableOrder.of(sort, COLUMNS, lambda text: address("/results", kept | {"sort": text}))
    with transaction() as session:
        models, devices = registry.device_models(session), registry.devices(session)
        found = {} if choice.refusal else results_by_model(session, choice.which, order.text, each=SHOWN_EACH)
    values = choice.values
    is_cut = len(found) >= MOST_MODELS
    only_found = is_cut or values["is_narrowed"]
    shown = [m for m in models if device_model in (None, "", m.slug) and (m.slug in found or not only_found)]
    is_newest = order.text == "-verified" and not values["is_narrowed"]
    newest = sorted((result for each in found.values() for result in each.items), key=lambda result: -result.id)
    return page(
        "results.html",
        status=422 if choice.refusal else 200,
        source=address("/results", kept | {"sort": sort}),
        data=address("/v1/results", kept),
        matrix_path=address("/", {"kernel": kernel, "device_model": device_model}),
        device_model=device_model or None,
        models=models,
        sort=sort,
        order=order,
        sections=views.sections(shown, devices, found),
        most_shown=MOST_MODELS if is_cut else None,
        all_path=lambda slug: f"{address(f'/device-models/{quote(slug)}', {**choice.query, 'sort': sort})}#best",
        curl=views.curl_line(own_url(request), newest) if is_newest else None,
        **values,
    )


DEVICES: Mapping[str, Column[DeviceAnswer]] = {
    "host": Column(lambda device: (device.host, device.ordinal)),
    "index": Column(lambda device: device.ordinal),
    "worker": Column(lambda device: (device.state == "lost", not device.alive), greatest_first=True),
    "heartbeat": Column(lambda device: device.heartbeat_at, greatest_first=True),
    "environment": Column(lambda device: formatting.environment(device.environment)),
    "uuid": Column(lambda device: device.uuid),
}
"""The sortable columns of a model's devices."""


@router.get("/device-models/{slug}")
def device_model(
    request: Request,
    slug: str,
    *,
    kernel: Name = None,
    variant: Name = None,
    select: Select = None,
    sort: Sort = None,
    by: Annotated[str | None, Query(alias="studies", max_length=32)] = None,
    number: PageNumber = 1,
) -> HTMLResponse:
    """One device model: its limits, its devices, all its best configurations, its studies."""
    choice = Choice.of(slug, kernel, variant, select)
    path, kept = f"/device-models/{slug}", choice.query
    order = TableOrder.of(sort, COLUMNS, lambda text: f"{address(path, {**kept, 'studies': by, 'sort': text})}#best")
    study_order = TableOrder.of(
        by,
        studies.STUDY_COLUMNS,
        lambda text: f"{address(path, {**kept, 'sort': sort, 'studies': text})}#studies",
        "studies",
    )
    with transaction() as session:
        models = {model.slug: model for model in registry.device_models(session)}
        if slug not in models:
            raise NotFoundError("device model", slug, list(models))
        devices = [device for device in registry.devices(session) if device.model == slug]
        drawn = results(session, kernel=kernel or None, device_model=slug, limit=DRAWN_RESULTS)
        drawable = count_results(session, TableFilter(slug, kernel or None))
        skip = (number - 1) * SHOWN_RESULTS
        shown = (
            [] if choice.refusal else result_table(session, choice.which, order.text, limit=SHOWN_RESULTS, skip=skip)
        )
        total = count_results(session, choice.which)
        which = {"device_model": slug, "kernel": kernel or None}
        own_studies = studies.shown_studies(session, **which, order=study_order.text, limit=SHOWN_STUDIES)
        study_total = studies.count_studies(session, **which)
    device_order, sorted_devices = arranged(request, "devices", DEVICES, devices)

    def at(page_number: int) -> str:
        return f"{address(path, {**kept, 'sort': sort, 'page': page_number if page_number > 1 else None})}#best"

    return page(
        "device_model.html",
        status=422 if choice.refusal else 200,
        model=models[slug],
        devices=devices,
        is_served=any(device.alive for device in devices),
        sort=sort,
        order=order,
        total=total,
        data=address("/v1/results", {"device_model": slug, **kept}),
        roofline=roofline(drawn.items, models[slug].details),
        drawn=formatting.of_all(len(drawn.items), drawable, "result"),
        rows=views.result_lines(shown, devices),
        studies=own_studies,
        study_total=study_total,
        study_order=study_order,
        sorted_devices=sorted_devices,
        device_order=device_order,
        first=at(1) if number > 1 else None,
        next=at(number + 1) if skip + len(shown) < total else None,
        **choice.values,
    )


KERNELS: Mapping[str, Column[tuple[KernelAnswer, KernelResults]]] = {
    "kernel": Column(lambda row: row[0].name),
    "variants": Column(lambda row: len(row[0].declaration["variants"]), greatest_first=True),
    "results": Column(lambda row: row[1].total, greatest_first=True),
    "verified": Column(lambda row: row[1].verified_at, greatest_first=True),
}
"""The sortable columns of the kernels."""


@router.get("/kernels")
def kernels(request: Request) -> HTMLResponse:
    """Every kernel, and how many results of it there are."""
    with transaction() as session:
        known, counts = catalog.kernels(session), results_by_kernel(session)
    rows = [(one, counts.get(one.name, KernelResults(0, None))) for one in known]
    order, rows = arranged(request, "sort", KERNELS, rows)
    return page("kernels.html", rows=rows, order=order)


@router.get("/kernels/{name}")
def kernel(name: str, *, sort: Sort = None) -> HTMLResponse:
    """One kernel: its declaration, its sources, its best configurations, the newest or the first by any column."""
    order = TableOrder.of(sort, COLUMNS, lambda text: f"{address(f'/kernels/{quote(name)}', {'sort': text})}#best")
    with transaction() as session:
        found = catalog.kernel(session, name)
        shown = result_table(session, TableFilter(kernel=name), order.text, limit=SHOWN_EACH)
        total = count_results(session, TableFilter(kernel=name))
        devices, tables = registry.devices(session), tables_shown(session, name)
    declared = catalogue().by_name.get(name)
    sources = [variant.name for variant in declared.variants] if declared else []
    example: dict[str, Any] = found.declaration["example_shape"]
    return page(
        "kernel.html",
        kernel=found,
        sources=sources,
        tables=tables,
        example=",".join(f"{axis}={size}" for axis, size in example.items()),
        rows=views.result_lines(shown, devices),
        order=order,
        total=total,
        results_path=address("/results", {"kernel": name, "sort": sort}),
    )


@router.get("/kernels/{name}/variants/{variant}")
def variant_source(name: str, variant: str) -> HTMLResponse:
    """The source of one variant: those of a kernel with many would be most of its page."""
    declared = catalogue().by_name.get(name)
    if declared is None or variant not in {one.name for one in declared.variants}:
        raise NotFoundError("variant", f"{variant} of {name}")
    return page("variant.html", kernel=name, variant=declared.variant(variant), source=declared.source(variant))
