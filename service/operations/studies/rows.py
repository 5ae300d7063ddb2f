"""A study as a worker needs it: its row, earlier trials and their single times, configurations barred from finals."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased, joinedload

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.service.operations.jobs.record_trial import is_given_up
from tilewright.service.operations.registry import kernel_variant_ids
from tilewright.service.operations.staleness.standing import source_keys
from tilewright.service.store import models
from tilewright.tuner.errors import first_error
from tilewright.tuner.loop.statistics import Interval, median_interval
from tilewright.tuner.loop.study import Trial
from tilewright.tuner.outcome import Evaluation, Outcome, Resources, Timing


def study_row(
    session: Session,
    problem_id: int,
    device_model_id: int,
    environment_id: int,
    space: SearchSpace,
    *,
    kernel: Kernel | None = None,
) -> models.Study:
    """The one study of this problem, model and environment, made where it is new. `space` covers all variants.

    With `kernel`, the number of configurations of each variant is stored; a variant with 0 never counts as untried.
    """
    key = {"problem_id": problem_id, "device_model_id": device_model_id, "environment_id": environment_id}
    seen: dict[str, Any] = {"space_hash": space.hash(), "space_size": len(space)}
    if kernel is not None:
        keys = source_keys(kernel)
        seen["space_by_source"] = {keys[variant]: len(ranks) for variant, ranks in space.ranks.items()}
    study_id = session.scalar(
        insert(models.Study)
        .values(**key, **seen)
        .on_conflict_do_update(index_elements=list(key), set_=seen)
        .returning(models.Study.id)
    )
    query = select(models.Study).where(models.Study.id == study_id).options(joinedload(models.Study.device_model))
    return session.scalars(query.execution_options(populate_existing=True)).one()


def prior_trials(session: Session, study_id: int, kernel: Kernel) -> list[Trial]:
    """The tuner's view of every trial of the study that counts and whose source is still current here."""
    current = kernel_variant_ids(session, kernel).values()
    rows = session.scalars(
        select(models.Trial)
        .where(models.Trial.study_id == study_id, models.Trial.kernel_variant_id.in_(current), ~is_given_up())
        .order_by(models.Trial.number)
    )
    return [_trial(row) for row in rows]


def trials_of_others(session: Session, study_id: int, kernel: Kernel, job_id: uuid.UUID, after: int) -> list[Trial]:
    """The trials that other jobs added to the study after that number, of the sources here.

    None can turn up later below a number that was seen: numbers are given out under the study's lock.
    """
    current = kernel_variant_ids(session, kernel).values()
    trial = models.Trial
    rows = session.scalars(
        select(trial)
        .where(
            trial.study_id == study_id,
            trial.number > after,
            trial.job_id.is_distinct_from(job_id),
            trial.kernel_variant_id.in_(current),
            ~is_given_up(),
        )
        .order_by(trial.number)
    )
    return [_trial(row) for row in rows]


def is_newest_source(variant_id: InstrumentedAttribute[int]) -> ColumnElement[bool]:
    """Whether no newer state of that variant's source has been registered."""
    used, newer = aliased(models.KernelVariant), aliased(models.KernelVariant)
    newer_state = select(newer.id).join(
        used, (used.kernel_id == newer.kernel_id) & (used.name == newer.name) & (used.id < newer.id)
    )
    return ~newer_state.where(used.id == variant_id).exists()


def barred(session: Session, study_id: int) -> frozenset[Configuration]:
    """Configurations that failed in the finals of an earlier job of this study, or whose publication was retracted.

    Both hold for the source that they were found with: a corrected one is tried and judged anew.
    """
    return _dropped(session, study_id) | _retracted(session, study_id)


def _dropped(session: Session, study_id: int) -> frozenset[Configuration]:
    job, trial = models.TuningJob, models.Trial
    rows = session.execute(
        select(job.result["dropped"].label("dropped"), job.finished_at).where(
            job.study_id == study_id, job.result.is_not(None), job.finished_at.is_not(None)
        )
    )
    last: dict[Configuration, datetime] = {}  # when the last job that dropped it ended
    for row in rows:
        for entry in row.dropped or ():
            configuration = Configuration.from_json(entry["configuration"])
            last[configuration] = max(row.finished_at, last.get(configuration, row.finished_at))
    if not last:
        return frozenset()
    # Finalists have trials; one that was added since, of a newer source or by an import, was not in those finals.
    trials = session.execute(
        select(trial.configuration, trial.created_at).where(
            trial.study_id == study_id,
            trial.configuration.in_([configuration.as_json() for configuration in last]),
            is_newest_source(trial.kernel_variant_id),
        )
    )
    known = ((Configuration.from_json(row.configuration), row.created_at) for row in trials)
    return frozenset(configuration for configuration, created_at in known if created_at <= last[configuration])


