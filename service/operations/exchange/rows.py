"""The rows that an import writes. What is there already is used as it is; nothing is overwritten."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property

from sqlalchemy import func, or_, select, tuple_
from sqlalchemy.dialects.postgresql import insert as insert_new
from sqlalchemy.orm import Session

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.service.operations.exchange.document import TrialPart
from tilewright.service.operations.jobs.record_trial import hash_with_source
from tilewright.service.operations.registry import add_sources, device_model_columns, known_sources, problem_columns
from tilewright.service.store import models
from tilewright.tuner.devices.device import DeviceModel, Environment

IMPORT_LOCK = 7_411_520_366
"""The PostgreSQL advisory lock that admits one import at a time; an arbitrary number."""


Source = tuple[str, str]
"""A variant's name and the hash of a state of its source."""


@dataclass(frozen=True)
class NewTrial:
    """A trial that may be added."""

    configuration: Configuration
    part: TrialPart

    @property
    def source(self) -> Source:
        """The source that the trial was measured with."""
        return self.part.variant, self.part.source_hash

    @cached_property
    def hash(self) -> str:
        """The key that is unique within a study."""
        return hash_with_source(self.part.source_hash, self.configuration)


def lock_imports(session: Session) -> bool:
    """Whether this transaction is the only one that imports; it holds the lock until it ends."""
    return bool(session.scalar(select(func.pg_try_advisory_xact_lock(IMPORT_LOCK))))


@dataclass(frozen=True)
class KernelRow:
    """A kernel's row, and those of all its sources ever registered, by variant and hash."""

    id: int
    variant_ids: Mapping[Source, int]


def kernel_sources(session: Session, kernel: Kernel) -> set[Source]:
    """Every source of the kernel that was ever registered, and today's; nothing is added."""
    table = models.KernelVariant
    query = select(table.name, table.source_hash).join(models.Kernel, models.Kernel.id == table.kernel_id)
    registered = {
        (row.name, row.source_hash) for row in session.execute(query.where(models.Kernel.name == kernel.name))
    }
    return registered | {(variant.name, kernel.source_hash(variant.name)) for variant in kernel.variants}


def kernel_row(session: Session, kernel: Kernel) -> KernelRow:
    """The rows of the kernel; today's are added where they are new."""
    there = models.Kernel.name == kernel.name
    added = insert_new(models.Kernel).values(name=kernel.name, declaration=kernel.declaration)
    session.execute(added.on_conflict_do_nothing())
    kernel_id = session.scalars(select(models.Kernel.id).where(there)).one()
    add_sources(session, kernel, kernel_id, known_sources(session, [kernel_id]))
    table = models.KernelVariant
    rows = session.execute(select(table.name, table.source_hash, table.id).where(table.kernel_id == kernel_id))
    return KernelRow(kernel_id, {(name, source_hash): row_id for name, source_hash, row_id in rows})


def device_model_row(session: Session, slug: str) -> models.DeviceModel | None:
    """The device model of that slug; None where it is not known."""
    return session.scalars(select(models.DeviceModel).where(models.DeviceModel.slug == slug)).one_or_none()


def device_model_id(session: Session, slug: str, described: DeviceModel) -> int:
    """Row id of the device model of that slug, added as `described` where it is not known."""
    table = models.DeviceModel
    session.execute(insert_new(table).values(slug=slug, **device_model_columns(described)).on_conflict_do_nothing())
    return session.scalars(select(table.id).where(table.slug == slug)).one()


def environment_id(session: Session, environment: Environment, origin: str) -> int:
    """The environment of that origin: never one that devices here report, so that results stay apart."""
    named = asdict(environment) | {"origin": origin}
    digest = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()
    session.execute(insert_new(models.Environment).values(hash=digest, **named).on_conflict_do_nothing())
    return session.scalars(select(models.Environment.id).where(models.Environment.hash == digest)).one()


StudyKey = tuple[int, int, int]
"""Ids of problem, device model and environment."""


@dataclass(frozen=True)
class Space:
    """The space that was searched, as a study's row has it."""

    hash: str
    size: int


@dataclass(frozen=True)
class CurrentBest:
    """The best that stands in a study."""

    id: int
    time_ms: float
    verified_at: datetime


@dataclass(frozen=True)
class StudyContents:
    """Trials that are in the studies already, by study."""

    hashes: Mapping[int, Collection[str]]
    standing: Mapping[int, CurrentBest]
    retracted: Collection[tuple[int, str]]


def problem_ids(session: Session, problems: Mapping[str, tuple[int, Problem]]) -> dict[str, int]:
    """Row ids by hash of these problems, each with its kernel's id; new ones are added."""
    values = [problem_columns(problem, kernel_id) for kernel_id, problem in problems.values()]
    table = models.Problem
    session.execute(insert_new(table).values(values).on_conflict_do_nothing())
    rows = session.execute(select(table.hash, table.id).where(table.hash.in_(list(problems))))
    return {digest: row_id for digest, row_id in rows}  # noqa: C416 - rows are no pairs to dict()


def study_rows(session: Session, spaces: Mapping[StudyKey, Space]) -> dict[StudyKey, tuple[int, int]]:
    """Row id and next number of each of these studies; new ones are added."""
    table = models.Study
    key = tuple_(table.problem_id, table.device_model_id, table.environment_id)
    values = [
        {
            "problem_id": problem_id,
            "device_model_id": model_id,
            "environment_id": environment,
            "space_hash": space.hash,
            "space_size": space.size,
        }
        for (problem_id, model_id, environment), space in spaces.items()
    ]
    session.execute(insert_new(table).values(values).on_conflict_do_nothing())
    rows = session.execute(
        select(table.problem_id, table.device_model_id, table.environment_id, table.id, table.next_number).where(
            key.in_(list(spaces))
        )
    )
    return {(row.problem_id, row.device_model_id, row.environment_id): (row.id, row.next_number) for row in rows}


def known(session: Session, study_ids: Collection[int]) -> StudyContents:
    """The contents of these studies."""
    best, trial = models.BestConfiguration, models.Trial
    hashes: dict[int, set[str]] = defaultdict(set)
    for study_id, digest in session.execute(
        select(trial.study_id, trial.configuration_hash).where(trial.study_id.in_(study_ids))
    ):
        hashes[study_id].add(digest)
    standing, retracted = {}, set()
    counts = or_(best.superseded_by_id.is_(None), best.retracted_at.is_not(None))
    for row in session.execute(
        select(trial.study_id, trial.configuration_hash, best.id, best.time_ms, best.verified_at, best.retracted_at)
        .join(best.trial)
        .where(trial.study_id.in_(study_ids), counts)
    ):
        if row.retracted_at is not None:
            retracted.add((row.study_id, row.configuration_hash))
        else:
            standing[row.study_id] = CurrentBest(row.id, row.time_ms, row.verified_at)
    return StudyContents(hashes, standing, retracted)
