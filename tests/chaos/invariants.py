"""What must hold whatever happened, asked of the database's rows; each breach is a sentence."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from chaos.load import Told
from tilewright.service.operations.answers import ScheduleAnswer
from tilewright.service.store import models
from tilewright.service.store.models import JobState

OPEN = (JobState.QUEUED, JobState.RUNNING)
Trials = dict[tuple[int, int], tuple[str, int]]


class Memory:
    """Trials that were once seen, and must never be missing or other than they were."""

    def __init__(self) -> None:
        self.trials: Trials = {}

    def breaches(self, session: Session) -> list[str]:
        """Of the trials' rows, in the middle of everything."""
        table = models.Trial
        rows = session.execute(
            select(
                table.study_id, table.number, table.configuration_hash, table.id, table.job_id, table.epoch
            ).order_by(table.study_id, table.number)
        ).all()
        found: Trials = {(study, number): (digest, row_id) for study, number, digest, row_id, _, _ in rows}
        said = [
            f"trial {key} was there and is {found.get(key)}"
            for key, was in self.trials.items()
            if found.get(key) != was
        ]
        said += _repeated("trial number of a study", ((study, number) for study, number, *_ in rows))
        said += _repeated("configuration of a study", ((study, digest) for study, _, digest, *_ in rows))
        last: dict[tuple[int, uuid.UUID], int] = {}
        for study, number, _, _, job_id, epoch in rows:
            if epoch < last.get((study, job_id), 0):
                said.append(f"trial {number} of study {study}: epoch {epoch} wrote after a later one")
            last[study, job_id] = epoch
        self.trials |= found
        return said


def of_results(session: Session) -> list[str]:
    """Of studies, bests and jobs, when nothing is open any more."""
    trial, best, job = models.Trial, models.BestConfiguration, models.TuningJob
    counts = dict(session.execute(select(trial.study_id, func.count()).group_by(trial.study_id)).all())
    said = [
        f"study {study.id} has {counts.get(study.id, 0)} trials, and numbers up to {study.next_number}"
        for study in session.scalars(select(models.Study))
        if counts.get(study.id, 0) != study.next_number
    ]
    said += _repeated("publication of a job", session.scalars(select(best.job_id)))
    current = select(best.problem_id, best.device_model_id, best.environment_id).where(
        best.superseded_by_id.is_(None), best.retracted_at.is_(None)
    )
    said += _repeated("current best of a problem", session.execute(current))
    for row in session.scalars(select(job)):
        if row.state in OPEN:
            said.append(f"job {row.id} never ended: {row.state}, {row.phase}, epoch {row.epoch}, {row.error}")
        if row.state is JobState.FAILED and not row.error:
            said.append(f"job {row.id} failed without a reason")
        if row.state is JobState.DONE and not row.result:
            said.append(f"job {row.id} is done without a result")
    left = session.execute(
        text("SELECT id, status::text, args->>'job_id' FROM procrastinate_jobs WHERE status IN ('todo', 'doing')")
    )
    return said + [f"the engine still has entry {entry} of job {job_id}: {status}" for entry, status, job_id in left]


def of_requests(session: Session, told: Told) -> list[str]:
    """Of what callers were told: each request is one job, with as many trials as it asked for."""
    said = []
    keys = {(row.owner, row.key): row.job_id for row in session.scalars(select(models.IdempotencyKey))}
    for key, job_id in told.jobs.items():
        row = session.get(models.TuningJob, job_id)
        if row is None or keys.get(key) != job_id:
            said.append(f"the acknowledged job {job_id} of request {key} is not there")
            continue
        counted = session.scalar(select(func.count()).where(models.Trial.job_id == job_id))
        if row.state is JobState.DONE and job_id not in told.cancelled and counted != told.trials[job_id]:
            said.append(f"job {job_id} is done with {counted} trials of {told.trials[job_id]}")
        if row.trials_done != counted:
            said.append(f"job {job_id} says {row.trials_done} trials and has {counted}")
        owner = session.scalar(select(models.ApiKey.name).where(models.ApiKey.id == row.key_id))
        if owner != key[0]:
            said.append(f"job {job_id} of {key[0]} belongs to {owner}")
    said += _repeated("request that became a job", told.jobs.values())
    requested = session.scalar(select(func.count()).where(models.TuningJob.schedule_id.is_(None)))
    if requested != len(keys):
        said.append(f"{requested} jobs for {len(keys)} requests")
    return said


def of_schedules(session: Session, made: list[tuple[int, ScheduleAnswer]], paused_at: datetime) -> list[str]:
    """Of due times: each was dealt with, once, and has the jobs that it says."""
    said = []
    for every_s, schedule in made:
        fires = session.scalars(
            select(models.ScheduleFire)
            .where(models.ScheduleFire.schedule_id == schedule.id, ~models.ScheduleFire.manual)
            .order_by(models.ScheduleFire.fire_at)
        ).all()
        there = [fire.fire_at for fire in fires]
        said += _repeated(f"due time of {schedule.name!r}", there)
        due, expected = schedule.next_at, set()
        while due is not None and due < paused_at - timedelta(seconds=2):
            expected.add(due)
            due += timedelta(seconds=every_s)
        dealt_with = set(there).union(*(_stood_for(fire, expected) for fire in fires))
        said += [f"{schedule.name!r} never fired at {missed}" for missed in sorted(expected - dealt_with)]
        said += [f"{schedule.name!r} fired at {odd}, which is not due" for odd in there if odd.second % every_s]
        table = models.TuningJob
        made_at = select(table.fire_at, func.count()).where(table.schedule_id == schedule.id).group_by(table.fire_at)
        jobs = dict(session.execute(made_at).all())
        said += [
            f"{schedule.name!r} at {fire.fire_at} says {fire.jobs} jobs and has {jobs.get(fire.fire_at, 0)}"
            for fire in fires
            if fire.jobs != jobs.get(fire.fire_at, 0)
        ]
    return said


def _stood_for(fire: models.ScheduleFire, expected: set[datetime]) -> set[datetime]:
    """Due times that nobody could fire for a minute and more; one late fire stands for them, and says so."""
    told = re.search(r"stands for all due times from .* to (\S+ \S+) UTC", fire.reason or "")
    if told is None:
        return set()
    until = datetime.fromisoformat(f"{told[1]}+00:00")
    return {due for due in expected if fire.fire_at <= due <= until}


def _repeated(what: str, keys: Iterable[object]) -> list[str]:
    return [f"{what}, {count} times: {key}" for key, count in Counter(keys).items() if count > 1]
