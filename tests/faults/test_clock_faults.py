"""Clocks that jump and differ: a fleet's deadlines are those of the database's clock."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest
from recovery import Recovery
from sqlalchemy import select

from tilewright.service.operations.requests import BudgetRequest, ScheduleRequest
from tilewright.service.operations.schedules.schedules import create_schedule
from tilewright.service.store import models

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

HOUR_S = 3600


def test_a_job_and_a_schedule_live_through_a_clock_that_jumps_an_hour_ahead_and_back(clock, gate, monkeypatch, request):
    fault = Recovery(
        "the machine's clock jumps an hour ahead in mid-job, then back",
        "the job may lose its worker, and goes on; missed due times become one late fire, and none comes twice",
        "first trial after it",
    )
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)  # the server's too
    fleet, _ = request.getfixturevalue("embedded")
    fleet.start_worker(**gate.environment)
    fleet.wait_for_device()
    with fleet.session() as session:
        wanted = ScheduleRequest(name="each second", cron="* * * * * *", target="stale", budget=BudgetRequest(trials=1))
        schedule_id = create_schedule(session, wanted).id
    job_id = fleet.request(trials=8, shape=gate.shape)
    gate.allow(4)
    fleet.wait_for_trials(job_id, 2)
    clock.jump(HOUR_S)
    fault.strikes()
    struck_at = fault.struck_at
    gate.open()

    def ended() -> bool:
        if fleet.workers[-1].poll() is not None:  # fenced; its service manager starts it again
            assert fleet.workers[-1].returncode == 75
            fleet.start_worker(**gate.environment)
        return fleet.job(job_id).state not in {"queued", "running"}

    fleet.until(ended)
    assert fleet.job(job_id).state == "done"
    fleet.assert_every_trial_once(job_id, 8)
    fleet.assert_nothing_lost_or_doubled(job_id)
    ahead = [
        trial.created_at for trial in fleet.trials(job_id) if (trial.created_at - struck_at).total_seconds() > 1800
    ]
    fault.is_over(min(ahead) - timedelta(seconds=HOUR_S))

    def late() -> list[models.ScheduleFire]:
        return [fire for fire in _fires(fleet, schedule_id) if (fire.reason or "").startswith("Late")]

    fleet.until(late)
    fires = _fires(fleet, schedule_id)
    assert len(late()) == 1
    clock.jump(0)
    after = fleet.request(trials=3, shape=gate.shape | {"m": gate.shape["m"] + 400})
    assert fleet.wait_for_state(after, "done", "failed").state == "done"
    fleet.assert_nothing_lost_or_doubled(after)
    times = [fire.fire_at for fire in _fires(fleet, schedule_id)]
    assert len(times) == len(set(times))
    assert times[: len(fires)] == [fire.fire_at for fire in fires]


def test_a_host_whose_clock_is_an_hour_ahead_gives_jobs_back_at_once(fleet, clock, gate):
    fault = Recovery(
        "a worker's clock an hour ahead of the database's; its job's process killed (kill -9)",
        "the job is due at once by the database's clock; another process goes on from the last trial",
        "first trial of the new process",
    )
    clock.jump(HOUR_S)
    fleet.start_worker(**gate.environment, **clock.environment)
    fleet.wait_for_device()
    job_id = fleet.request(trials=6, shape=gate.shape)
    gate.allow(3)
    fleet.wait_for_trials(job_id, 2)
    fault.strikes()
    (runner,) = fleet.runner_pids(job_id)
    os.kill(runner, signal.SIGKILL)
    gate.open()
    fleet.assert_finished(job_id, 6, {1, 2})
    fleet.assert_nothing_lost_or_doubled(job_id)
    fault.is_over_with_a_trial(fleet, job_id, epoch=2)


def _fires(fleet, schedule_id: int) -> list[models.ScheduleFire]:
    with fleet.session() as session:
        table = models.ScheduleFire
        return list(session.scalars(select(table).where(table.schedule_id == schedule_id).order_by(table.id)))
