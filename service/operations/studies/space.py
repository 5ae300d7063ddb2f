"""Summaries of a study's trials for its page, and the trials that a selection by parameters and columns leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Integer, cast, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from tilewright.service.operations.answers import JobAnswer
from tilewright.service.operations.jobs.jobs import OPEN, job
from tilewright.service.operations.studies.rows import split_configuration
from tilewright.service.store import models

TIME = "time"
"""The word for the time in ms, in a selection and on an axis."""

NAMED_COLUMNS: Mapping[str, InstrumentedAttribute[Any]] = {
    TIME: models.Trial.time_ms,
    "trial": models.Trial.number,
    "gflops": models.Trial.gflops,
    "registers": models.Trial.registers,
    "spill_bytes": models.Trial.spill_bytes,
    "shared_bytes": models.Trial.shared_bytes,
    "occupancy": models.Trial.occupancy,
    "compile_ms": models.Trial.compile_ms,
    "bound_ratio": models.Trial.bound_ratio,
}
"""Columns that a selection and an axis may name beside the parameters."""

Selection = Mapping[str, tuple[float, float]]
"""Lowest and highest admitted value, by parameter."""


@dataclass(frozen=True)
class Improvement:
    """A trial faster than all before it; `spent_s` is what all trials up to it have taken."""

    number: int
    spent_s: float
    time_ms: float
    variant: str
    values: Mapping[str, int]


@dataclass(frozen=True)
class VariantTrials:
    """How many trials of a variant there are, and the times between which the measured ones lie."""

    trials: int
    fastest_ms: float | None
    slowest_ms: float | None


@dataclass(frozen=True)
class Search:
    """A study's trials in short: the improvements, the range of times, and each variant's part."""

    improvements: Sequence[Improvement]
    last_number: int
    spent_s: float
    variants: Mapping[str, VariantTrials]

    @property
    def extent_ms(self) -> list[float]:
        """The fastest and the slowest time; empty while nothing is measured."""
        times = [time for of in self.variants.values() for time in (of.fastest_ms, of.slowest_ms) if time is not None]
        return [min(times), max(times)] if times else []


@dataclass(frozen=True)
class Fastest:
    """The fastest of the trials with these values; no time where none of them was measured."""

    values: Mapping[str, int]
    time_ms: float | None


def search(session: Session, study_id: int) -> Search | None:
    """A study's trials in short; None for one without trials."""
    table, variant = models.Trial, models.KernelVariant
    counted = session.execute(
        select(
            variant.name,
            func.count().label("trials"),
            func.min(table.time_ms),
            func.max(table.time_ms),
            func.max(table.number),
            func.sum(table.wall_s),
        )
        .join(variant, table.kernel_variant_id == variant.id)
        .where(table.study_id == study_id)
        .group_by(variant.name)
        .order_by(variant.name)
    ).all()
    if not counted:
        return None
    return Search(
        improvements=_improvements(session, study_id),
        last_number=max(row[4] for row in counted),
        spent_s=sum(row[5] for row in counted),
        variants={row[0]: VariantTrials(*row[1:4]) for row in counted},
    )


def _improvements(session: Session, study_id: int) -> list[Improvement]:
    table = models.Trial
    so_far: dict[str, Any] = {"order_by": table.number, "rows": (None, 0)}  # the same for both: sorted once
    numbered = (
        select(
            table.number,
            table.time_ms,
            func.sum(table.wall_s).over(**so_far).label("spent_s"),
            func.min(table.time_ms).over(**so_far).label("best_ms"),
        )
        .where(table.study_id == study_id)
        .subquery()
    )
    fastest = select(numbered).where(numbered.c.time_ms == numbered.c.best_ms)
    reached: dict[float, Any] = {}
    for row in session.execute(fastest.order_by(numbered.c.number)):
        reached.setdefault(row.time_ms, row)  # a later trial of the same time improves nothing
    spent_s = {row.number: row.spent_s for row in reached.values()}
    # Read apart: carried through the windows, the configurations of all trials would be most of the work.
    rows = session.execute(
        select(table.number, table.time_ms, table.configuration)
        .where(table.study_id == study_id, table.number.in_(spent_s))
        .order_by(table.number)
    )
    return [
        Improvement(row.number, spent_s[row.number], row.time_ms, *split_configuration(row.configuration))
        for row in rows
    ]


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
        named = NAMED_COLUMNS.get(name)
        column = cast(table.configuration[name].astext, Integer) if named is None else named
        conditions.append(column.between(low, high))
    return conditions


def failed_job(session: Session, study_id: int) -> JobAnswer | None:
    """The newest job of the study, where that failed."""
    table = models.TuningJob
    query = select(table.id, table.state).where(table.study_id == study_id).order_by(table.created_at.desc()).limit(1)
    newest = session.execute(query).one_or_none()
    return job(session, newest.id) if newest and newest.state == models.JobState.FAILED else None


def open_jobs(session: Session, study_id: int) -> list[JobAnswer]:
    """The jobs that may still add to the study, the oldest first."""
    table = models.TuningJob
    query = select(table.id).where(table.study_id == study_id, table.state.in_(OPEN)).order_by(table.id)
    return [job(session, job_id) for job_id in session.scalars(query)]
