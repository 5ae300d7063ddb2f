"""The page of one problem, that of a family's table, and that of the latest changes of bests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from tilewright.kernels.errors import InvalidProblemError
from tilewright.service.dashboard import formatting, matrix_view, views
from tilewright.service.dashboard.charts.compared import searches_chart
from tilewright.service.dashboard.charts.history import history_chart
from tilewright.service.dashboard.charts.study import Over
from tilewright.service.dashboard.charts.table import table_chart
from tilewright.service.dashboard.pages import jobs as job_pages
from tilewright.service.dashboard.pages.ask import TRIALS
from tilewright.service.dashboard.rendering import PageRoute, address, may, own_url, page
from tilewright.service.dashboard.snippets import launches, tune_command
from tilewright.service.dashboard.tables import Sort, TableOrder
from tilewright.service.errors import InvalidRequestError, NotFoundError
from tilewright.service.operations import DEFAULT_PRIORITY, registry
from tilewright.service.operations.answers import BestAnswer, DeviceModelAnswer
from tilewright.service.operations.best.history import HistoryEntry, changed_problems
from tilewright.service.operations.best.tables import table
from tilewright.service.operations.best_cache.memory import BestMemory
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.catalog import kernel_named
from tilewright.service.operations.pages import MAX_ROW_ID
from tilewright.service.operations.parse import format_shape, parse_options
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.shape_filter import shape_of
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.views.matrix_rows import CellAnswer
from tilewright.service.operations.views.problem import KnownProblem, NamedProblem, known_problem

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SEARCHES: Sequence[Over] = ("trial", "spent")
"""The axes by which searches can be laid over one another."""

Text = Annotated[str, Query(max_length=512)]
SIGNS = {"better": "\N{BLACK UP-POINTING TRIANGLE}", "worse": "\N{BLACK DOWN-POINTING TRIANGLE}", "same": "="}

COLUMNS = {
    "verified": True,
    "model": False,
    "environment": True,
    "configuration": False,
    "time": False,
    "library": True,
    "previous": True,
}
VALUES: Mapping[str, Callable[[HistoryEntry], Any]] = {
    "verified": lambda entry: entry.verified_at,
    "model": lambda entry: entry.device_model,
    "environment": lambda entry: formatting.environment(entry.environment),
    "configuration": lambda entry: (entry.variant, sorted(entry.configuration.items())),
    "time": lambda entry: entry.time_ms,
    "library": lambda entry: entry.library_ms and entry.library_ms / entry.time_ms,
    "previous": lambda entry: entry.ratio and 1 / entry.ratio,
}
"""The sortable columns of the history; the newest row comes first."""


@router.get("/kernels/{kernel}/problem")
def problem_page(
    request: Request,
    kernel: str,
    *,
    shape: Text,
    dtype: Annotated[str, Query(max_length=16)] = "float32",
    options: Text = "",
    sort: Sort = None,
) -> HTMLResponse:
    """One problem; an address that names none is refused with the reason."""
    memory: BestMemory = request.app.state.best
    with transaction() as session:
        known = known_problem(session, NamedProblem(kernel, shape, dtype, options or None), memory)
        models = {model.slug: model for model in registry.device_models(session)}
        devices = registry.devices(session)
    problem, path = known.problem, views.problem_path(known.problem)
    order = TableOrder.of(sort, COLUMNS, lambda text: f"{path}&sort={text}#published")
    current = {entry.device_model: entry for entry in known.history if entry.stands}  # the newest of each
    rows = [_row(cell, known, models[cell.device_model], devices, memory) for cell in known.cells]
    declared = catalogue().by_name.get(problem.kernel)
    of_launch = None if declared is None else declared.problem(problem.shape, problem.dtype, problem.options)
    query = {
        "shape": formatting.shape_text(problem),
        "dtype": problem.dtype,
        "options": formatting.unusual_options(problem),
    }
    return page(
        "problem.html",
        refresh_s=job_pages.refresh_s(known.jobs),
        problem=problem,
        source=f"{path}&sort={order.text}" if sort else path,
        rows=rows,
        first=_first(rows),
        order=order,
        entries=[_line(entry, problem.kernel) for entry in order.sorted(known.history[::-1], VALUES[order.column])],
        current={entry.result_id for entry in current.values()},
        regressed=[entry for entry in current.values() if entry.verdict == "worse"],
        chart=history_chart(known.history),
        searches=[searches_chart(known.jobs, known.steps, over) for over in SEARCHES],
        notes=known.notes,
        acknowledged={note.acknowledged_result_id: note for note in known.notes},
        studies=known.studies,
        jobs=[views.job_line(job) for job in known.jobs],
        can_tune=may(request, Scope.TUNE),
        trials=TRIALS,
        priority=DEFAULT_PRIORITY,
        pending=any(row["pending"] for row in rows),
        launches={} if declared is None or of_launch is None else launches(declared, of_launch, own_url(request)),
        command=tune_command(problem, _first(rows)),
        data=address(f"/v1/kernels/{problem.kernel}/history", query),
    )


def _row(
    cell: CellAnswer, known: KnownProblem, model: DeviceModelAnswer, devices: list[Any], memory: BestMemory
) -> dict[str, Any]:
    """One device model: the best there, or how the problem is answered meanwhile."""
    problem, slug = known.problem, cell.device_model
    job = next((job for job in known.jobs if views.is_open(job) and job.device_model == slug), None)
    own = [device for device in devices if device.model == slug]
    mark, meaning = matrix_view.MATCHES[cell.match] if cell.match else ("", "")
    return {
        "slug": slug,
        "name": model.name,
        "is_stand_in": model.kind == "cpu",
        "best": views.result_lines([cell.result], own)[0] if cell.result else None,
        "stale_because": cell.result.stale_because if cell.result else [],
        "is_usable": cell.is_usable,
        "match": cell.match.value if cell.match else None,
        "mark": mark,
        # Which records, and what has changed since, is in the title: it takes four lines.
        "meaning": f"{cell.match} from {cell.shipped.partition(' (')[0]}" if cell.match and cell.shipped else meaning,
        "shipped": cell.shipped,
        "expected_ms": None if cell.result else _expected_ms(cell, known, memory),
        "expected_loss": cell.expected_loss,
        "refused": cell.refused,
        "pending": cell.pending,
        "failure": cell.failure,
        "demand": known.demand.get(slug),
        "ask_path": views.ask_path(problem, slug),
        "job": views.job_line(job) if job else None,
        "is_served": slug in known.served,
        "problem": problem,
        "device_model": slug,
        "body": problem.model_dump(mode="json") | {"device_model": slug},
    }


def _first(rows: list[dict[str, Any]]) -> str | None:
    """The device model whose button is filled: one with a worker, else one with a best."""
    ranked = sorted(rows, key=lambda row: (row["is_stand_in"], not row["is_served"], row["best"] is None))
    return ranked[0]["slug"] if ranked else None


def _expected_ms(cell: CellAnswer, known: KnownProblem, memory: BestMemory) -> float | None:
    """The time that a prediction in memory expects; None for other answers, whose times are those of other problems."""
    problem = known.problem
    if cell.match is None or cell.match.value != "predicted":
        return None
    kept = memory.find(problem.kernel, cell.device_model, problem.shape, problem.dtype, problem.options)
    return None if kept is None else BestAnswer.model_validate_json(kept.as_json).time_ms


def _line(entry: HistoryEntry, kernel: str) -> dict[str, Any]:
    return {
        "entry": entry,
        "sign": SIGNS.get(entry.verdict or ""),
        "configuration": formatting.configuration(kernel, entry.variant, entry.configuration),
        "against_library": entry.library_ms / entry.time_ms if entry.library_ms is not None else None,
    }


@router.get("/tables/{table_id}")
def family(request: Request, table_id: int) -> HTMLResponse:
    """The page of one table."""
    if not 0 < table_id <= MAX_ROW_ID:
        raise NotFoundError("table", str(table_id))
    with transaction() as session:
        found = table(session, table_id)
    ranges = [
        {
            "range": one,
            "configuration": formatting.configuration(found.kernel, one.variant, one.configuration),
            "time_ms": [one.times_ms[size] for size in sorted(one.times_ms, key=int)],
        }
        for one in found.ranges
    ]
    return page(
        "family.html",
        table=found,
        chart=table_chart(found),
        ranges=ranges,
        data=views.table_path(found),
        can_tune=may(request, Scope.TUNE),
        again=found.model_dump(mode="json", include={"kernel", "shape", "dtype", "options", "device_model"}),
        command=tune_command(found, found.device_model),
    )


OptionalText = Annotated[str | None, Query(max_length=512)]


@router.get("/history")
def history_page(
    *,
    kernel: Annotated[str | None, Query(max_length=64)] = None,
    shape: OptionalText = None,
    dtype: Annotated[str | None, Query(max_length=16)] = None,
    options: OptionalText = None,
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