def _retracted(session: Session, study_id: int) -> frozenset[Configuration]:
    best, trial = models.BestConfiguration, models.Trial
    rows = session.scalars(
        select(trial.configuration)
        .join(best, best.trial_id == trial.id)
        .where(trial.study_id == study_id, best.retracted_at.is_not(None), is_newest_source(trial.kernel_variant_id))
    )
    return frozenset(Configuration.from_json(row) for row in rows)


def left_studies(session: Session, job_id: uuid.UUID, study_id: int) -> list[dict[str, int]]:
    """The studies that the job added to before its environment changed, with the number of its trials in each."""
    trial = models.Trial
    rows = session.execute(
        select(trial.study_id, func.count().label("trials"))
        .where(trial.job_id == job_id, trial.study_id != study_id)
        .group_by(trial.study_id)
        .order_by(trial.study_id)
    )
    return [{"study_id": row.study_id, "trials": row.trials} for row in rows]


def why_nothing_was_right(session: Session, job_id: uuid.UUID) -> str | None:
    """A sentence about a job without a measured trial: its outcomes and its last log; None for other jobs."""
    trial = models.Trial
    rows = session.execute(select(trial.outcome, func.count()).where(trial.job_id == job_id).group_by(trial.outcome))
    counts = {outcome.value: count for outcome, count in rows}
    if not counts or Outcome.MEASURED.value in counts:
        return None
    last = session.scalars(select(trial.log).where(trial.job_id == job_id).order_by(trial.id.desc()).limit(1)).one()
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items(), key=lambda item: -item[1]))
    return f"None of its trials was right: {said}. The last one: {first_error(last)}"


def split_configuration(stored: Mapping[str, str | int]) -> tuple[str, dict[str, int]]:
    """Variant and parameter values of a stored configuration."""
    return str(stored["variant"]), {name: int(value) for name, value in stored.items() if name != "variant"}


def _trial(row: models.Trial) -> Trial:
    evaluation = Evaluation(
        outcome=row.outcome,
        warm=_timing("warm", row.warm_ms, row.warm_spread_ms, row.warm_samples_ms),
        cold=_timing("cold", row.cold_ms, row.cold_spread_ms, row.cold_samples_ms),
        ranking_l2=row.ranking_l2,
        resources=Resources(row.registers, row.shared_bytes, row.spill_bytes, row.occupancy, row.pack_ms),
        bound_ratio=row.bound_ratio,
        compile_ms=row.compile_ms,
        clock_mhz=row.clock_mhz,
        temperature_c=row.temperature_c,
        log=row.log,
    )
    return Trial(row.number, Configuration.from_json(row.configuration), evaluation, row.started_s, row.wall_s)


def _timing(l2: str, time_ms: float | None, spread_ms: float | None, samples_ms: list[float] | None) -> Timing | None:
    return None if time_ms is None else Timing(time_ms, spread_ms or 0.0, tuple(samples_ms or ()), l2)


def kept_samples(row: models.Trial) -> list[float]:
    """The single times, in ms, behind the time that ranks; empty where they are not kept."""
    return (row.cold_samples_ms if row.ranking_l2 == "cold" else row.warm_samples_ms) or []


def ranking_samples(row: models.Trial) -> list[float]:
    """The single times, in ms, behind the time that ranks; that time alone where they are not kept."""
    return kept_samples(row) or ([] if row.time_ms is None else [row.time_ms])


def ranking_interval(row: models.Trial) -> Interval:
    """The 95 % interval of the ranking time, in ms, the same after pruning; the row must have been measured."""
    if row.ci_low_ms is not None and row.ci_high_ms is not None:
        return Interval(row.ci_low_ms, row.ci_high_ms)
    return median_interval(ranking_samples(row))
