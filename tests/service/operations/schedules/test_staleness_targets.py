"""Schedules that find what they tune when they fire, and what came of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from desk import ENVIRONMENT, MODEL, SHAPE, measured, request
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from tilewright.service.errors import InvalidRequestError, NotFoundError
from tilewright.service.operations import registry
from tilewright.service.operations.best.publish import job_result, publish_best
from tilewright.service.operations.demand import demand
from tilewright.service.operations.demand.demand import RequestedProblem
from tilewright.service.operations.jobs import progress as job_progress
from tilewright.service.operations.requests import ScheduleRequest
from tilewright.service.operations.schedules.schedules import create_schedule, delete_schedule, fires, run_now, schedule
from tilewright.service.operations.staleness.comparisons import (
    DRIFT,
    TimeInterval,
    Verdict,
    compare,
    comparisons,
    settle,
)
from tilewright.service.store import models
from tilewright.service.store.models import JobState
from tilewright.tuner.loop.finals import Finalist
from tilewright.tuner.loop.tune import TuneResult

pytestmark = pytest.mark.usefixtures("device")

NEWER = replace(ENVIRONMENT, driver="590.1")
HUGE = {"m": 60_000, "n": 600_000, "k": 60_000}


def looking_for(session, target: str, **more) -> int:
    request = ScheduleRequest(**{"name": target, "cron": "0 0 3 * * *", "target": target} | more)
    return create_schedule(session, request).id


def finish(session, desk, time_ms: float = 1.0, place: int = 0) -> models.BestConfiguration | None:
    """The job is done with that configuration as its winner."""
    desk.record(place, measured(time_ms, bound_ratio=0.25))
    winner = Finalist(desk.configurations[place], time_ms, (0.99 * time_ms, 1.01 * time_ms), (time_ms,), ties=False)
    settled = TuneResult(
        best=winner, finalists=(winner,), library=None, default_ms=2.0, slowest_ms=8.0, stopped_by="trials"
    )
    best = publish_best(session, desk.row, desk.study, settled)
    job_progress.end_job(session, desk.job_id, desk.epoch, JobState.DONE, result=job_result(settled))
    return best


@pytest.fixture
def best(session, take) -> models.BestConfiguration:
    return finish(session, take())


def move_on(session) -> None:
    registry.register_device(session, MODEL, "GPU-1", "host-a", 0, NEWER)


def problems(session, schedule_id: int) -> list[dict[str, int]]:
    return [job.problem.shape for job in run_now(session, schedule_id)]


def wanted(m: int) -> RequestedProblem:
    return RequestedProblem(MODEL.slug, "gemm", (("m", m), ("n", 48), ("k", 80)), "float32", ())


# --- what is found


def test_everything_stale_is_found_when_it_fires_and_not_before(session, best):
    stale = looking_for(session, "stale")
    assert problems(session, stale) == []
    assert fires(session, stale).items[0].reason == "No problem is stale."
    move_on(session)
    assert problems(session, stale) == [SHAPE]
    job = session.scalars(select(models.TuningJob).where(models.TuningJob.schedule_id == stale)).one()
    assert (job.budget_trials, job.state) == (100, JobState.QUEUED)


def test_what_has_an_open_job_is_not_asked_for_twice(session, best):
    move_on(session)
    stale = looking_for(session, "stale", overlap="queue")
    assert problems(session, stale) == [SHAPE]
    assert problems(session, stale) == []


def test_a_problem_with_a_fresh_best_is_not_stale_for_its_old_one(session, best, take):
    move_on(session)
    environment_id = session.scalar(select(func.max(models.Environment.id)))
    desk = take(wanted=request(seed=1))
    session.execute(update(models.Study).where(models.Study.id == desk.study.id).values(environment_id=environment_id))
    session.refresh(desk.study)
    session.execute(update(models.BestConfiguration).values(environment_id=environment_id - 1))
    assert finish(session, desk, 0.5, place=1).environment_id == environment_id
    assert problems(session, looking_for(session, "stale")) == []


def test_everything_improvable_is_found_until_every_variant_was_tried(session, best):
    improvable = looking_for(session, "improvable", overlap="queue")
    assert problems(session, improvable) == [SHAPE]
    session.execute(update(models.TuningJob).values(state=JobState.DONE))
    kernel = registry.catalogue().get("gemm")
    study = session.get_one(models.Study, session.scalar(select(models.Trial.study_id)))
    study.space_by_source = dict.fromkeys(
        (f"{v.name}:{kernel.source_hash(v.name)}" for v in kernel.variants if v.name != "naive"), 0
    )
    session.flush()
    assert problems(session, improvable) == []
    assert fires(session, improvable).items[0].reason == "No problem is improvable."


def test_the_top_of_demand_is_found_by_traffic_less_what_cannot_be_tuned(session, best):
    demand.count(session, {wanted(8): 2, wanted(16): 5, wanted(24): 1, wanted(64): 99})  # 64 is known
    huge = RequestedProblem(MODEL.slug, "gemm", tuple(HUGE.items()), "float32", ())
    demand.count(session, {huge: 50})
    top = looking_for(session, "demand", top=2)
    assert [shape["m"] for shape in problems(session, top)] == [16, 8]
    assert [shape["m"] for shape in problems(session, top)] == [24]


def test_demand_alone_tunes_nothing_that_takes_very_long(session, best):
    long = RequestedProblem(MODEL.slug, "gemm", (("m", 60_000), ("n", 60_000), ("k", 60_000)), "float32", ())
    session.execute(update(models.DeviceModel).values(memory_bytes=1 << 40))
    demand.count(session, {long: 10_000, wanted(8): 1})
    assert [shape["m"] for shape in problems(session, looking_for(session, "demand", top=5))] == [8]
    named = looking_for(session, "problems", problems=[{"kernel": "gemm", "shape": dict(long.shape)}])
    assert [shape["m"] for shape in problems(session, named)] == [60_000]


def test_only_the_kernel_that_was_named_is_looked_at(session, best):
    move_on(session)
    assert problems(session, looking_for(session, "stale", kernel="gemv")) == []
    assert problems(session, looking_for(session, "stale", kernel="gemm", name="other")) == [SHAPE]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"problems": [{"kernel": "gemm", "shape": SHAPE}]}, "problems"),
        ({"variants": ["naive"]}, "variants"),
        ({"kernel": "nosuch"}, "kernel"),
        ({"device_model": "nosuch"}, "device_model"),
        ({"target": "problems"}, "problems"),
        ({"target": "problems", "problems": [{"kernel": "gemm", "shape": SHAPE}], "kernel": "gemm"}, "kernel"),
    ],
)
def test_what_does_not_fit_the_target_is_refused(session, more, field):
    with pytest.raises(InvalidRequestError) as refused:
        looking_for(session, **{"target": "stale"} | more)
    assert refused.value.field == field


def test_a_schedule_says_what_it_looks_for(session):
    shown = schedule(session, looking_for(session, "demand", top=3, kernel="gemm"))
    assert (shown.target, shown.top, shown.kernel, shown.problems) == ("demand", 3, "gemm", [])


# --- what came of it


def retuned(session, take, time_ms: float, place: int) -> None:
    """The schedule's only open job is run to its end."""
    open_one = select(models.TuningJob.id).where(models.TuningJob.state == JobState.QUEUED)
    finish(session, take(session.scalars(open_one).one()), time_ms, place)


