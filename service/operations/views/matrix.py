"""The table of problems by device models on the first page and in its API: each pair's best, or why it has none.

Its filters include families of shapes: the network that a product comes from, or the look of its axes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import Field
from sqlalchemy import CTE, ColumnElement, Float, Select, Text, and_, case, cast, func, literal, or_, select, true
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, aggregate_order_by
from sqlalchemy.orm import Session

from tilewright.kernels.problem import OptionValue
from tilewright.service.operations.answers import Page
from tilewright.service.operations.best_cache.memory import BestMemory
from tilewright.service.operations.catalog import kernel as kernel_declared
from tilewright.service.operations.pages import cursor_content, invalid_cursor, packed_cursor
from tilewright.service.operations.shape_filter import as_number, of_shape
from tilewright.service.operations.views.cells import CellStatus, has_status, known_cells
from tilewright.service.operations.views.kernel_summaries import ModelSummary, summaries, summary_of
from tilewright.service.operations.views.matrix_rows import ProblemRow, problem_rows
from tilewright.service.store import models

FAMILIES = ("batches and views", "Llama-3-8B", "ResNet-50", "square", "odd sizes", "few rows", "other")
"""Families of shapes in order of precedence: the first that fits counts."""

FEW_ROWS = 64
ODD = 4
"""Rows of so many float32 values are aligned to 16 bytes, what one instruction reads; other sizes have edges."""

# Outputs and inputs of the weight matrices: hidden 4096, 8 key-value heads of 128, feed-forward 14336 (Llama-3-8B);
# the 3x3 convolutions of conv2_x and conv5_x as products of im2col (ResNet-50).
LLAMA = ((6144, 4096), (4096, 4096), (14336, 4096), (4096, 14336))
RESNET = ((64, 576), (512, 4608))


def family(axes: Sequence[str]) -> ColumnElement[str]:
    """The family of a joined problem whose kernel has these axes."""
    sizes = {axis: as_number(models.Problem.shape[axis].astext) for axis in axes}
    shapes = list(sizes.values())
    is_square = and_(*(size == shapes[0] for size in shapes[1:])) if len(shapes) > 1 else literal(value=False)
    is_odd = or_(*(func.mod(size, ODD) != 0 for size in shapes))
    whens = [(is_square, "square"), (is_odd & (shapes[0] > 1), "odd sizes"), (shapes[0] <= FEW_ROWS, "few rows")]
    if set(axes) == {"m", "n", "k"}:
        whens = [
            (~is_square & _layers(sizes, LLAMA), "Llama-3-8B"),
            (_layers(sizes, RESNET), "ResNet-50"),
            *whens,
        ]
    has_more = models.Problem.shape.op("-", return_type=JSONB())(cast(list(axes), ARRAY(Text))) != {}
    return case((has_more, "batches and views"), *whens, else_="other")


def _layers(sizes: Mapping[str, ColumnElement[int]], layers: Sequence[tuple[int, int]]) -> ColumnElement[bool]:
    return or_(*(and_(sizes["n"] == outputs, sizes["k"] == inputs) for outputs, inputs in layers))


MOST_COLUMNS = 10
"""Device models with a column of their own. Each cell without a result is answered as `best` would, which of one model
may take seconds: a page of a hundred models would not come at all."""

_CURSOR = re.compile(r"(-?[0-9a-fx.p+-]{1,40}|inf) ([0-9]{1,10})")


class Order(StrEnum):
    """The orders of the rows over all pages: newest first, smallest first, worst first, most requested first."""

    AGE = "age"
    SIZE = "size"
    RATIO = "ratio"
    DEMAND = "demand"


class Measure(StrEnum):
    """The time that a cell's result is compared with."""

    LIBRARY = "library"
    DEFAULT = "default"
    ROOF = "roof"


@dataclass(frozen=True)
class Ranking:
    """The order of the rows: a named one, or with a device model the measure of its cells, worst first.

    `is_reversed`: the other way round; rows without a value come last either way.
    """

    order: Order = Order.AGE
    device_model: str | None = None
    measure: Measure = Measure.LIBRARY
    is_reversed: bool = False


@dataclass(frozen=True)
class MatrixFilter:
    """The filter of a kernel's problems; `status` and the order count cells of `device_model` alone where it is
    given.
    """

    dtype: str | None = None
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    shape: str | None = None  # as `shape_filter.of_shape` reads it
    family: str | None = None
    status: CellStatus | None = None
    device_model: str | None = None


class MatrixPage(Page[ProblemRow]):
    """One page of problems, the number of all, and sums over their cells."""

    total: int
    models: list[ModelSummary] = Field(
        description="Each device model with a result or a failed job; the filter by status does not narrow these."
    )


def matrix(
    session: Session,
    kernel_name: str,
    chosen: MatrixFilter | None = None,
    *,
    ranking: Ranking | None = None,
    limit: int = 50,
    cursor: str | None = None,
    only_known: bool = False,
    memory: BestMemory | None = None,
) -> MatrixPage:
    """One page of problems with a cell for every device model; `only_known`: the chosen one, or the most tuned ones.

    Raises NotFoundError for an unknown kernel, InvalidRequestError for a shape that cannot be read.
    """
    cells = _cells(session, kernel_name, chosen or MatrixFilter())
    if cells is None:  # no worker has declared it yet
        return MatrixPage(items=[], total=0, models=[])
    axes, pairs, conditions = cells
    only = chosen.device_model if chosen else None
    ranked = _ranked(pairs, conditions, axes, ranking or Ranking(), only)
    place = (ranked.c.key, ranked.c.problem_id)
    shown_first = select(*place).order_by(*place).limit(limit + 1)
    part = (shown_first if cursor is None else shown_first.where(_is_after(ranked, cursor))).subquery("part")
    in_order = (part.c.key, part.c.problem_id)
    # One statement, so that the cells are found once: one row with the page, its total and the summary.
    keys, ids, total, figures = session.execute(
        select(
            func.array_agg(aggregate_order_by(part.c.key, *in_order)),
            func.array_agg(aggregate_order_by(part.c.problem_id, *in_order)),
            select(func.count()).select_from(ranked).scalar_subquery(),
            summary_of(pairs),
        )
    ).one()
    more = _cursor_of(keys[limit - 1], ids[limit - 1]) if ids and len(ids) > limit else None
    known = summaries(figures)
    shown = None if not only_known else _most_tuned(known) if only is None else [only]
    rows = problem_rows(session, (ids or [])[:limit], family(axes), shown=shown, memory=memory)
    return MatrixPage(items=rows, next_cursor=more, total=total, models=known)


