"""Tables of families: stored by workers, superseded as a whole, and found for a family or for one size."""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session, joinedload

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.service.errors import NotFoundError
from tilewright.service.operations.answers import Answer, EnvironmentAnswer, TunedFor
from tilewright.service.operations.best.rows import EnvironmentFilter, wrong_configurations
from tilewright.service.operations.registry import limits_of, tuned_for_answer
from tilewright.service.store import models
from tilewright.tuner.runtime.any_size.ranges import Ranges
from tilewright.tuner.runtime.any_size.tables import called_ms, ranges_of
from tilewright.tuner.runtime.choice import TargetDevice

MOST_SHOWN = 50
"""Tables of one kernel that a page lists."""

_REFERRED = (
    joinedload(models.FamilyTable.problem).joinedload(models.Problem.kernel),
    joinedload(models.FamilyTable.environment),
    joinedload(models.FamilyTable.device_model),
)


class RangeLibraryAnswer(Answer):
    """The library in one range of a table."""

    name: str | None = Field(None, description="The call that launchers make there; else the library.")
    faster: bool = Field(description="Its fastest call was, at every measured size.")
    launched: bool = Field(
        default=False,
        description="Launchers make its call in this range: at every measured size it was faster than the "
        "configuration, beyond the noise. That runs where another version of the library is installed.",
    )


class SizeRangeAnswer(Answer):
    """Sizes from `low` to `high`, and the configuration that serves them."""

    low: int
    high: int
    variant: str
    configuration: dict[str, int]
    source_hash: str
    times_ms: dict[str, float] = Field(description="Its time at each measured size of the range.")
    library: RangeLibraryAnswer | None = Field(description="Null: it has no such call, or was not timed.")
    verified_at: list[int] = Field(description="Sizes at which it was verified: both ends, and random ones between.")


class MeasuredSizeAnswer(Answer):
    """Measurements at one size."""

    size: int
    time_ms: float = Field(description="Of the configuration that serves it.")
    best_ms: float = Field(description="Of the fastest configuration of all.")
    best: str
    library_ms: float | None
    own_choice_ms: float | None = Field(
        None, description="Of the call that launchers can make at any size, where it was timed beside ours."
    )


class TableAnswer(TunedFor):
    """The table of a family: ranges, their configurations, and the times that they rest on."""

    id: int | None = None
    superseded_by: int | None = Field(None, description="The table that has superseded it; null: it is current.")
    job_id: uuid.UUID | None = Field(None, description="The job that made it; null: it was imported.")
    format: str
    at_launch: str = Field(description="The axis that is open.")
    family_hash: str = Field(description="The same for every range of the family.")
    device_model: str
    environment: EnvironmentAnswer
    ranges: list[SizeRangeAnswer]
    loss: dict[str, float] = Field(
        description="Of the measured sizes: time over the best configuration's, minus 1; `mean` and `largest`."
    )
    library: str | None = Field(None, description="The library's name.")
    measured: list[MeasuredSizeAnswer]
    trials: int
    compilations: int
    seconds: float
    made_at: datetime


def publish_job_table(session: Session, job: models.TuningJob, environment_id: int, document: Mapping[str, Any]) -> int:
    """Stores the table of a job's family and returns its id."""
    # Two jobs of one family may end at once: the device model's row makes them take turns.
    model = session.get_one(models.DeviceModel, job.device_model_id, with_for_update={"key_share": True})
    return publish_table(session, (job.problem_id, model.id, environment_id), document, job.id)


