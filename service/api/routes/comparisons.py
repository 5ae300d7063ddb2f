"""A kernel's matrix, two sides compared, and the history of one problem."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import AwareDatetime, Field

from tilewright.service.api.csv_pages import CSV_TOO, Format, listed, rendered
from tilewright.service.api.examples import FIELD_EXAMPLES as EXAMPLE
from tilewright.service.api.openapi import refuses
from tilewright.service.api.parameters import KernelName, PageQuery, ProblemQuery
from tilewright.service.api.parameters import Query as StrictQuery
from tilewright.service.api.problem_types import INVALID, NOT_FOUND, UNAVAILABLE
from tilewright.service.operations.answers import Page
from tilewright.service.operations.best.history import HistoryEntry, history
from tilewright.service.operations.catalog import kernel_named
from tilewright.service.operations.pages import MAX_ROW_ID
from tilewright.service.operations.parse import parse_options, parse_shape
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.views.cells import CellStatus
from tilewright.service.operations.views.compared import MOST_ROWS, ComparedAnswer, Side, compared
from tilewright.service.operations.views.matrix import MatrixFilter, MatrixPage, Order, Ranking, matrix

router = APIRouter(prefix="/v1", tags=["best"])


class MatrixQuery(PageQuery):
    """The filter of the kernel's problems."""

    dtype: str | None = Field(default=None, max_length=16, examples=[EXAMPLE["dtype"]])
    shape: str | None = Field(
        default=None,
        max_length=512,
        description="Only problems with these axis sizes; also all sizes as 4096x4096x4096, or one that any axis has.",
        examples=[EXAMPLE["shape"]],
    )
    options: str | None = Field(
        default=None, max_length=512, description="Only problems with these options.", examples=[EXAMPLE["options"]]
    )
    family: str | None = Field(default=None, max_length=64, examples=[EXAMPLE["family"]])
    status: CellStatus | None = Field(
        default=None, description="Only problems with a cell that is so: beside the library, or in need of attention."
    )
    device_model: str | None = Field(
        default=None,
        max_length=128,
        description="The device model whose cells `status` is about.",
        examples=[EXAMPLE["device_model"]],
    )
    order: Order = Field(
        default=Order.AGE, description="Newest first, smallest first, worst beside the library first, or by requests."
    )

    def chosen(self) -> MatrixFilter:
        """The filter."""
        return MatrixFilter(
            self.dtype, parse_options(self.options), self.shape, self.family, self.status, self.device_model
        )


@router.get(
    "/kernels/{kernel}/matrix",
    operation_id="get_matrix",
    response_model=MatrixPage,
    responses=CSV_TOO | refuses(INVALID, NOT_FOUND, UNAVAILABLE),
)
def get_matrix(request: Request, kernel: KernelName, query: Annotated[MatrixQuery, Query()]) -> MatrixPage | Response:
    """The kernel's problems, the last tuned first, each with how `best` answers it on every device model."""
    chosen, memory = query.chosen(), request.app.state.best

    def read(page: MatrixQuery) -> MatrixPage:
        with transaction() as session:
            ranking = Ranking(page.order)
            return matrix(session, kernel, chosen, ranking=ranking, limit=page.limit, cursor=page.cursor, memory=memory)

    return listed(request, query, read)


class CompareQuery(StrictQuery):
    """The two sides: each a device model, perhaps in one environment, perhaps at one time."""

    a: str = Field(max_length=128, description="Slug of a device model.", examples=[EXAMPLE["device_model"]])
    b: str = Field(
        max_length=128,
        description="Slug of a device model; it is compared with `a`.",
        examples=[EXAMPLE["device_model"]],
    )
    a_environment: int | None = Field(
        default=None, ge=1, le=MAX_ROW_ID, description="Only this environment.", examples=[1]
    )
    b_environment: int | None = Field(
        default=None, ge=1, le=MAX_ROW_ID, description="Only this environment.", examples=[2]
    )
    a_at: AwareDatetime | None = Field(default=None, description="The results as of this time.")
    b_at: AwareDatetime | None = Field(default=None, description="The results as of this time.")
    limit: int = Field(default=100, ge=1, le=MOST_ROWS, description="Most rows; counts and mean cover all of them.")
    format: Format = Field(default="json", description="csv: a line an item.", examples=[EXAMPLE["format"]])


@router.get(
    "/kernels/{kernel}/compare",
    operation_id="compare_results",
    response_model=ComparedAnswer,
    responses=CSV_TOO | refuses(INVALID, UNAVAILABLE),
)
def compare_results(
    request: Request, kernel: KernelName, query: Annotated[CompareQuery, Query()]
) -> ComparedAnswer | Response:
    """Two sides compared by problem, the largest change first; better or worse means beyond that problem's noise."""
    with transaction() as session:
        a = Side(query.a, query.a_environment, query.a_at)
        rows = compared(session, kernel, a, Side(query.b, query.b_environment, query.b_at), limit=query.limit)
    return rendered(request, rows, query.format)


class HistoryQuery(ProblemQuery):
    """The problem whose history is wanted."""

    shape: str = Field(max_length=512, description="Every axis of the kernel.", examples=[EXAMPLE["shape"]])
    device_model: str | None = Field(default=None, max_length=128, examples=[EXAMPLE["device_model"]])
    format: Format = Field(default="json", description="csv: a line an item.", examples=[EXAMPLE["format"]])


@router.get(
    "/kernels/{kernel}/history",
    operation_id="get_history",
    response_model=Page[HistoryEntry],
    responses=CSV_TOO | refuses(INVALID, NOT_FOUND, UNAVAILABLE),
)
def get_history(
    request: Request, kernel: KernelName, query: Annotated[HistoryQuery, Query()]
) -> Page[HistoryEntry] | Response:
    """Every best that the problem has had, the oldest first, and what changed in between."""
    problem = kernel_named(kernel).problem(parse_shape(query.shape), query.dtype, parse_options(query.options))
    with transaction() as session:
        rows = history(session, problem.hash, device_model=query.device_model)
    return rendered(request, rows, query.format)