def _most_tuned(known: Sequence[ModelSummary]) -> list[str]:
    ordered = sorted(known, key=lambda one: (-one.tuned, one.device_model))
    return [one.device_model for one in ordered[:MOST_COLUMNS]]


def _cells(
    session: Session, kernel_name: str, chosen: MatrixFilter
) -> tuple[list[str], CTE, list[ColumnElement[bool]]] | None:
    """The kernel's axes, its cells, and the conditions on them; None where no worker has declared the kernel yet."""
    axes: list[str] = kernel_declared(session, kernel_name).declaration["axes"]
    shape = None if chosen.shape is None else of_shape(chosen.shape, axes)
    # Its id as a number, not a join: only so can the database tell a kernel of many results from one of few.
    kernel_id = session.scalar(select(models.Kernel.id).where(models.Kernel.name == kernel_name))
    if kernel_id is None:
        return None
    problem = models.Problem
    wanted: list[ColumnElement[bool]] = [problem.kernel_id == kernel_id]
    if chosen.dtype is not None:
        wanted.append(problem.dtype == chosen.dtype)
    if chosen.options:
        wanted.append(problem.options.contains(dict(chosen.options)))
    if shape is not None:
        wanted.append(shape)
    if chosen.family is not None:
        wanted.append(family(axes) == chosen.family)
    pairs = known_cells(session, wanted)
    conditions = [] if chosen.status is None else [has_status(pairs, chosen.status)]
    if chosen.status is not None and chosen.device_model is not None:
        conditions.append(_is_of(pairs, chosen.device_model))
    return axes, pairs, conditions


def _is_of(pairs: CTE, slug: str) -> ColumnElement[bool]:
    model = select(models.DeviceModel.id).where(models.DeviceModel.slug == slug).scalar_subquery()
    return pairs.c.device_model_id == model


def _ranked(
    pairs: CTE, conditions: Sequence[ColumnElement[bool]], axes: Sequence[str], ranking: Ranking, only: str | None
) -> CTE:
    """The problems of these cells with a sort `key`, smallest first; `only`: just that model's cells count."""
    problem = models.Problem
    counted = true() if only is None else _is_of(pairs, only)
    query: Select[tuple[object, ...]] = select(pairs.c.problem_id).where(*conditions).group_by(pairs.c.problem_id)
    match ranking.order:
        case _ if ranking.device_model is not None:
            best = models.BestConfiguration
            query = query.outerjoin(best, best.id == pairs.c.best_id)
            measured = {
                Measure.LIBRARY: pairs.c.ratio,
                Measure.DEFAULT: best.default_ms / best.time_ms,
                Measure.ROOF: best.roof_ratio,
            }[ranking.measure]
            key: ColumnElement[Any] = func.min(measured).filter(_is_of(pairs, ranking.device_model))
        case Order.AGE:
            key = -func.max(func.extract("epoch", pairs.c.at)).filter(counted)
        case Order.RATIO:
            key = func.min(pairs.c.ratio).filter(counted)
        case Order.SIZE:
            sizes = [func.ln(func.greatest(as_number(problem.shape[axis].astext), 1)) for axis in axes]
            query = query.join(problem, problem.id == pairs.c.problem_id)
            key = func.max(sum(sizes[1:], sizes[0]))
        case Order.DEMAND:
            demand = models.Demand
            times = select(func.sum(demand.count)).join(problem, problem.hash == demand.problem_hash)
            times = times.where(problem.id == pairs.c.problem_id).correlate(pairs)
            if only is not None:
                times = times.join(models.DeviceModel).where(models.DeviceModel.slug == only)
            key = -func.coalesce(times.scalar_subquery(), 0)
    key = func.coalesce(cast(-key if ranking.is_reversed else key, Float), literal("Infinity").cast(Float))
    return query.add_columns(key.label("key")).cte("ranked")


def _is_after(ranked: CTE, cursor: str) -> ColumnElement[bool]:
    place = _CURSOR.fullmatch(cursor_content(cursor).decode("ascii", "replace"))
    try:
        key, problem_id = float.fromhex(place[1] if place else ""), int(place[2] if place else "")
    except ValueError:
        raise invalid_cursor() from None
    return case((ranked.c.key == key, ranked.c.problem_id > problem_id), else_=ranked.c.key > key)


def _cursor_of(key: float, problem_id: int) -> str:
    return packed_cursor(f"{key.hex()} {problem_id}".encode())


def newest_kernel(session: Session) -> str | None:
    """The kernel that was tuned last; None while nothing is."""
    best = models.BestConfiguration
    query = select(models.Kernel.name).join(models.Problem, models.Problem.kernel_id == models.Kernel.id)
    return session.scalar(query.join(best, best.problem_id == models.Problem.id).order_by(best.id.desc()).limit(1))
