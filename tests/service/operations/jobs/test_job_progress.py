from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
from desk import ENVIRONMENT, LIMITS, measured, request
from sqlalchemy import func, select

from tilewright.service.errors import FencedError, NotFoundError
from tilewright.service.operations import registry
from tilewright.service.operations.jobs import progress as job_progress
from tilewright.service.operations.jobs.events import events_after
from tilewright.service.operations.jobs.jobs import cancel_job, job, jobs, trials
from tilewright.service.operations.jobs.progress import BudgetSpent
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.studies import rows as study_rows
from tilewright.service.store import models
from tilewright.service.store.models import JobState
from tilewright.tuner.outcome import Evaluation, Outcome, Resources, Timing


def engine_id(desk) -> int:
    return desk.row.engine_id


def test_a_trial_comes_back_as_it_was_recorded(session, take):
    desk = take()
    evaluation = Evaluation(
        Outcome.MEASURED,
        warm=Timing(0.5, 0.01, (0.49, 0.5, 0.52), "warm"),
        cold=Timing(0.7, 0.02, (0.7,), "cold"),
        resources=Resources(40, 1024, 0, 0.5, 0.012),
        bound_ratio=0.1,
        compile_ms=12.0,
        clock_mhz=1980,
        temperature_c=50,
        log="as said",
    )
    assert desk.record(0, evaluation).number == 0
    (stored,) = study_rows.prior_trials(session, desk.study.id, desk.context.kernel)
    assert (stored.evaluation, stored.configuration) == (evaluation, desk.configurations[0])
    (answer,) = trials(session, job_id=desk.job_id).items
    work = 2 * 64 * 48 * 80
    assert answer.gflops == pytest.approx(work / 0.5e-3 / 1e9, rel=0.05)
    assert (answer.outcome, answer.spread_ms, answer.cold_ms, answer.pack_ms) == ("measured", 0.01, 0.7, 0.012)


def test_numbers_are_leased_in_order_by_all_jobs_of_a_study(session, take):
    one, other = take(), take(wanted=request(seed=1))
    assert one.study.id == other.study.id
    assert [one.record(0, measured(1.0)).number, other.record(1, measured(1.0)).number] == [0, 1]
    assert one.record(2, measured(1.0), done=2).number == 2
    assert (job(session, one.job_id).trials_done, job(session, other.job_id).trials_done) == (2, 2)


def test_a_trial_recorded_twice_is_there_once(session, take):
    desk = take()
    first, second = desk.record(0, measured(1.0)), desk.record(0, measured(1.0))
    assert first.number == second.number
    assert session.scalar(select(func.count()).select_from(models.Trial)) == 1
    assert job(session, desk.job_id).trials_done == 1


def test_what_another_job_measured_meanwhile_counts_and_keeps_its_row(session, take):
    one, other = take(), take(wanted=request(seed=1))
    one.record(0, measured(1.0))
    assert other.record(0, measured(2.0)).number == 0
    (row,) = session.scalars(select(models.Trial))
    assert (row.job_id, row.time_ms) == (one.job_id, 1.0)
    assert job(session, other.job_id).trials_done == 1


def test_a_failed_trial_is_recorded_with_its_log_and_no_time(session, take):
    desk = take()
    desk.record(0, Evaluation(Outcome.WRONG_RESULT, bound_ratio=math.inf, log="bad\0byte " + "x" * 100_000))
    (answer,) = trials(session, job_id=desk.job_id).items
    assert (answer.outcome, answer.time_ms, answer.gflops, answer.bound_ratio) == ("wrong_result", None, None, None)
    assert answer.log.startswith("bad\N{REPLACEMENT CHARACTER}byte")
    assert len(answer.log) == 64 * 1024
    assert job(session, desk.job_id).best_ms is None


def test_a_worker_whose_job_was_taken_over_writes_nothing_more(session, take):
    old = take()
    old.record(0, measured(1.0))
    new = take(old.job_id)
    assert new.epoch == old.epoch + 1
    for write in (
        lambda: old.record(1, measured(1.0)),
        lambda: job_progress.hand_back(session, old.job_id, old.epoch),
        lambda: job_progress.end_job(session, old.job_id, old.epoch, JobState.DONE),
        lambda: job_progress.note_crash(session, old.job_id, old.epoch, "x"),
        lambda: job_progress.set_phase(session, old.job_id, old.epoch, "finals"),
    ):
        with pytest.raises(FencedError):
            write()
    assert session.scalar(select(func.count()).select_from(models.Trial)) == 1
    assert new.record(1, measured(1.0)).number == 1


def test_only_the_entry_that_the_job_names_may_take_it(session, take):
    desk = take()
    assert job_progress.take_job(session, desk.job_id, engine_id(desk) + 1, "worker-2") is None
    assert job(session, desk.job_id).epoch == desk.epoch


