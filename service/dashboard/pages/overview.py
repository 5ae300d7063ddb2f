"""The first page: a strip of figures by device model, and the matrix of problems and device models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from tilewright.service.dashboard import formatting, matrix_view
from tilewright.service.dashboard.pages import jobs as job_pages
from tilewright.service.dashboard.rendering import PageRoute, address, own_url, page
from tilewright.service.dashboard.search import EXAMPLE, job_path, searched
from tilewright.service.dashboard.tables import Column, TableOrder, arranged, own_path
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations import registry
from tilewright.service.operations.answers import DeviceModelAnswer
from tilewright.service.operations.best_cache.memory import BestMemory
from tilewright.service.operations.jobs import jobs
from tilewright.service.operations.parse import parse_options
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.views.cells import CellStatus
from tilewright.service.operations.views.kernel_summaries import KernelSummary, kernel_summaries
from tilewright.service.operations.views.matrix import (
    FAMILIES,
    MOST_COLUMNS,
    MatrixFilter,
    MatrixPage,
    Measure,
    Order,
    Ranking,
    matrix,
    newest_kernel,
)

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SHOWN, MOST_CELLS = 200, 1000
"""Rows of a page, and cells, of some 23 bytes each as they cross the network: a page weighs 60 KiB at most."""

Text = Annotated[str | None, Query(max_length=256)]
Cursor = Annotated[str | None, Query(max_length=96)]


def count_of(status: CellStatus, line: Mapping[str, Any]) -> int:
    """The number of cells of a line of the strip with that status."""
    counts: dict[CellStatus, int] = {one: count for one, count, _ in line["counts"]}
    return counts[status]


STRIP: Mapping[str, Column[Mapping[str, Any]]] = {
    "model": Column(lambda line: line["place"]),
    "tuned": Column(lambda line: line["tuned"], greatest_first=True),
    "mean": Column(lambda line: line["mean"], greatest_first=True),
    **{status.value: Column(partial(count_of, status), greatest_first=True) for status in CellStatus},
}
"""The sortable columns of the strip."""

NOTHING = MatrixPage(items=[], total=0, models=[])


@router.get("/")
def overview(
    request: Request,
    *,
    q: Text = None,
    kernel: Text = None,
    device_model: Text = None,
    family: Text = None,
    dtype: Text = None,
    shape: Text = None,
    options: Text = None,
    status: CellStatus | Annotated[str, Query(max_length=0)] | None = None,
    order: Annotated[str | None, Query(max_length=128)] = None,
    colour: Measure | None = None,
    cursor: Cursor = None,
) -> Response:
    """A kernel's matrix: a row per shape, a column per device model that has results of it."""
    filters = {"family": family, "dtype": dtype, "shape": shape, "options": options, "status": status or None}
    with transaction() as session:
        models = registry.device_models(session)
        kernel = kernel or newest_kernel(session) or "gemm"
        # No library is timed on the CPU device: there the gain over the default leads.
        usual = Measure.DEFAULT if models and all(model.kind == "cpu" for model in models) else Measure.LIBRARY
        colour = colour or usual
        named = {"kernel": kernel, "device_model": device_model or None, **filters}
        unusual = {"order": order or None, "colour": colour if colour is not usual else None}
        sorting = _sorting(order, models, named | unusual)
        found, refusal = NOTHING, None
        if q:
            if job := job_path(q):
                return RedirectResponse(job, status_code=303)
            try:
                meant = searched(q, kernel, catalogue().by_name, models)
                return RedirectResponse(address("/", named | meant | unusual), status_code=303)
            except InvalidRequestError as error:
                refusal = error
        if refusal is None:
            columns = min(len(models), MOST_COLUMNS) if not device_model else 1
            limit = min(SHOWN, MOST_CELLS // max(columns, 1))
            ranking, memory = _ranking(sorting, colour), request.app.state.best
            found, refusal = _read(session, named, ranking, cursor or None, memory, limit)
        is_filtered = any(value for name, value in named.items() if name != "kernel")
        is_home = not (is_filtered or cursor or refusal)
        home = Home.of(kernel_summaries(session)) if is_home else None
        recent = jobs.jobs(session, limit=job_pages.SHOWN_IN_SHORT)
        served = {device.model for device in registry.devices(session) if device.alive}
    lines = matrix_view.strip(found.models, models, named | unusual | {"status": None})
    strip_order, strip = arranged(request, "strip", STRIP, lines)
    return page(
        "overview.html",
        status=422 if refusal else 200,
        refresh_s=job_pages.refresh_s(recent.items),
        chosen=named | {"colour": colour, "order": sorting.text, "q": q},
        sorting=sorting,
        is_filtered=is_filtered,
        is_colour_chosen=colour is not usual,
        home=home,
        source=own_path(request),
        data=address(
            f"/v1/kernels/{kernel}/matrix",
            filters | {"device_model": device_model, "order": sorting.text if sorting.text in list(Order) else None},
        ),
        first=address("/", named | unusual) if cursor else None,
        next=address("/", named | unusual | {"cursor": found.next_cursor}) if found.next_cursor else None,
        base_url=own_url(request),
        example_model=next((model.slug for model in models if model.slug in served), None),
        **_choices(models),
        refusal=refusal,
        strip_order=strip_order,
        strip=strip,
        **_values(found, models, colour, named["device_model"]),
        **job_pages.in_short(request, recent.items),
    )


def _sorting(order: str | None, models: list[DeviceModelAnswer], kept: dict[str, Any]) -> TableOrder:
    """The order of the rows: one of the named orders, or the column of a device model."""
    columns = [Order.SIZE, *Order, *(model.slug for model in models)]
    return TableOrder.of(
        order or None, dict.fromkeys(columns, False), lambda text: address("/", kept | {"order": text}), "order"
    )


def _ranking(sorting: TableOrder, measure: Measure) -> Ranking:
    if sorting.column in list(Order):
        return Ranking(Order(sorting.column), is_reversed=sorting.is_descending)
    return Ranking(device_model=sorting.column, measure=measure, is_reversed=sorting.is_descending)


def _read(
    session: Session, named: dict[str, Any], ranking: Ranking, cursor: str | None, memory: BestMemory, limit: int
) -> tuple[MatrixPage, InvalidRequestError | None]:
    """The rows and figures, or nothing and the reason why a filter cannot be read."""
    try:
        chosen = MatrixFilter(
            dtype=named["dtype"] or None,
            options=parse_options(named["options"]),
            shape=named["shape"] or None,
            family=named["family"] or None,
            status=named["status"],
            device_model=named["device_model"],
        )
        found = matrix(
            session,
            named["kernel"],
            chosen,
            ranking=ranking,
            limit=limit,
            cursor=cursor,
            only_known=True,
            memory=memory,
        )
    except InvalidRequestError as error:
        return NOTHING, error
    return found, None


def _choices(models: list[DeviceModelAnswer]) -> dict[str, Any]:
    """The choices that the form offers."""
    return {
        "kernels": sorted(catalogue().by_name),
        "families": FAMILIES,
        "models": models,
        "colours": matrix_view.COLOURS,
        "orders": matrix_view.ORDERS,
        "statuses": matrix_view.STATUSES,
        "matches": matrix_view.MATCHES,
        "search_example": EXAMPLE,
    }


def _values(found: MatrixPage, models: list[DeviceModelAnswer], colour: Measure, only: str | None) -> dict[str, Any]:
    """The values of the template that draw the matrix."""
    known = {one.device_model for one in found.models}
    shown = {cell.device_model for row in found.items[:1] for cell in row.cells}
    all_stale = matrix_view.all_stale(found.items)
    lines = matrix_view.lines(found.items, colour, all_stale)
    about = {line["about"] for line in lines}
    return {
        "columns": matrix_view.columns([m for m in models if m.slug == only or m.slug in shown]),
        "hidden": 0 if only else len(known - shown),
        "folded": [model for model in models if model.slug not in known],
        "axes": matrix_view.axes_text([row.problem for row in found.items]),
        "about": about.pop() if len(about) == 1 else None,  # what all rows share is said once
        "lines": lines,
        "all_stale": all_stale,
        "legend": matrix_view.LEGENDS[colour],
        "total": found.total,
        "pending": sum(cell.pending for row in found.items for cell in row.cells),
    }


@dataclass(frozen=True)
class Home:
    """Sums over all kernels, a line for each, and the next things to do as sentences with addresses."""

    kernels: Sequence[KernelSummary]
    tuned: int
    over_library: float | None
    over_default: float | None
    is_stand_in: bool
    next: Sequence[tuple[str, str]]

    @classmethod
    def of(cls, kernels: Sequence[KernelSummary]) -> Home:
        """The summary over all kernels; those of a stand-in count only where there is no GPU's."""
        tuned = [one for one in kernels if one.tuned]
        is_stand_in = bool(tuned) and all(one.is_stand_in for one in tuned)
        counted = [one for one in tuned if one.is_stand_in is is_stand_in]
        return cls(
            kernels,
            sum(one.tuned for one in tuned),
            _mean((one.over_library, one.compared) for one in counted),
            _mean((one.over_default, one.improved) for one in counted),
            is_stand_in,
            _next([one for one in kernels if not one.is_stand_in]) if tuned else (),
        )


def _mean(pairs: Iterable[tuple[float | None, int]]) -> float | None:
    """The geometric mean of means, each of so many values."""
    known = [(math.log(mean) * count, count) for mean, count in pairs if mean is not None]
    return math.exp(sum(log for log, _ in known) / sum(count for _, count in known)) if known else None


def _next(kernels: Sequence[KernelSummary]) -> list[tuple[str, str]]:
    """The things worth doing with their pages, the most urgent first."""

    def count(status: CellStatus) -> int:
        return sum(one.counts[status] for one in kernels)

    requested = sum(one.requested for one in kernels)
    found = (
        (count(CellStatus.FAILED), "problem", "that only failed: read why", "/attention?kind=failing"),
        (count(CellStatus.REGRESSED), "result", "slower than before: see since when", "/attention?kind=regressed"),
        (requested, "requested problem", "not tuned: tune the most requested", "/demand"),
        (count(CellStatus.BEHIND), "result", "behind the library: tune longer", "/attention?kind=behind"),
        (count(CellStatus.STALE), "stale result", "to be measured again", "/attention?kind=stale"),
    )
    return [(f"{formatting.counted(number, noun)} {rest}", path) for number, noun, rest, path in found if number]