@pytest.mark.parametrize(("time_ms", "verdict"), [(0.8, "better"), (0.99, "same"), (1.01, "same"), (1.3, "worse")])
def test_before_and_after_are_compared_beyond_the_noise(session, best, take, time_ms, verdict):
    again = looking_for(session, "improvable")
    run_now(session, again)
    settle(session)
    assert comparisons(session, again).items[0].verdict is None
    trial = session.get_one(models.Trial, best.trial_id)
    open_one = session.scalars(select(models.TuningJob.id).where(models.TuningJob.state == JobState.QUEUED)).one()
    desk = take(open_one)
    finalists = [
        Finalist(desk.configurations[place], ms, (0.99 * ms, 1.01 * ms), (ms,), ties=False)
        for place, ms in ((1, time_ms), (trial.number, time_ms * 1.2))
    ]
    desk.record(1, measured(time_ms, bound_ratio=0.25))
    settled = TuneResult(
        best=finalists[0], finalists=tuple(finalists), library=None, default_ms=2.0, slowest_ms=8.0, stopped_by="trials"
    )
    after = publish_best(session, desk.row, desk.study, settled)
    job_progress.end_job(session, desk.job_id, desk.epoch, JobState.DONE, result=job_result(settled))
    settle(session)
    (found,) = comparisons(session, again).items
    assert (found.verdict, found.ratio) == (verdict, pytest.approx(time_ms))
    assert (found.before_result, found.after_result, found.before_ms) == (best.id, after.id, 1.0)
    assert [c.id for c in comparisons(session, again, verdict=verdict).items] == [found.id]


