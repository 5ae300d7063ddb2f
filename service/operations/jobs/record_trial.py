"""Stores one trial and the job's progress in one fenced transaction; which trials count as not made."""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.service.operations.jobs.progress import count_trial
from tilewright.service.store import models
from tilewright.tuner import roofline
from tilewright.tuner.loop.study import Trial
from tilewright.tuner.outcome import Evaluation, Outcome

MAX_LOG = 64 * 1024
"""Characters of a trial's log that are kept: a template error of a C++ compiler may run to megabytes."""


def storable(log: str) -> str:
    """The part of a compiler's or device's log that is stored; PostgreSQL takes no zero character in text or JSON."""
    return log.replace("\0", "\N{REPLACEMENT CHARACTER}")[:MAX_LOG]


@dataclass(frozen=True)
class TrialContext:
    """The values that all trials of one epoch of a job have in common."""

    job_id: uuid.UUID
    epoch: int
    study_id: int
    device_id: int
    kernel: Kernel
    problem: Problem
    variant_ids: Mapping[str, int]


@dataclass(frozen=True)
class RecordedTrial:
    """The trial's number in the study, and whether the job was asked to stop."""

    number: int
    cancel_requested: bool


def record_trial(session: Session, context: TrialContext, trial: Trial, done: int, elapsed_s: float) -> RecordedTrial:
    """Stores the trial as the job's `done`-th, `elapsed_s` into its measuring time; raises FencedError.

    Doing it twice, as after a connection that broke in the commit, stores it once. A configuration that another job
    of the study recorded meanwhile counts for this job and keeps the other's row.
    """
    revision = count_trial(session, context.job_id, context.epoch, done, elapsed_s)
    # The study's row is locked first: numbers are leased one job at a time and stay without gaps.
    study = session.get_one(models.Study, context.study_id, with_for_update=True, populate_existing=True)
    variant_id = context.variant_ids[trial.configuration.variant]
    given_up = session.scalar(
        select(func.count()).where(
            models.Trial.study_id == study.id,
            models.Trial.kernel_variant_id == variant_id,
            models.Trial.configuration == trial.configuration.as_json(),
            is_given_up(),
        )
    )
    digest = _repeated(configuration_hash(context.kernel, trial.configuration), given_up or 0)
    known_number = session.scalar(
        select(models.Trial.number).where(models.Trial.study_id == study.id, models.Trial.configuration_hash == digest)
    )
    if known_number is not None:
        return RecordedTrial(known_number, revision.cancel_requested)
    number, study.next_number = study.next_number, study.next_number + 1
    session.add(
        models.Trial(
            study_id=study.id,
            number=number,
            job_id=context.job_id,
            epoch=context.epoch,
            job_revision=revision.revision,
            device_id=context.device_id,
            kernel_variant_id=variant_id,
            configuration=trial.configuration.as_json(),
            configuration_hash=digest,
            started_s=trial.started_s,
            wall_s=trial.wall_s,
            **_measured(trial.evaluation),
            **_rates(context, trial.evaluation.time_ms),
        )
    )
    session.flush()
    return RecordedTrial(number, revision.cancel_requested)


def configuration_hash(kernel: Kernel, configuration: Configuration) -> str:
    """SHA-256 over variant, source and values, which is unique among the trials of a study."""
    return hash_with_source(kernel.source_hash(configuration.variant), configuration)


def _repeated(digest: str, given_up: int) -> str:
    """The hash of a configuration's next trial, if so many before it count as not made; without any, the plain one."""
    return hashlib.sha256(f"{digest} {given_up}".encode()).hexdigest() if given_up else digest


def hash_with_source(source_hash: str, configuration: Configuration) -> str:
    """The configuration's hash with the hash of a source, which may be an older one."""
    text = json.dumps([source_hash, configuration.as_json()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _measured(evaluation: Evaluation) -> dict[str, Any]:
    values: dict[str, Any] = {
        "outcome": evaluation.outcome,
        "time_ms": evaluation.time_ms,
        "ranking_l2": evaluation.ranking_l2,
        "registers": evaluation.resources.registers,
        "shared_bytes": evaluation.resources.shared_bytes,
        "spill_bytes": evaluation.resources.spill_bytes,
        "occupancy": _finite(evaluation.resources.occupancy),
        "pack_ms": _finite(evaluation.resources.pack_ms),
        "bound_ratio": _finite(evaluation.bound_ratio),
        "compile_ms": _finite(evaluation.compile_ms),
        "clock_mhz": evaluation.clock_mhz,
        "temperature_c": evaluation.temperature_c,
        # PostgreSQL's text holds no NUL; a crashed compiler may print one.
        "log": storable(evaluation.log),
    }
    for l2, timing in (("warm", evaluation.warm), ("cold", evaluation.cold)):
        if timing is not None:
            values |= {
                f"{l2}_ms": timing.time_ms,
                f"{l2}_spread_ms": _finite(timing.spread_ms),
                f"{l2}_samples_ms": list(timing.samples_ms),
            }
    return values


def _rates(context: TrialContext, time_ms: float | None) -> dict[str, float | None]:
    return {} if time_ms is None else roofline.rates(context.kernel, context.problem, time_ms)


def _finite(value: float | None) -> float | None:
    """The value, or None for NaN and infinity (a bound ratio where nothing was written), which JSON cannot say."""
    return value if value is not None and math.isfinite(value) else None


def is_given_up() -> ColumnElement[bool]:
    """Whether a trial says nothing about its configuration, so that a search may try that again."""
    noted = select(models.TrialRetry.trial_id).where(models.TrialRetry.trial_id == models.Trial.id)
    return or_(models.Trial.outcome == Outcome.INTERRUPTED, noted.exists())