def test_a_job_that_is_handed_back_can_be_taken_again_and_is_no_crash(session, take):
    desk = take()
    job_progress.hand_back(session, desk.job_id, desk.epoch)
    assert (job(session, desk.job_id).state, desk.row.worker) == ("queued", None)
    again = take(desk.job_id)
    assert (again.epoch, again.row.crashes) == (desk.epoch + 1, 0)


def test_a_job_that_keeps_crashing_fails_with_what_was_said(session, take):
    desk = take()
    for _ in range(job_progress.MAX_CRASHES - 1):
        assert job_progress.note_crash(session, desk.job_id, desk.epoch, "segmentation fault")
        desk = take(desk.job_id)
    assert not job_progress.note_crash(session, desk.job_id, desk.epoch, "segmentation fault")
    ended = job(session, desk.job_id)
    assert (ended.state, ended.error) == ("failed", "segmentation fault")
    assert ended.finished_at is not None


def test_a_job_whose_workers_keep_dying_fails(session, take):
    desk = take()
    for _ in range(job_progress.MAX_CRASHES - 1):
        desk = take(desk.job_id)
    assert job_progress.take_job(session, desk.job_id, engine_id(desk), "worker-1") is None
    assert (job(session, desk.job_id).state, desk.row.error) == ("failed", "Its worker died 5 times in a row.")


def test_a_recorded_trial_forgives_earlier_crashes(session, take):
    desk = take()
    for _ in range(3):
        desk = take(desk.job_id)
    assert desk.row.crashes == 3
    desk.record(0, measured(1.0))
    assert desk.row.crashes == 0


def test_cancelling_a_waiting_job_ends_it(session, device):
    waiting, _ = request_job(session, request())
    ended = cancel_job(session, waiting.id)
    assert (ended.state, ended.cancel_requested) == ("cancelled", True)
    row = session.get_one(models.TuningJob, waiting.id)
    assert job_progress.take_job(session, waiting.id, row.engine_id, "worker-1") is None
    assert cancel_job(session, waiting.id).state == "cancelled"


def test_cancelling_a_running_job_is_heard_with_the_next_trial(session, take):
    desk = take()
    assert not desk.record(0, measured(1.0)).cancel_requested
    assert cancel_job(session, desk.job_id).state == "running"
    assert desk.record(1, measured(1.0)).cancel_requested
    job_progress.end_job(session, desk.job_id, desk.epoch, JobState.CANCELLED)
    assert job(session, desk.job_id).state == "cancelled"


def test_a_job_cancelled_while_its_worker_was_dead_ends_when_taken(session, take):
    desk = take()
    cancel_job(session, desk.job_id)
    assert job_progress.take_job(session, desk.job_id, engine_id(desk), "worker-2") is None
    assert job(session, desk.job_id).state == "cancelled"


def test_pages_of_jobs_are_newest_first_and_stay_put_while_jobs_are_added(session, device):
    made = [request_job(session, request(seed=seed))[0].id for seed in range(5)]
    first = jobs(session, limit=2)
    request_job(session, request(seed=9))
    second = jobs(session, limit=2, cursor=first.next_cursor)
    third = jobs(session, limit=2, cursor=second.next_cursor)
    assert [one.id for page in (first, second, third) for one in page.items] == made[::-1]
    assert third.next_cursor is None
    cancel_job(session, made[0])
    assert [one.id for one in jobs(session, state="cancelled").items] == [made[0]]


def test_pages_of_trials_are_in_the_order_of_recording(session, take):
    desk = take()
    for place in range(5):
        desk.record(place, measured(1.0 + place))
    first = trials(session, study_id=desk.study.id, limit=3)
    rest = trials(session, study_id=desk.study.id, limit=3, cursor=first.next_cursor)
    assert [trial.number for trial in (*first.items, *rest.items)] == [0, 1, 2, 3, 4]
    assert rest.next_cursor is None


def test_what_is_not_there_is_not_found(session, device):
    nobody = models.uuid7()
    for ask in (
        lambda: job(session, nobody),
        lambda: cancel_job(session, nobody),
        lambda: trials(session, job_id=nobody),
        lambda: trials(session, study_id=10**6),
        lambda: events_after(session, nobody, 0),
        lambda: registry.set_device_state(session, "GPU-404", models.DeviceState.LOST),
    ):
        with pytest.raises(NotFoundError):
            ask()