def publish_table(
    session: Session, key: tuple[int, int, int], document: Mapping[str, Any], job_id: uuid.UUID | None = None
) -> int:
    """Stores a table under the ids of family, device model and environment, and returns its own.

    It supersedes those of the same family, device model and environment whose range lies within its own.
    """
    columns = dict(zip(("problem_id", "device_model_id", "environment_id"), key, strict=True))
    low, high = document["ranges"][0]["low"], document["ranges"][-1]["high"]
    table, hashed = models.FamilyTable, document["family_hash"]
    table_id: int = session.scalars(select(func.nextval("family_tables_id_seq"))).one()
    session.execute(
        update(table)
        .where(
            table.family_hash == hashed,
            table.device_model_id == columns["device_model_id"],
            table.environment_id == columns["environment_id"],
            table.superseded_by_id.is_(None),
            table.low >= low,
            table.high <= high,
        )
        .values(superseded_by_id=table_id)
    )
    session.add(
        table(
            id=table_id,
            family_hash=hashed,
            low=low,
            high=high,
            job_id=job_id,
            document=dict(document),
            made_at=datetime.fromisoformat(document["made_at"]),
            **columns,
        )
    )
    session.flush()
    return table_id


def current_tables(
    session: Session, hashes: Collection[str], slug: str, wanted: EnvironmentFilter | None = None
) -> Sequence[models.FamilyTable]:
    """The current tables of these families on a device model: measured here before imported, then the newest first."""
    table, environment = models.FamilyTable, models.Environment
    query = (
        select(table)
        .join(table.environment)
        .join(table.device_model)
        .where(table.family_hash.in_(hashes), models.DeviceModel.slug == slug, table.superseded_by_id.is_(None))
        .where(*(wanted.conditions() if wanted else ()))
        .order_by(environment.origin.is_not(None), table.made_at.desc(), table.id.desc())
    )
    return session.scalars(query.options(*_REFERRED)).all()


def table(session: Session, table_id: int) -> TableAnswer:
    """One table, also one that was superseded; raises NotFoundError."""
    row = session.get(models.FamilyTable, table_id, options=_REFERRED)
    if row is None:
        raise NotFoundError("table", str(table_id))
    return table_answer(row)


def tables_shown(session: Session, kernel: str) -> list[TableAnswer]:
    """The current tables of a kernel on any device model, the newest first."""
    table, is_current = models.FamilyTable, models.FamilyTable.superseded_by_id.is_(None)
    query = (
        select(table).join(table.problem).join(models.Problem.kernel).where(models.Kernel.name == kernel, is_current)
    )
    newest = query.order_by(table.made_at.desc(), table.id.desc()).limit(MOST_SHOWN)
    return [table_answer(row) for row in session.scalars(newest.options(*_REFERRED))]


def usable_ranges(
    kernel: Kernel, family: Family, row: models.FamilyTable, wrong: Collection[Configuration]
) -> Ranges | None:
    """The table's ranges; None where a source has changed, one is not sound here, or one was found wrong."""
    found = ranges_of(row.document, kernel, family, TargetDevice(row.device_model.slug, limits_of(row.device_model)))
    is_wrong = found is not None and any(one.choice.configuration in wrong for one in found.ranges)
    return None if is_wrong else found


def wrong_anywhere(session: Session, kernel: Kernel, slug: str) -> frozenset[Configuration]:
    """The kernel's configurations that were found wrong for some problem on that device model."""
    return frozenset().union(*wrong_configurations(session, kernel, slug).values())


def find_table(
    session: Session, kernel: Kernel, family: Family, slug: str, wanted: EnvironmentFilter | None = None
) -> TableAnswer:
    """The family's table: one that covers its range before one that does not. Raises NotFoundError with the remedy."""
    rows = current_tables(session, [family.hash], slug, wanted)
    rows = sorted(rows, key=lambda row: not row.low <= family.low <= family.high <= row.high)  # keeps their order
    wrong = wrong_anywhere(session, kernel, slug) if rows else frozenset()
    row = next((row for row in rows if usable_ranges(kernel, family, row, wrong) is not None), None)
    if row is None:
        why = "One that was tuned does not go with today's sources. " if rows else ""
        remedy = f"{why}Tune it: tilewright tune {kernel.name} --shape {family.shape_text} --device-model {slug}"
        raise NotFoundError("table", f"{family} on {slug}", remedy=remedy)
    return table_answer(row)


