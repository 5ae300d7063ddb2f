"""The trials of a study column by column, as charts draw them: all of them, or those that were added since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Integer, cast, func, select
from sqlalchemy.orm import Session

from tilewright.service.operations.studies.space import NAMED_COLUMNS
from tilewright.service.store import models


@dataclass(frozen=True)
class Columns:
    """Columns of equal length, by ascending number; a parameter is None in trials of other variants."""

    numbers: Sequence[int]
    times_ms: Sequence[float | None]
    spent_s: Sequence[float]  # by all trials up to each
    outcomes: Sequence[str]
    variants: Sequence[str]
    values: dict[str, Sequence[int | None]]
    resources: dict[str, Sequence[float | None]]


def columns(
    session: Session,
    study_id: int,
    variant: str,
    parameters: Sequence[str],
    *,
    resources: Sequence[str] = (),
    after: int = -1,
) -> Columns:
    """The trials numbered above `after`, with these parameters of that variant and these of NAMED_COLUMNS."""
    trial, of = models.Trial, models.KernelVariant
    values = [cast(trial.configuration[name].astext, Integer) for name in parameters]
    wanted = (
        select(
            trial.number,
            trial.time_ms,
            func.sum(trial.wall_s).over(order_by=trial.number),
            trial.outcome,
            of.name,
            *values,
            *(NAMED_COLUMNS[name] for name in resources),
        )
        .join(of, of.id == trial.kernel_variant_id)
        .where(trial.study_id == study_id)
        .subquery()
    )
    query = select(wanted).where(wanted.c.number > after).order_by(wanted.c.number)
    rows = session.execute(query).all()
    number, time_ms, spent_s, outcome, name, *others = zip(*rows, strict=True) if rows else _empty(query)
    own = [one == variant for one in name]
    return Columns(
        numbers=number,
        times_ms=time_ms,
        spent_s=spent_s,
        outcomes=[one.value for one in outcome],
        variants=name,
        values={
            parameter: [value if is_own else None for value, is_own in zip(column, own, strict=True)]
            for parameter, column in zip(parameters, others, strict=False)
        },
        resources=dict(zip(resources, others[len(parameters) :], strict=True)),
    )


def _empty(query: Any) -> list[tuple[()]]:
    return [() for _ in query.selected_columns]
