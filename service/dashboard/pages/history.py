"""The page of the latest changes: problems whose best was replaced, and a form that leads to any problem."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import RedirectResponse, Response

from tilewright.kernels.errors import InvalidProblemError
from tilewright.service.dashboard import views
from tilewright.service.dashboard.rendering import PageRoute, page
from tilewright.service.errors import InvalidRequestError, NotFoundError
from tilewright.service.operations.best.history import changed_problems
from tilewright.service.operations.catalog import kernel_named
from tilewright.service.operations.parse import format_shape, parse_options
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.shape_filter import shape_of
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False, route_class=PageRoute)

Text = Annotated[str | None, Query(max_length=512)]


@router.get("/history")
def history_page(
    *,
    kernel: Annotated[str | None, Query(max_length=64)] = None,
    shape: Text = None,
    dtype: Annotated[str | None, Query(max_length=16)] = None,
    options: Text = None,
) -> Response:
    """The latest changes, of one kernel where it is named; with a shape, the page of that problem."""
    chosen = {"kernel": kernel, "shape": shape, "dtype": dtype or "float32", "options": options}
    refusal = None
    if shape:
        try:
            named = kernel_named(kernel or "gemm")
            problem = named.problem(shape_of(shape, named.axes), chosen["dtype"] or "", parse_options(options))
            return RedirectResponse(views.problem_path(problem), status_code=303)
        except (InvalidProblemError, InvalidRequestError, NotFoundError) as error:
            refusal = error
    with transaction() as session:
        changed = changed_problems(session, kernel=kernel or None)
    declared = catalogue().by_name.get(kernel or "gemm")
    return page(
        "history.html",
        status=422 if refusal else 200,
        kernels=sorted(catalogue().by_name),
        chosen=chosen,
        refusal=refusal,
        dtypes=declared.dtypes if declared else (chosen["dtype"],),
        example=format_shape(dict(declared.example_shape)) if declared else "",
        changed=changed,
    )
