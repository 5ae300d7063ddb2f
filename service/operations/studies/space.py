"""A study's trials as charts need them: few columns of many rows, and the improvements of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Integer, cast, func, or_, select
from sqlalchemy.orm import Session

from tilewright.service.operations.answers import JobAnswer
from tilewright.service.operations.jobs.jobs import OPEN, job
from tilewright.service.operations.studies.rows import split_configuration
from tilewright.service.store import models

MAX_DRAWN = 1200
"""Trials of one drawing: more would be slow to draw and no clearer."""

MAX_FAILED = 60
"""Of every kind of failure the first so many are drawn in any case: a rare one must not vanish from a sample."""

TIME = "time"
"""In a selection: the time in ms, beside the parameters."""

Selection = Mapping[str, tuple[float, float]]
"""Lowest and highest admitted value, by parameter."""


@dataclass(frozen=True)
class DrawnTrial:
    """One trial; `spent_s` is what all trials up to it have taken."""

    number: int
    spent_s: float
    time_ms: float | None
    outcome: str
    variant: str
    values: Mapping[str, int]


@dataclass(frozen=True)
class StudyDrawing:
    """The trials to draw (all, or the fastest, the first failures and an even sample), and every improvement."""

    trials: Sequence[DrawnTrial]
    improvements: Sequence[DrawnTrial]
    total: int
    variants: Mapping[str, int]  # trials of each

    @property
    def is_sample(self) -> bool:
        """Whether some trials are not drawn."""
        return len(self.trials) < self.total


@dataclass(frozen=True)
class Fastest:
    """The fastest of the trials with these values; no time where none of them was measured."""

    values: Mapping[str, int]
    time_ms: float | None


def drawing(session: Session, study_id: int) -> StudyDrawing:
    """The trials to draw of a study; empty for one without trials."""
    table = models.Trial
    numbered = (
        select(
            table.id,
            table.number,
            table.time_ms,
            table.outcome,
            table.configuration,
            func.sum(table.wall_s).over(order_by=table.number).label("spent_s"),
            func.row_number().over(order_by=table.time_ms.asc().nulls_last()).label("rank"),
            func.row_number().over(partition_by=table.outcome, order_by=table.number).label("place"),
            func.min(table.time_ms).over(order_by=table.number, rows=(None, -1)).label("best_before_ms"),
            func.count().over().label("total"),
        )
        .where(table.study_id == study_id)
        .subquery()
    )
    columns = numbered.c
    improved = columns.time_ms.is_not(None) & or_(
        columns.best_before_ms.is_(None), columns.time_ms < columns.best_before_ms
    )
    step = 1 + columns.total // (MAX_DRAWN // 3)
    drawn = or_(
        columns.total <= MAX_DRAWN,
        columns.rank <= MAX_DRAWN // 3,
        columns.number % step == 0,
        columns.time_ms.is_(None) & (columns.place <= MAX_FAILED),
    )
    rows = session.execute(
        select(numbered, improved.label("improved"), drawn.label("drawn"))
        .where(or_(drawn, improved))
        .order_by(columns.number)
    ).all()
    made = [
        (
            DrawnTrial(
                row.number, row.spent_s or 0.0, row.time_ms, row.outcome.value, *split_configuration(row.configuration)
            ),
            row,
        )
        for row in rows
    ]
    counted = session.execute(
        select(models.KernelVariant.name, func.count().label("trials"))
        .join(table, table.kernel_variant_id == models.KernelVariant.id)
        .where(table.study_id == study_id)
        .group_by(models.KernelVariant.name)
    )
    return StudyDrawing(
        trials=[trial for trial, row in made if row.drawn],
        improvements=[trial for trial, row in made if row.improved],
        total=rows[0].total if rows else 0,
        variants={row.name: row.trials for row in counted},
    )


def fastest_by(session: Session, study_id: int, variant: str, parameters: Sequence[str]) -> list[Fastest]:
    """The fastest of all trials of the variant, drawn or not, for every combination of these parameters' values."""
    table = models.Trial
    columns = [table.configuration[name].astext.label(f"value_{place}") for place, name in enumerate(parameters)]
    query = (
        select(func.min(table.time_ms), *columns)
        .join(models.KernelVariant, models.KernelVariant.id == table.kernel_variant_id)
        .where(table.study_id == study_id, models.KernelVariant.name == variant)
        .group_by(*(column.name for column in columns))
    )
    return [
        Fastest({name: int(text) for name, text in zip(parameters, texts, strict=True) if text is not None}, time_ms)
        for time_ms, *texts in session.execute(query)
    ]


def selected(selection: Selection, variant: str | None) -> list[ColumnElement[bool]]:
    """The conditions of a selection on trials."""
    table = models.Trial
    conditions: list[ColumnElement[bool]] = []
    if variant is not None:
        conditions.append(table.configuration["variant"].astext == variant)
    for name, (low, high) in selection.items():
        column = table.time_ms if name == TIME else cast(table.configuration[name].astext, Integer)
        conditions.append(column.between(low, high))
    return conditions


def open_jobs(session: Session, study_id: int) -> list[JobAnswer]:
    """The jobs that may still add to the study, the oldest first."""
    table = models.TuningJob
    query = select(table.id).where(table.study_id == study_id, table.state.in_(OPEN)).order_by(table.id)
    return [job(session, job_id) for job_id in session.scalars(query)]
