"""The first page: a matrix of problems and device models."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import matrix_view
from tilewright.service.dashboard.matrix_view import Colour
from tilewright.service.dashboard.pages import jobs as job_pages
from tilewright.service.dashboard.rendering import PageRoute, address, own_url, page
from tilewright.service.operations import registry
from tilewright.service.operations.jobs import jobs
from tilewright.service.operations.parse import parse_options, parse_shape
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.views.families import FAMILIES
from tilewright.service.operations.views.matrix import ProblemRow, matrix, newest_kernel

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SHOWN = 40

Text = Annotated[str | None, Query(max_length=256)]
Cursor = Annotated[str | None, Query(max_length=64)]


@router.get("/")
def overview(
    request: Request,
    *,
    kernel: Text = None,
    device_model: Text = None,
    family: Text = None,
    dtype: Text = None,
    shape: Text = None,
    options: Text = None,
    colour: Colour = "library",
    cursor: Cursor = None,
) -> HTMLResponse:
    """A kernel's matrix: a row per shape, a column per device model."""
    filters = {"family": family, "dtype": dtype, "shape": shape, "options": options}
    with transaction() as session:
        models = registry.device_models(session)
        kernel = kernel or newest_kernel(session) or next(iter(catalogue().by_name))
        found = matrix(
            session,
            kernel,
            dtype=dtype or None,
            options=parse_options(options),
            shape=parse_shape(shape) if shape else None,
            family_name=family or None,
            limit=SHOWN,
            cursor=cursor or None,
        )
        recent = jobs.jobs(session, limit=job_pages.SHOWN_IN_SHORT)
    columns = matrix_view.columns(models, device_model or None)
    named = {"kernel": kernel, "device_model": device_model, **filters}
    kept = named | {"colour": colour if colour != "library" else None}
    return page(
        "overview.html",
        refresh_s=job_pages.refresh_s(recent.items),
        source=address("/", kept | {"cursor": cursor}),
        data=address(f"/v1/kernels/{kernel}/matrix", filters | {"cursor": cursor}),
        chosen=named | {"colour": colour},
        is_filtered=any(filters.values()) or bool(device_model),
        kernels=sorted(catalogue().by_name),
        families=FAMILIES,
        models=models,
        columns=columns,
        names={model.slug: model.name for model in models},
        colours=matrix_view.COLOURS,
        legend=matrix_view.LEGEND,
        groups=matrix_view.groups(_only(found.items, device_model or None), colour),
        first=address("/", kept) if cursor else None,
        next=address("/", kept | {"cursor": found.next_cursor}) if found.next_cursor else None,
        base_url=own_url(request),
        **job_pages.in_short(recent.items),
    )


def _only(rows: list[ProblemRow], device_model: str | None) -> list[ProblemRow]:
    """The rows, with only the chosen model's cells if one is chosen."""
    if device_model is None:
        return rows
    return [
        row.model_copy(update={"cells": [cell for cell in row.cells if cell.device_model == device_model]})
        for row in rows
    ]