def test_events_can_be_resumed_after_any_of_them(session, take):
    desk = take()
    for place in range(3):
        desk.record(place, measured(1.0 + place))
    job_progress.end_job(session, desk.job_id, desk.epoch, JobState.DONE, result={"stopped_by": "trials"})
    events = events_after(session, desk.job_id, 0)
    assert [event.event for event in events] == ["trial", "trial", "trial", "state"]
    assert [event.data.get("number") for event in events[:3]] == [0, 1, 2]
    assert events[-1].is_last
    for place, event in enumerate(events):
        assert events_after(session, desk.job_id, event.id) == events[place + 1 :]


def test_a_change_of_state_is_heard_between_trials(session, take):
    desk = take()
    desk.record(0, measured(1.0))
    after = events_after(session, desk.job_id, 0)[-1].id
    assert events_after(session, desk.job_id, after) == []
    job_progress.set_phase(session, desk.job_id, desk.epoch, "finals")
    (event,) = events_after(session, desk.job_id, after)
    assert (event.event, event.data["phase"], event.is_last) == ("state", "finals", False)


def test_in_another_environment_a_job_has_its_whole_budget_in_a_study_of_its_own(session, take):
    desk = take()
    for place in range(3):
        desk.record(place, measured(1.0))
    changed = registry.environment_row(session, replace(ENVIRONMENT, compiler_version="13.1"))
    space = desk.context.kernel.space(desk.context.problem, LIMITS)
    there = study_rows.study_row(session, desk.row.problem_id, desk.study.device_model_id, changed.id, space)
    move = partial(job_progress.begin_study, session, desk.job_id, desk.epoch)
    assert move(there.id) == BudgetSpent(0, 0.0)
    assert move(there.id) == BudgetSpent(0, 0.0)  # as after a commit whose answer was lost
    assert (desk.row.trials_done, desk.row.study_id) == (0, there.id)
    desk.context = replace(desk.context, study_id=there.id)
    assert [desk.record(0, measured(2.0)).number, desk.record(1, measured(2.0)).number] == [0, 1]
    assert study_rows.left_studies(session, desk.job_id, there.id) == [{"study_id": desk.study.id, "trials": 3}]
    assert move(desk.study.id) == BudgetSpent(3, 1.5)  # back again: what it spent there counts
    assert study_rows.left_studies(session, desk.job_id, desk.study.id) == [{"study_id": there.id, "trials": 2}]
    assert move(there.id) == BudgetSpent(2, 1.0)
    assert len(trials(session, job_id=desk.job_id).items) == 5


@pytest.mark.parametrize("left", ["done", "queued", "crashed"])
def test_who_has_left_a_job_writes_to_it_no_more_though_its_epoch_is_the_newest(session, take, left):
    desk = take()
    {
        "done": lambda: job_progress.end_job(session, desk.job_id, desk.epoch, JobState.DONE),
        "queued": lambda: job_progress.hand_back(session, desk.job_id, desk.epoch),
        "crashed": lambda: job_progress.note_crash(session, desk.job_id, desk.epoch, "died"),
    }[left]()
    assert desk.row.epoch == desk.epoch
    before = job(session, desk.job_id)
    for write in (
        lambda: job_progress.set_phase(session, desk.job_id, desk.epoch, "finals"),
        lambda: desk.record(0, measured(1.0)),
        lambda: job_progress.end_job(session, desk.job_id, desk.epoch, JobState.FAILED, error="late"),
        lambda: job_progress.hand_back(session, desk.job_id, desk.epoch),
    ):
        with pytest.raises(FencedError):
            write()
    assert job(session, desk.job_id) == before
    assert session.scalars(select(models.Trial)).all() == []


@pytest.mark.parametrize(
    ("state", "result", "error"),
    [(JobState.DONE, {"stopped_by": "trials"}, None), (JobState.FAILED, None, "no memory")],
)
def test_a_job_ends_with_its_result_or_its_error_alone(session, take, state, result, error):
    desk = take()
    desk.row.error = "The device cpu stopped answering during this job."  # and it was taken again
    session.flush()
    job_progress.end_job(session, desk.job_id, desk.epoch, state, result=result, error=error)
    session.refresh(desk.row)
    assert (desk.row.state, desk.row.result, desk.row.error, desk.row.phase) == (state, result, error, "finished")
    assert desk.row.finished_at is not None


def test_a_trial_after_another_phase_is_heard_with_the_search_going_on(session, take):
    desk = take()
    desk.record(0, measured(1.0))
    job_progress.set_phase(session, desk.job_id, desk.epoch, "finals")
    after = events_after(session, desk.job_id, 0)[-1].id
    desk.record(1, measured(2.0), done=2)
    trial, state = events_after(session, desk.job_id, after)
    assert (trial.event, state.event, state.data["phase"]) == ("trial", "state", "searching")
    assert after < trial.id <= state.id
    assert events_after(session, desk.job_id, state.id) == []
