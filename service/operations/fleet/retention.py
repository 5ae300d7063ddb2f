"""Retention: deletes samples of old trials and used idempotency keys and, by hand, the record of changes.

Medians, spreads, intervals, outcomes, logs and everything about jobs and results stay for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, cast, func, or_, select, update
from sqlalchemy import delete as delete_rows
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH
from sqlalchemy.orm import Session, load_only

from tilewright.service.operations.studies.rows import ranking_interval
from tilewright.service.settings import settings
from tilewright.service.store import models

BATCH = 500
"""Trials of one transaction: some tens of milliseconds of work, so that nothing waits long for it."""
JOBS_AT_ONCE = 50
"""Jobs looked at in one transaction; most are small."""
KEYS_KEPT = timedelta(days=30)
"""How long an idempotency key is kept: callers retry for minutes, not for weeks."""
ENTRIES_AT_ONCE = 5000


@dataclass(frozen=True)
class Pruned:
    """The rows that one transaction has pruned; `more`: there may be more to prune."""

    jobs: int = 0
    trials: int = 0
    more: bool = False


@dataclass(frozen=True)
class Prunable:
    """The rows that pruning would delete now."""

    jobs: int
    trials: int
    sample_bytes: int


def prune_samples(session: Session, older_than: timedelta) -> Pruned:
    """Deletes samples of trials of jobs that ended so long ago, one batch; winners and finalists keep theirs.

    Any number of processes may do it at once: each takes jobs that no other has locked.
    """
    job, pruned, dropped = models.TuningJob, 0, 0
    rows = session.scalars(
        _due(older_than)
        .options(load_only(job.id, job.study_id))
        .order_by(job.finished_at)
        .limit(JOBS_AT_ONCE)
        .with_for_update(skip_locked=True)
    ).all()
    for row in rows:
        trials = _trials(session, row, BATCH - dropped)
        _drop(session, trials)
        dropped += len(trials)
        if dropped >= BATCH:
            return Pruned(pruned, dropped, more=True)
        # By a statement of its own: the row's revision, which its readers follow, stays.
        session.execute(update(job).where(job.id == row.id).values(samples_pruned_at=func.now()))
        pruned += 1
    return Pruned(pruned, dropped, more=len(rows) == JOBS_AT_ONCE)


def prunable(session: Session, older_than: timedelta) -> Prunable:
    """The amount that `prune_samples` would delete, over all batches; reads every trial concerned."""
    job, table, best = models.TuningJob, models.Trial, models.BestConfiguration
    due = _due(older_than).with_only_columns(job.id, job.study_id).cte("due")
    studies = select(due.c.study_id)
    settled = select(job.study_id, _finalists(job)).where(job.study_id.in_(studies)).distinct().cte("settled")
    size = func.coalesce(func.pg_column_size(table.warm_samples_ms), 0) + func.coalesce(
        func.pg_column_size(table.cold_samples_ms), 0
    )
    kept = select(settled).where(settled.c.study_id == due.c.study_id, settled.c.configuration == table.configuration)
    # One statement: with one for each job, 21,000 jobs took 47 s.
    trials, sample_bytes = session.execute(
        select(func.count(), func.coalesce(func.sum(size), 0))
        .select_from(table)
        .join(due, due.c.id == table.job_id)
        .where(_has_samples(), ~kept.exists(), ~select(best.id).where(best.trial_id == table.id).exists())
    ).one()
    return Prunable(session.scalar(select(func.count()).select_from(due)) or 0, trials, sample_bytes)


def forget_samples(session: Session) -> bool:
    """Runs `prune_samples` as a chore, if `samples_kept_days` is set; whether there may be more to prune."""
    days = settings().samples_kept_days
    return days is not None and prune_samples(session, timedelta(days=days)).more


def forget_old_keys(session: Session) -> None:
    """Deletes idempotency keys older than a month."""
    table = models.IdempotencyKey
    session.execute(delete_rows(table).where(table.created_at < func.now() - KEYS_KEPT))


def forget_entries(session: Session, older_than: timedelta) -> int:
    """Deletes up to 5000 entries of the record of changes; how many. Only the migrator's role may do this."""
    table = models.AuditEntry
    old = select(table.id).where(table.at < func.now() - older_than).order_by(table.id).limit(ENTRIES_AT_ONCE)
    gone = session.scalars(delete_rows(table).where(table.id.in_(old.scalar_subquery())).returning(table.id))
    return len(gone.all())


def count_entries(session: Session, older_than: timedelta) -> int:
    """How many entries `forget_entries` would delete, over all batches."""
    table = models.AuditEntry
    return session.scalar(select(func.count()).where(table.at < func.now() - older_than)) or 0


def _due(older_than: timedelta) -> Select[models.TuningJob]:
    job = models.TuningJob
    return select(job).where(job.samples_pruned_at.is_(None), job.finished_at < func.now() - older_than)


def _loses_samples(job: models.TuningJob) -> list[ColumnElement[bool]]:
    """Conditions for the job's trials that have samples and were never a winner or finalist of any job."""
    table, best, any_job = models.Trial, models.BestConfiguration, models.TuningJob
    settled = select(_finalists(any_job)).where(any_job.study_id == job.study_id)
    return [
        table.job_id == job.id,
        _has_samples(),
        table.configuration.not_in(settled),
        ~select(best.id).where(best.trial_id == table.id).exists(),
    ]


def _has_samples() -> ColumnElement[bool]:
    return or_(models.Trial.warm_samples_ms.is_not(None), models.Trial.cold_samples_ms.is_not(None))


def _finalists(job: type[models.TuningJob]) -> ColumnElement[Any]:
    """The configurations of a job's finalists, a row each."""
    path = cast("$.finalists[*].configuration", JSONPATH)
    return func.jsonb_path_query(job.result, path, type_=JSONB).label("configuration")


def _trials(session: Session, job: models.TuningJob, limit: int) -> Sequence[models.Trial]:
    table = models.Trial
    needed = (table.time_ms, table.ranking_l2, table.warm_samples_ms, table.cold_samples_ms)
    kept = (table.ci_low_ms, table.ci_high_ms)
    query = select(table).where(*_loses_samples(job)).options(load_only(*needed, *kept))
    return session.scalars(query.limit(limit)).all()  # in any order: to sort them all would be most of the work


def _drop(session: Session, trials: Sequence[models.Trial]) -> None:
    now = session.scalar(select(func.now()))  # as a value: with an expression each row would be a statement
    for row in trials:
        if row.time_ms is not None:
            interval = ranking_interval(row)
            row.ci_low_ms, row.ci_high_ms = interval.low, interval.high
        row.warm_samples_ms = row.cold_samples_ms = None
        row.samples_pruned_at = now
    session.flush()
