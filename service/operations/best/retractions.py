"""Withdraws a published best, with a reason, and puts the next best of its study in its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session, joinedload

from tilewright.kernels.space import Configuration
from tilewright.service.errors import NotFoundError
from tilewright.service.operations.access.ownership import check_owner, owner_of_job
from tilewright.service.operations.best.publish import rates
from tilewright.service.operations.best.results import ResultAnswer, result
from tilewright.service.operations.caller import acting
from tilewright.service.operations.pages import MAX_ROW_ID
from tilewright.service.operations.studies.rows import barred, is_newest_source, ranking_interval
from tilewright.service.store import models
from tilewright.service.store.models import JobState
from tilewright.tuner.outcome import Outcome


def retract(session: Session, result_id: int, reason: str) -> ResultAnswer:
    """The retracted result; one that is retracted already stays as it is. Raises NotFoundError, NotOwnerError.

    Only an admin retracts what another key's job found; others claim that it is wrong, and a worker looks. Where it was
    the current one, the next best verified configuration of its study is published, if there is one.
    """
    best = models.BestConfiguration
    query = select(best).where(best.id == result_id).options(joinedload(best.trial))
    row = session.scalars(query).one_or_none() if 0 < result_id <= MAX_ROW_ID else None
    if row is None:
        raise NotFoundError("result", str(result_id))
    check_owner(session, "result", owner_of_job(session, row.job_id), is_shared=False)
    # Jobs that settle in the same study take turns with this: see publish_best.
    session.get_one(models.Study, row.trial.study_id, with_for_update=True, populate_existing=True)
    session.refresh(row, ["retracted_at"])
    if row.retracted_at is None:
        _withdraw(session, row.trial, reason)
    return result(session, result_id)


def withdraw_configuration(session: Session, claim: models.Claim, reason: str) -> None:
    """Retracts every best of the claim's problem and device model that has its configuration, of its source."""
    best, trial, source = models.BestConfiguration, models.Trial, models.KernelVariant
    rows = session.scalars(
        select(trial)
        .join(best, best.trial_id == trial.id)
        .join(source, source.id == trial.kernel_variant_id)
        .where(
            best.problem_id == claim.problem_id,
            best.device_model_id == claim.device_model_id,
            best.retracted_at.is_(None),
            trial.configuration == claim.configuration,
            source.source_hash == claim.source_hash,
        )
        .order_by(trial.study_id)
    ).unique()
    for row in rows.all():
        session.get_one(models.Study, row.study_id, with_for_update=True, populate_existing=True)
        _withdraw(session, row, reason)


def _withdraw(session: Session, trial: models.Trial, reason: str) -> None:
    """Retracts every best published from the trial: its fault is a fault of them all."""
    who, best = acting(), models.BestConfiguration
    rows = session.scalars(
        select(best)
        .where(best.trial_id == trial.id, best.retracted_at.is_(None))
        .execution_options(populate_existing=True)
    ).all()
    for row in rows:
        row.retracted_at, row.retracted_reason = func.now(), reason
        row.retracted_by = who.caller.name if who else None
    session.flush()  # the current row leaves the index of current ones before another enters
    for row in rows:
        if row.superseded_by_id is None:
            _put_in_place(session, row, trial.study_id)
    session.flush()


@dataclass(frozen=True)
class _Candidate:
    """A configuration with its last settled time, from a job's finals or from its own trial."""

    trial: models.Trial
    job: models.TuningJob
    time_ms: float
    ci_ms: tuple[float, float]
    bound_ratio: float | None
    verified_at: datetime


def _put_in_place(session: Session, row: models.BestConfiguration, study_id: int) -> None:
    candidate = next(_candidates(session, study_id), None)
    if candidate is None:
        return
    study = session.get_one(models.Study, study_id)
    settled: dict[str, Any] = candidate.job.result or {}
    library: dict[str, Any] = settled.get("library") or {}
    library_at_most_ms = (library.get("ci_ms") or [library.get("time_ms")])[-1]  # an imported one has no interval
    session.add(
        models.BestConfiguration(
            problem_id=row.problem_id,
            device_model_id=row.device_model_id,
            environment_id=row.environment_id,
            trial_id=candidate.trial.id,
            job_id=candidate.job.id,
            time_ms=candidate.time_ms,
            ci_low_ms=candidate.ci_ms[0],
            ci_high_ms=candidate.ci_ms[1],
            l2=candidate.trial.ranking_l2,
            **rates(session, study, candidate.trial, candidate.time_ms),
            default_ms=settled.get("default_ms"),
            slowest_ms=settled.get("slowest_ms"),
            library_name=library.get("name"),
            library_ms=library.get("time_ms"),
            # Rounds are not kept, so that two intervals must decide: beyond both, as between the library and a winner.
            library_faster=library_at_most_ms < candidate.ci_ms[0] if library else None,
            library_bound_ratio=library.get("bound_ratio"),
            bound_ratio=candidate.bound_ratio,
            verified_at=candidate.verified_at,
            stands_in_for_id=row.id,
        )
    )


def _candidates(session: Session, study_id: int) -> Iterator[_Candidate]:
    """Replacements for a retracted best: finalists of the study's jobs, then its other trials; fastest first."""
    out = barred(session, study_id)
    finalists = [c for c in _finalists(session, study_id) if Configuration.from_json(c.trial.configuration) not in out]
    yield from sorted(finalists, key=lambda c: c.time_ms)
    trial = models.Trial
    rows = session.execute(_measured(study_id).order_by(trial.time_ms, trial.id).limit(len(out) + 1))
    for row, job in rows:
        if Configuration.from_json(row.configuration) in out or row.time_ms is None:
            continue
        interval = ranking_interval(row)
        ci_ms = min(interval.low, row.time_ms), max(interval.high, row.time_ms)
        yield _Candidate(row, job, row.time_ms, ci_ms, row.bound_ratio, row.created_at)


def _finalists(session: Session, study_id: int) -> list[_Candidate]:
    """Every configuration that a job's finals settled; where several jobs did, the newest result."""
    job = models.TuningJob
    rows = session.scalars(
        select(job)
        .where(job.study_id == study_id, job.state == JobState.DONE, job.result.is_not(None))
        .order_by(job.finished_at.desc(), job.id.desc())
    )
    settled: dict[Configuration, tuple[models.TuningJob, dict[str, Any]]] = {}
    for row in rows:
        for said in (row.result or {}).get("finalists", ()):
            settled.setdefault(Configuration.from_json(said["configuration"]), (row, said))
    if not settled:
        return []
    wanted = models.Trial.configuration.in_([configuration.as_json() for configuration in settled])
    trials = {
        Configuration.from_json(trial.configuration): trial
        for trial, _ in session.execute(_measured(study_id, wanted).order_by(models.Trial.number))
    }
    return [
        _Candidate(
            trials[configuration],
            of,
            said["time_ms"],
            (said["ci_ms"][0], said["ci_ms"][1]),
            said.get("bound_ratio") or trials[configuration].bound_ratio,
            of.finished_at or trials[configuration].created_at,
        )
        for configuration, (of, said) in settled.items()
        if configuration in trials
    ]


def _measured(study_id: int, *conditions: ColumnElement[bool]) -> Any:
    """Measured trials of the newest sources with their jobs: each was verified before it was timed."""
    trial, job = models.Trial, models.TuningJob
    return (
        select(trial, job)
        .join(job, job.id == trial.job_id)
        .where(
            trial.study_id == study_id,
            trial.outcome == Outcome.MEASURED,
            is_newest_source(trial.kernel_variant_id),
            *conditions,
        )
    )
