"""A best is withdrawn with a reason; the next best of its study stands in. Tables of results in order."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta

import pytest
from desk import measured, request
from factories import H100, H200, NAIVE, SHAPE, TILED_16
from sqlalchemy import func, select, update

from tilewright.kernels.space import Configuration
from tilewright.service.operations.best.publish import job_result, publish_best
from tilewright.service.operations.best.results import results
from tilewright.service.operations.best.results_table import COLUMNS, TableFilter, result_table, results_by_model
from tilewright.service.operations.best.retractions import retract
from tilewright.service.operations.caller import COMMAND_LINE, acting_as
from tilewright.service.operations.jobs import progress as job_progress
from tilewright.service.operations.studies.rows import barred
from tilewright.service.store import models
from tilewright.service.store.models import JobState
from tilewright.tuner.loop.finals import DroppedFinalist, Finalist, LibraryTime
from tilewright.tuner.loop.tune import TuneResult
from tilewright.tuner.outcome import Evaluation, Outcome


def finalist(configuration: Configuration, time_ms: float) -> Finalist:
    return Finalist(configuration, time_ms, (0.99 * time_ms, 1.01 * time_ms), (time_ms,), ties=False)


def settled(*finalists: Finalist) -> TuneResult:
    library = LibraryTime("cuBLAS", 1.5, (1.49, 1.51), faster=False)
    return TuneResult(
        best=finalists[0] if finalists else None,
        finalists=finalists,
        library=library,
        default_ms=2.0,
        slowest_ms=8.0,
        stopped_by="trials",
    )


def publish(session, desk, *finalists: Finalist) -> models.BestConfiguration | None:
    """The job is done with these finalists."""
    best = publish_best(session, desk.row, desk.study, settled(*finalists))
    if desk.row.state is JobState.RUNNING:
        job_progress.end_job(session, desk.job_id, desk.epoch, JobState.DONE, result=job_result(settled(*finalists)))
    return best


def current(session) -> models.BestConfiguration | None:
    table = models.BestConfiguration
    return session.scalars(
        select(table)
        .where(table.superseded_by_id.is_(None), table.retracted_at.is_(None))
        .execution_options(populate_existing=True)
    ).one_or_none()


@pytest.fixture
def desk(take):
    desk = take()
    for place, time_ms in enumerate((1.0, 2.0, 4.0)):
        desk.record(place, measured(time_ms, bound_ratio=0.25))
    desk.record(3, Evaluation(Outcome.WRONG_RESULT, log="wrong"))
    return desk


@pytest.fixture
def best(session, desk) -> models.BestConfiguration:
    return publish(session, desk, finalist(desk.configurations[0], 0.9), finalist(desk.configurations[1], 1.7))


def test_the_next_finalist_stands_in_with_its_settled_time(session, desk, best):
    with acting_as(COMMAND_LINE, "test"):
        told = retract(session, best.id, "wrong on our matrices")
    assert (told.retracted_reason, told.retracted_by) == ("wrong on our matrices", "command line")
    now = current(session)
    assert (now.time_ms, now.ci_low_ms, now.stands_in_for_id) == (1.7, pytest.approx(1.683), best.id)
    assert session.get_one(models.Trial, now.trial_id).configuration == desk.configurations[1].as_json()
    assert now.gflops == pytest.approx(2 * 64 * 48 * 80 / 1.7e6)
    assert (now.default_ms, now.library_ms, now.library_faster, now.bound_ratio) == (2.0, 1.5, True, 0.25)
    assert now.roof_ratio is not None


def test_after_the_finalists_the_fastest_measured_trial_stands_in_and_then_nothing(session, desk, best):
    retract(session, best.id, "wrong")
    retract(session, current(session).id, "wrong too")
    third = current(session)
    assert (third.time_ms, third.bound_ratio) == (4.0, 0.25)
    retract(session, third.id, "and this")
    assert current(session) is None
    assert len(results(session, retracted=True).items) == 3
    assert results(session).items == []


def test_it_is_barred_from_later_finals_and_never_published_from_its_trial_again(session, desk, best, take):
    retract(session, best.id, "wrong")
    assert barred(session, desk.study.id) == frozenset([desk.configurations[0]])
    # A job that began before the retraction may still settle on it: its next finalist counts.
    other = take(wanted=request(seed=3))
    new = publish(session, other, finalist(desk.configurations[0], 0.8), finalist(desk.configurations[1], 1.6))
    assert (new.time_ms, session.get_one(models.Trial, new.trial_id).number) == (1.6, 1)
    assert publish(session, take(wanted=request(seed=4)), finalist(desk.configurations[0], 0.8)) is None


def test_what_was_published_twice_from_one_trial_is_retracted_both_times(session, desk, best, take):
    newer = publish(session, take(wanted=request(seed=3)), finalist(desk.configurations[0], 0.8))
    retract(session, best.id, "wrong")
    session.refresh(newer)
    assert newer.retracted_reason == "wrong"
    assert current(session).time_ms == 1.7


def test_a_superseded_one_is_retracted_without_touching_what_stands(session, desk, best, take):
    newer = publish(
        session,
        take(wanted=request(seed=3)),
        finalist(desk.configurations[1], 0.8),
        finalist(desk.configurations[0], 0.9),
    )
    retract(session, best.id, "wrong")
    assert current(session).id == newer.id


def correct(session, trial: models.Trial) -> models.KernelVariant:
    """A newer source of the trial's variant."""
    used = session.get_one(models.KernelVariant, trial.kernel_variant_id)
    corrected = models.KernelVariant(kernel_id=used.kernel_id, name=used.name, source_hash="f" * 64, source="corrected")
    session.add(corrected)
    session.flush()
    return corrected