def kernel_tables(session: Session, kernel: Kernel, slug: str) -> list[TableAnswer]:
    """The kernel's tables on a device model that can be used, one of each family, by its text."""
    table, named = models.FamilyTable, models.Kernel.name == kernel.name
    known = select(table.family_hash).join(table.problem).join(models.Problem.kernel).where(named)
    rows = current_tables(session, session.scalars(known.distinct()).all(), slug)
    wrong = wrong_anywhere(session, kernel, slug) if rows else frozenset()
    found: dict[str, TableAnswer] = {}
    for row in sorted(rows, key=lambda row: row.low - row.high):  # the widest first
        with suppress(InvalidProblemError):  # of a family that the kernel had when it was tuned
            family = Family.of(kernel, row.problem.shape, row.problem.dtype, row.problem.options)
            if row.family_hash not in found and usable_ranges(kernel, family, row, wrong) is not None:
                found[row.family_hash] = table_answer(row)
    return sorted(found.values(), key=lambda answer: (str(dict(answer.shape)), answer.dtype, str(answer.options)))


def table_answer(row: models.FamilyTable) -> TableAnswer:
    """The table as callers see it; what it refers to must be loaded."""
    problem = tuned_for_answer(row.problem)
    copied = {name: row.document[name] for name in TableAnswer.model_fields if name in row.document}
    environment = EnvironmentAnswer.model_validate(row.environment)
    of_row = {"id": row.id, "superseded_by": row.superseded_by_id, "job_id": row.job_id}
    seen = {**problem.model_dump(), **of_row, "environment": environment}
    return TableAnswer(**copied | seen)


class Served(NamedTuple):
    """A table's answer for one size: the range's place, and what is expected there."""

    row: models.FamilyTable
    place: int
    configuration: Configuration
    time_ms: float
    loss: float
    library_ms: float | None
    library: str | None

    @property
    def is_library(self) -> bool:
        """Whether launchers make the library's call there."""
        return bool((self.row.document["ranges"][self.place]["library"] or {}).get("launched"))

    @property
    def sizes(self) -> str:
        """The sizes of its range, as in `m=129..512`."""
        one = self.row.document["ranges"][self.place]
        return f"{self.row.document['at_launch']}={one['low']}..{one['high']}"


def served_by_tables(
    session: Session, kernel: Kernel, slug: str, problems: Sequence[Problem], wanted: EnvironmentFilter
) -> dict[str, Served]:
    """Per problem hash, how a table serves it; problems outside every range are left out."""
    families = [Family(replace(problem, at_launch=axis), 1, 1) for problem in problems for axis in kernel.launch_axes]
    by_hash = {family.hash: family for family in families}
    rows = current_tables(session, list(by_hash), slug, wanted) if by_hash else ()
    wrong = wrong_anywhere(session, kernel, slug) if rows else frozenset()
    found: dict[str, Served] = {}
    for row in rows:
        family = by_hash[row.family_hash]
        ranges = usable_ranges(kernel, family, row, wrong)
        if ranges is None:
            continue
        for problem in problems:
            size = problem.shape[family.axis]
            if problem.hash not in found and family.exact(size) == problem and row.low <= size <= row.high:
                found[problem.hash] = _served(row, ranges.number(size), size)
    return found


def _served(row: models.FamilyTable, place: int, size: int) -> Served:
    """Times on the lines between measured sizes; the larger loss of both neighbours."""
    one, measured = row.document["ranges"][place], row.document["measured"]
    sizes = [each["size"] for each in measured]
    after = bisect_left(sizes, size)
    near = measured[after : after + 1] if size in sizes else measured[max(after - 1, 0) : after + 1]
    timed = [each | {"library_ms": library_ms} for each in measured if (library_ms := called_ms(each)) is not None]
    library = one["library"] or {}
    return Served(
        row,
        place,
        Configuration.of(one["variant"], one["configuration"]),
        _on_line(measured, size, "time_ms"),
        max(each["time_ms"] / each["best_ms"] for each in near) - 1,
        _on_line(timed, size, "library_ms") if timed else None,
        library["name"] if library.get("launched") else row.document.get("library"),
    )


def _on_line(measured: Sequence[Mapping[str, Any]], size: int, name: str) -> float:
    return float(np.interp(size, [each["size"] for each in measured], [each[name] for each in measured]))
