"""Devices drained, resumed and lost, jobs in the order of their priorities: real workers on the CPU device."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select
from waiting import PATIENCE_S

from tilewright.service.operations.fleet import fleet as operations
from tilewright.service.operations.registry import devices
from tilewright.service.operations.requests import BudgetRequest
from tilewright.service.store import models

OTHER_MACHINE = "from tilewright.tuner.devices.cpu import device\ndevice._machine_id = lambda: 'another'\n"
FALLS_OFF = """
import os, sys
if sys.argv[0] == "-m" or "runner" in " ".join(sys.orig_argv):
    from tilewright.tuner.devices.cpu.device import CpuDevice
    from tilewright.tuner.errors import DeviceLostError

    def bench(*_arguments):
        raise DeviceLostError("fell off the bus")

    CpuDevice.bench = bench
"""


def drain(fleet, uuid: str, *, back: bool = False):
    with fleet.session() as session:
        return (operations.resume_device if back else operations.drain_device)(session, uuid)


def device(fleet, uuid: str):
    with fleet.session() as session:
        return next(one for one in devices(session) if one.uuid == uuid)


@pytest.fixture
def working(fleet) -> Iterator[tuple[object, str]]:
    fleet.start_worker()
    return fleet, fleet.wait_for_device()


@pytest.mark.in_turn(3)
def test_a_device_that_drains_and_a_worker_that_leaves_end_their_job_and_take_no_other(working):
    fleet, uuid = working
    first = fleet.request(trials=6)
    fleet.wait_for_trials(first, 1)
    second = fleet.request(trials=6, seed=1)
    draining = drain(fleet, uuid)
    assert (draining.draining, draining.job) == (True, first)
    done = fleet.wait_for_state(first, "done", "failed")
    assert (done.state, done.trials_done, done.epoch) == ("done", 6, 1)
    fleet.until(lambda: (fleet.folder / "worker.log").read_text().count("Drained") == 1)
    assert (fleet.job(second).state, fleet.job(second).epoch) == ("queued", 0)
    assert not drain(fleet, uuid, back=True).draining

    fleet.wait_for_trials(second, 1)
    third = fleet.request(trials=2, seed=2)
    fleet.workers[0].send_signal(signal.SIGUSR1)
    assert fleet.workers[0].wait(PATIENCE_S) == 0
    done = fleet.job(second)
    assert (done.state, done.trials_done, done.epoch) == ("done", 6, 1)
    assert (fleet.job(third).state, fleet.job(third).epoch) == ("queued", 0)


@pytest.mark.faults
def test_a_drained_device_is_still_drained_when_its_worker_is_started_again(working):
    """A service manager may do that at any time."""
    fleet, uuid = working
    worker = device(fleet, uuid).worker
    drain(fleet, uuid)
    fleet.until(lambda: (fleet.folder / "worker.log").read_text().count("Drained") == 1)
    fleet.workers[0].terminate()
    assert fleet.workers[0].wait(PATIENCE_S) == 0
    fleet.start_worker()
    fleet.until(lambda: (seen := device(fleet, uuid)).alive and seen.worker != worker)
    fleet.until(lambda: (fleet.folder / "worker.log").read_text().count("Drained") == 2)


@pytest.mark.faults
def test_a_draining_job_outlives_the_time_after_which_a_worker_counts_as_silent(working):
    """Its heartbeat goes on: a job of hours must not be given to another worker because its own is draining."""
    fleet, uuid = working
    job_id = fleet.request(budget=BudgetRequest(seconds=3.0), variants=["naive", "tiled", "wpt"])
    fleet.wait_for_trials(job_id, 1)
    drain(fleet, uuid)
    done = fleet.wait_for_state(job_id, "done", "failed")
    assert (done.state, done.epoch) == ("done", 1)  # QUICK: silent after 1.5 s


@pytest.mark.faults
def test_stopping_a_worker_that_drains_hands_its_job_back(working):
    fleet, uuid = working
    job_id = fleet.request(trials=60)
    fleet.wait_for_trials(job_id, 1)
    drain(fleet, uuid)
    fleet.workers[0].terminate()
    assert fleet.workers[0].wait(PATIENCE_S) == 0
    assert fleet.job(job_id).state == "queued"


@pytest.mark.faults
def test_jobs_are_taken_by_priority_and_in_turn_among_equals(working):
    fleet, uuid = working
    drain(fleet, uuid)
    fleet.until(lambda: "Drained" in (fleet.folder / "worker.log").read_text())
    priorities = [5, 0, 9, 5]
    jobs = [fleet.request(trials=1, seed=seed, priority=priority) for seed, priority in enumerate(priorities)]
    drain(fleet, uuid, back=True)
    for job in jobs:
        fleet.wait_for_state(job, "done", "failed")
    with fleet.session() as session:
        table = models.TuningJob
        began = session.scalars(select(table.id).order_by(table.started_at)).all()
    assert list(began) == [jobs[place] for place in (2, 0, 3, 1)]


@pytest.mark.faults
def test_a_lost_device_is_marked_and_its_job_moves_on_to_another_of_the_model(fleet, tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder, code in ((good, OTHER_MACHINE), (bad, FALLS_OFF)):
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(code)
    fleet.start_worker(PYTHONPATH=str(bad))
    lost = fleet.wait_for_device()
    job_id = fleet.request(trials=4)
    fleet.until(lambda: device(fleet, lost).state == "lost")
    fleet.wait_for_state(job_id, "queued")
    fleet.start_worker(PYTHONPATH=str(good))
    done = fleet.wait_for_state(job_id, "done", "failed")
    assert (done.state, done.error, done.trials_done) == ("done", None, 4)
    with fleet.session() as session:
        by_uuid = {one.uuid: one for one in devices(session)}
        row = session.get_one(models.TuningJob, job_id)
    assert len(by_uuid) == 2
    assert (by_uuid[lost].state, by_uuid[lost].alive, row.devices_lost) == ("lost", True, 1)
    assert {trial.device_id for trial in fleet.trials(job_id)} != {lost}
    assert fleet.workers[0].poll() is None  # visibly there, until somebody looks


TWO_DEVICES = """
from dataclasses import replace
from tilewright.tuner.devices import local as devices

listed = devices.list_devices

def both():  # only when asked: to look for ziglang a Python is started, which runs this file too
    one = listed()[-1]
    return [replace(one, name="cpu"), replace(one, name="cpu:b", uuid="CPU-b")]

devices.list_devices = both
"""


@pytest.mark.faults
def test_one_process_for_each_device_is_kept_running_and_all_leave_together(fleet, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(TWO_DEVICES)
    command = fleet._start("tilewright.service.cli", "worker", "--all", log="all.log", PYTHONPATH=str(tmp_path))
    fleet.workers.append(command)

    def workers() -> dict[str, int]:
        """The process of each device, by UUID."""
        with fleet.session() as session:
            return {one.uuid: int(one.worker.split(":")[1]) for one in devices(session) if one.alive and one.worker}

    both = fleet.until(lambda: len(found := workers()) == 2 and found)
    assert len(set(both.values())) == 2
    os.kill(both["CPU-b"], signal.SIGKILL)
    again = fleet.until(lambda: (found := workers()).get("CPU-b") not in {None, both["CPU-b"]} and found)
    assert (len(again), command.poll()) == (2, None)
    command.send_signal(signal.SIGUSR1)
    assert command.wait(PATIENCE_S) == 0
    assert not [pid for pid in again.values() if Path(f"/proc/{pid}").exists()]