def test_a_job_that_finds_nothing_faster_leaves_the_same_best(session, best, take):
    again = looking_for(session, "improvable")
    run_now(session, again)
    retuned(session, take, 3.0, 1)
    settle(session)
    (found,) = comparisons(session, again).items
    assert (found.verdict, found.ratio) == ("same", 1.0)
    assert found.reason == "The best from before the job is still the best."


def test_what_has_no_other_side_is_missing_and_says_why(session, take):
    demand.count(session, {RequestedProblem(MODEL.slug, "gemm", tuple(SHAPE.items()), "float32", ()): 1})
    top = looking_for(session, "demand", overlap="queue")
    run_now(session, top)
    retuned(session, take, 1.0, 0)
    settle(session)
    assert comparisons(session, top).items[0].reason == "There was no best configuration before the job."
    again = looking_for(session, "improvable", overlap="queue")
    run_now(session, again)
    session.execute(
        update(models.TuningJob)
        .where(models.TuningJob.state == JobState.QUEUED)
        .values(state=JobState.FAILED, error="No compiler.")
    )
    settle(session)
    (found,) = comparisons(session, again).items
    assert (found.verdict, found.ratio, found.reason) == ("missing", None, "The job failed. No compiler.")


def test_comparisons_go_with_their_schedule(session, best):
    again = looking_for(session, "improvable")
    run_now(session, again)
    delete_schedule(session, again)
    assert session.scalar(select(func.count()).select_from(models.Comparison)) == 0
    with pytest.raises(NotFoundError):
        comparisons(session, again)


times = st.floats(1e-4, 1e3)
parts = st.floats(0, 0.2)


@given(times, times, parts, parts)
def test_a_verdict_turns_around_with_its_sides(before_ms, after_ms, before_noise, after_noise):
    before = TimeInterval(before_ms, before_ms * (1 - before_noise), before_ms * (1 + before_noise))
    after = TimeInterval(after_ms, after_ms * (1 - after_noise), after_ms * (1 + after_noise))
    verdict, ratio, threshold = compare(before, after)
    back, back_ratio, back_threshold = compare(after, before)
    opposite = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER, Verdict.SAME: Verdict.SAME}
    assert back is opposite[verdict]
    assert ratio * back_ratio == pytest.approx(1)
    assert threshold == pytest.approx(back_threshold)
    assert threshold >= DRIFT


@given(times)
def test_steady_runs_that_drift_as_much_as_is_let_pass_are_the_same(time_ms):
    steady = TimeInterval(time_ms, time_ms, time_ms)
    drifted = TimeInterval(time_ms * (1 + DRIFT), time_ms * (1 + DRIFT), time_ms * (1 + DRIFT))
    assert compare(steady, drifted)[0] is Verdict.SAME
    assert compare(steady, TimeInterval(time_ms * 1.05, time_ms * 1.05, time_ms * 1.05))[0] is Verdict.WORSE
