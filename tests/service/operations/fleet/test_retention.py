"""Single times of old trials go, all that was made of them stays; used keys and old entries go too."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest
from desk import request
from sqlalchemy import func, select, update
from test_retractions import finalist, publish

from tilewright.service.operations.exchange.foreign_export import export_t4
from tilewright.service.operations.fleet import retention
from tilewright.service.operations.fleet.retention import Prunable, Pruned, prunable, prune_samples
from tilewright.service.operations.studies.evidence import evidence
from tilewright.service.operations.studies.rows import prior_trials, ranking_interval
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.worker.maintenance import CHORES
from tilewright.tuner.outcome import Evaluation, Outcome, Timing

DAY = timedelta(days=1)
TIMES_MS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6)


def timed(factor: float, l2: str = "warm") -> Evaluation:
    samples = tuple(factor * time_ms for time_ms in TIMES_MS)
    timing = Timing(factor * 1.3, factor * 0.3, samples, l2)
    return Evaluation(Outcome.MEASURED, **{l2: timing}, ranking_l2=l2)


def ended(desk, age: timedelta = 2 * DAY) -> None:
    table = models.TuningJob
    desk.session.execute(
        update(table).where(table.id == desk.job_id).values(finished_at=datetime.now(UTC) - age, state="done")
    )


def samples_of(session) -> dict[int, bool]:
    """Whether each trial still has its single times."""
    rows = session.scalars(select(models.Trial).order_by(models.Trial.number).execution_options(populate_existing=True))
    return {row.number: bool(row.warm_samples_ms or row.cold_samples_ms) for row in rows}


@pytest.fixture
def tuned(take):
    """Four measured trials and a failed one of a job that ended two days ago: 0 is its best, 1 a finalist."""
    desk = take()
    for place in range(4):
        desk.record(place, timed(place + 1, "cold" if place == 3 else "warm"))
    desk.record(4, Evaluation(Outcome.COMPILE_FAILED, log="error: of the test"))
    publish(desk.session, desk, finalist(desk.configurations[0], 1.3), finalist(desk.configurations[1], 2.6))
    ended(desk)
    return desk


def test_winners_and_finalists_keep_their_samples_and_others_lose_them(session, tuned):
    assert prune_samples(session, DAY) == Pruned(jobs=1, trials=2)
    assert samples_of(session) == {0: True, 1: True, 2: False, 3: False, 4: False}
    assert prune_samples(session, DAY) == Pruned()


def test_what_was_made_of_the_samples_stays(session, tuned):
    rows = list(session.scalars(select(models.Trial).where(models.Trial.number.in_([2, 3]))))
    before = [(row.time_ms, row.warm_spread_ms, row.cold_spread_ms, ranking_interval(row)) for row in rows]
    prune_samples(session, DAY)
    session.expire_all()
    assert [(row.time_ms, row.warm_spread_ms, row.cold_spread_ms, ranking_interval(row)) for row in rows] == before
    assert before[0][3].low < before[0][0] < before[0][3].high
    trials = prior_trials(session, tuned.study.id, tuned.context.kernel)
    assert [t.evaluation.time_ms for t in trials] == [1.3, 2.6, 3.9000000000000004, 5.2, None]


def test_a_trial_and_a_file_say_that_samples_were_pruned(session, tuned, monkeypatch):
    prune_samples(session, DAY)
    session.expire_all()
    assert evidence(session, tuned.study.id, 2).trial.samples_pruned_at is not None
    assert evidence(session, tuned.study.id, 0).trial.samples_pruned_at is None
    document = "".join(_exported(session, tuned.study.id, monkeypatch))
    assert '"samples_pruned":2' in document
    assert '"runtimes":[5.2]' in document


def _exported(session, study_id, monkeypatch):
    monkeypatch.setattr(
        "tilewright.service.operations.exchange.foreign_export.transaction", lambda: nullcontext(session)
    )
    return export_t4(study_id)


def test_recent_and_open_jobs_are_left_alone(session, take):
    desk = take()
    desk.record(0, timed(1))
    assert prune_samples(session, timedelta(0)) == Pruned()
    ended(desk, timedelta(hours=23))
    assert prune_samples(session, DAY) == Pruned()
    assert samples_of(session) == {0: True}


def test_a_finalist_of_another_job_of_the_study_keeps_its_samples(session, take):
    first = take()
    first.record(0, timed(1))
    first.record(1, timed(2))
    ended(first)
    second = take(wanted=request(seed=1))
    publish(session, second, finalist(first.configurations[1], 2.6))
    assert prune_samples(session, DAY) == Pruned(jobs=1, trials=1)
    assert samples_of(session) == {0: False, 1: True}


def test_a_long_job_goes_in_batches_and_a_dry_run_counts_all_of_them(session, tuned, monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 1)
    would = prunable(session, DAY)
    assert (would.jobs, would.trials) == (1, 2)
    assert would.sample_bytes >= 2 * len(TIMES_MS) * 8
    done = [prune_samples(session, DAY) for _ in range(3)]
    assert [one.trials for one in done] == [1, 1, 0]
    assert [one.more for one in done] == [True, True, False]
    assert prunable(session, DAY) == Prunable(0, 0, 0)


def test_the_chore_does_as_the_setting_says(session, tuned, monkeypatch):
    assert retention.forget_samples in CHORES
    retention.forget_samples(session)
    assert samples_of(session)[2]
    monkeypatch.setenv("TILEWRIGHT_SAMPLES_KEPT_DAYS", "1.5")
    settings.cache_clear()
    try:
        retention.forget_samples(session)
    finally:
        monkeypatch.undo()
        settings.cache_clear()
    assert not samples_of(session)[2]


def test_idempotency_keys_of_last_month_are_forgotten(session, take):
    desk = take()
    for key, age in (("old", 31), ("new", 29)):
        session.add(
            models.IdempotencyKey(
                key=key, body_hash="", job_id=desk.job_id, created_at=datetime.now(UTC) - timedelta(days=age)
            )
        )
    session.flush()
    retention.forget_old_keys(session)
    assert session.scalars(select(models.IdempotencyKey.key)).all() == ["new"]


def test_old_entries_of_the_record_are_deleted_in_batches(session, monkeypatch):
    monkeypatch.setattr(retention, "ENTRIES_AT_ONCE", 2)
    for days in (1, 400, 500, 600):
        at = datetime.now(UTC) - timedelta(days=days)
        session.add(models.AuditEntry(at=at, actor="command line", action="of the test", changed={}))
    session.flush()
    year = timedelta(days=365)
    assert retention.count_entries(session, year) == 3
    assert [retention.forget_entries(session, year) for _ in range(3)] == [2, 1, 0]
    assert session.scalar(select(func.count()).select_from(models.AuditEntry)) == 1