def test_with_a_changed_source_the_configuration_may_be_tried_and_published_anew(session, desk, best):
    retract(session, best.id, "wrong")
    correct(session, session.get_one(models.Trial, best.trial_id))
    assert barred(session, desk.study.id) == frozenset()


@pytest.fixture
def fallen(session, desk) -> models.Trial:
    """The trial of a configuration that a job dropped in its finals."""
    found = replace(
        settled(finalist(desk.configurations[1], 1.7)), dropped=(DroppedFinalist(desk.configurations[0], "wrong"),)
    )
    job_progress.end_job(session, desk.job_id, desk.epoch, JobState.DONE, result=job_result(found))
    assert barred(session, desk.study.id) == frozenset([desk.configurations[0]])
    return session.scalars(select(models.Trial).where(models.Trial.number == 0)).one()


def test_what_fell_in_the_finals_may_be_tried_anew_once_its_source_is_corrected(session, desk, fallen, take):
    corrected = correct(session, fallen)
    assert barred(session, desk.study.id) == frozenset()
    newer = take(wanted=request(seed=3))
    variant_ids = newer.context.variant_ids | {corrected.name: corrected.id}
    newer.context = replace(newer.context, variant_ids=variant_ids)
    fallen.configuration_hash = "of the older source"
    session.flush()
    trial_of_it = newer.record(0, measured(1.1)).number
    later = update(models.Trial).where(models.Trial.number == trial_of_it)
    session.execute(later.values(created_at=func.now() + timedelta(seconds=1)))
    assert barred(session, desk.study.id) == frozenset()  # also while it has a trial, which those finals did not see
    dropped = replace(settled(), dropped=(DroppedFinalist(desk.configurations[0], "still wrong"),))
    job_progress.end_job(session, newer.job_id, newer.epoch, JobState.DONE, result=job_result(dropped))
    newer.row.finished_at += timedelta(seconds=2)
    session.flush()
    assert barred(session, desk.study.id) == frozenset([desk.configurations[0]])


def test_trials_of_an_older_source_do_not_stand_in(session, desk, best):
    correct(session, session.get_one(models.Trial, best.trial_id))
    retract(session, best.id, "wrong")
    assert current(session) is None


SHOWN = {
    "verified": lambda row: row.verified_at,
    "problem": lambda row: sorted(row.problem.shape.values()),
    "model": lambda row: row.device_model,
    "configuration": lambda row: row.variant,
    "time": lambda row: row.time_ms,
    "rate": lambda row: row.gflops,
    "roof": lambda row: row.roof_ratio,
    "default": lambda row: row.gain_over_default,
    "library": lambda row: row.library and row.library.time_ms / row.time_ms,
}


@pytest.fixture
def filled(rows):
    """Results of two models whose values have orders of their own; some lack what may be missing."""
    draw = random.Random(5)
    for number in range(12):
        configuration = (TILED_16, NAIVE)[number % 2]
        best = rows.best(
            SHAPE | {"m": 2**number},
            1 + draw.random(),
            model=(H200, H100)[number % 3 == 0],
            library_ms=1 + draw.random() if number % 4 else None,
            configuration=configuration,
        )
        best.default_ms, best.gflops = (None, None) if number % 5 == 0 else (2 + draw.random(), draw.random())
        best.roof_ratio = draw.random() if number % 5 else None
    rows.session.flush()
    return rows.session


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("column", sorted(COLUMNS))
@pytest.mark.parametrize("direction", ["", "-"])
def test_rows_are_in_the_order_of_the_column(filled, column, direction):
    by_model = results_by_model(filled, TableFilter(), direction + column, each=12)
    tables = [
        result_table(filled, TableFilter(), direction + column, limit=12),
        *(of.items for of in by_model.values()),
    ]
    assert [len(table) for table in tables] == [12, *(of.total for of in by_model.values())]
    for table in tables:
        shown = [SHOWN[column](row) for row in table]
        there = [value for value in shown if value is not None]
        assert shown == sorted(there, reverse=bool(direction)) + [None] * (len(shown) - len(there))
