"""Two sides compared, and the history of one problem."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import words
from tilewright.service.dashboard.charts.parts import Options, axis, chart, point, time_axis
from tilewright.service.dashboard.charts.small import Bar
from tilewright.service.dashboard.rendering import PageRoute, address, page
from tilewright.service.dashboard.snippets import tune_command
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations import registry
from tilewright.service.operations.best.history import HistoryEntry, history
from tilewright.service.operations.catalog import kernel_named
from tilewright.service.operations.pages import MAX_ROW_ID
from tilewright.service.operations.parse import format_options, format_shape, parse_options, parse_shape
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.views.compared import (
    MISSING_IN_A,
    MISSING_IN_B,
    MOST_ROWS,
    ComparedRow,
    Side,
    compared,
    environments,
)
from tilewright.service.operations.views.matrix import newest_kernel

router = APIRouter(include_in_schema=False, route_class=PageRoute)

Text = Annotated[str | None, Query(max_length=512)]
SIGNS = {
    "better": "\N{BLACK UP-POINTING TRIANGLE}",
    "worse": "\N{BLACK DOWN-POINTING TRIANGLE}",
    "same": "=",
    MISSING_IN_A: "\N{EM DASH}",
    MISSING_IN_B: "\N{EM DASH}",
}
SHOWN_ROWS = 100
"""Ten times as many rows take a second to render."""

COLOURS = ("--series-1", "--series-2", "--series-3", "--series-4")
SYMBOLS = ("circle", "rect", "triangle", "diamond")


def parse_side(field: str, model: str | None, environment: str | None, at: str | None) -> Side | None:
    """One side of the comparison; None while no device model is chosen. Raises InvalidRequestError naming the field."""
    if not model:
        return None
    if environment and not (environment.isdecimal() and int(environment) <= MAX_ROW_ID):
        raise InvalidRequestError(f"{field}_environment", "must be the number of an environment, like 1.")
    try:
        moment = datetime.fromisoformat(at) if at else None
    except ValueError:
        raise InvalidRequestError(f"{field}_at", "must be a time like 2026-11-21T12:00.") from None
    if moment is not None and moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Side(model, int(environment) if environment else None, moment)


@router.get("/compare")
def compare(
    *,
    kernel: Text = None,
    a: Text = None,
    b: Text = None,
    a_environment: Text = None,
    b_environment: Text = None,
    a_at: Text = None,
    b_at: Text = None,
) -> HTMLResponse:
    """Two device models, environments or times; with both chosen, the comparison problem by problem."""
    first, second = parse_side("a", a, a_environment, a_at), parse_side("b", b, b_environment, b_at)
    query = {"a": a, "b": b, "a_environment": a_environment, "b_environment": b_environment}
    with transaction() as session:
        kernel = kernel or newest_kernel(session) or "gemm"
        models = registry.device_models(session)
        known = environments(session, kernel)
        comparison = compared(session, kernel, first, second, limit=SHOWN_ROWS) if first and second else None
    times = {name: side.at.isoformat() for name, side in (("a_at", first), ("b_at", second)) if side and side.at}
    return page(
        "compare.html",
        kernel=kernel,
        kernels=sorted(catalogue().by_name),
        models=models,
        environments=known,
        chosen=query | {"a_at": a_at, "b_at": b_at},
        found=comparison,
        data_rows=MOST_ROWS,
        total=sum(comparison.counts.values()) if comparison else 0,
        both=sum(comparison.counts.get(v, 0) for v in ("better", "same", "worse")) if comparison else 0,
        counts=[(SIGNS[v], v, comparison.counts.get(v, 0)) for v in SIGNS] if comparison else [],
        rows=[_line(row) for row in comparison.items] if comparison else [],
        data=address(f"/v1/kernels/{kernel}/compare", query | times | {"limit": MOST_ROWS}),
    )


def _line(row: ComparedRow) -> dict[str, Any]:
    problem = row.problem
    query = {
        "kernel": problem.kernel,
        "shape": format_shape(words.ordered_shape(problem)),
        "dtype": problem.dtype,
        "options": format_options(problem.options),
    }
    return row.model_dump() | {
        "problem": problem,
        "sign": SIGNS[row.verdict],
        "bar": Bar.of(row.speedup) if row.speedup else None,
        "history_path": address("/history", query),
    }


@router.get("/history")
def history_page(
    kernel: Annotated[str, Query(max_length=64)],
    shape: Annotated[str, Query(max_length=512)],
    dtype: Annotated[str, Query(max_length=16)] = "float32",
    options: Text = None,
    device_model: Text = None,
) -> HTMLResponse:
    """Every best of one problem over drivers, toolkits and sources."""
    problem = kernel_named(kernel).problem(parse_shape(shape), dtype, parse_options(options))
    query = {"shape": shape, "dtype": dtype, "options": options, "device_model": device_model}
    with transaction() as session:
        record = history(session, problem, device_model=device_model or None)
        models = [] if record.items else registry.device_models(session)  # for the command of an empty page
    return page(
        "history.html",
        problem=problem,
        entries=[
            (entry, SIGNS.get(entry.verdict or ""), words.configuration(kernel, entry.variant, entry.configuration))
            for entry in reversed(record.items)
        ],
        chart=history_chart(record.items),
        command=tune_command(problem, device_model or next((model.slug for model in models), None)),
        ask=address("/ask", {"kernel": kernel, **query}),
        data=address(f"/v1/kernels/{kernel}/history", query),
    )


def _summary(entry: HistoryEntry) -> str:
    return f"{words.environment(entry.environment)}, source {entry.source_hash[:8]}"


def history_chart(entries: list[HistoryEntry]) -> Options | None:
    """Time over when it was verified, a line for each device model; None for fewer than two."""
    if len(entries) < 2:
        return None
    by_model: dict[str, list[HistoryEntry]] = {}
    for entry in entries:
        by_model.setdefault(entry.device_model, []).append(entry)
    series = [
        {
            "name": model,
            "type": "line",
            "symbol": SYMBOLS[place % len(SYMBOLS)],
            "symbolSize": 9,
            "step": "end",
            "lineStyle": {"color": COLOURS[place % len(COLOURS)]},
            "itemStyle": {"color": COLOURS[place % len(COLOURS)]},
            "data": [
                point(
                    (entry.verified_at.isoformat(), entry.time_ms),
                    "\n".join([f"{words.number(entry.time_ms)} ms", _summary(entry), *entry.changed]),
                    f"/studies/{entry.study_id}",
                )
                for entry in own
            ],
        }
        for place, (model, own) in enumerate(sorted(by_model.items()))
    ]
    x = axis("verified, UTC", kind="time", boundaryGap=["3%", "3%"])
    return chart(x=x, y=time_axis([entry.time_ms for entry in entries]), series=series, useUTC=True)
