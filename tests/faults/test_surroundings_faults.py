"""Disks that run full, memory that runs out, clocks that jump, a network that is cut."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import uuid
from contextlib import ExitStack
from datetime import timedelta

import pytest
from recovery import Recovery
from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError
from surroundings import MemoryGroup

from tilewright.kernels.catalogue import catalogue
from tilewright.service.operations.requests import BudgetRequest, ScheduleRequest
from tilewright.service.operations.schedules.schedules import create_schedule
from tilewright.service.store import models
from tilewright.service.worker.supervision import NO_MEMORY
from tilewright.tuner.compile.cache import CubinCache
from tilewright.tuner.compile.compilation import Compiled
from tilewright.tuner.outcome import Resources

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


def test_a_job_goes_on_when_the_disk_of_compiled_programs_is_full(fleet, gate, small_disk):
    fault = Recovery(
        "disk full under the compiled programs, CPU device",
        "the next programs go to a private folder; the job goes on in the same process",
        "first trial after it",
    )
    disk = small_disk("programs", 96)
    fleet.start_worker(**gate.environment | {"TILEWRIGHT_CACHE_DIR": str(disk.folder)})
    fleet.wait_for_device()
    job_id = gate.begin(fleet, trials=8, done=2)
    disk.fill()
    fault.strikes()
    gate.open()
    fleet.assert_finished(job_id, 8, {1})
    fleet.assert_nothing_lost_or_doubled(job_id)
    assert {trial.outcome.value for trial in fleet.trials(job_id)} == {"measured"}
    assert fleet.workers[0].poll() is None
    fault.is_over_with_a_trial(fleet, job_id)


def test_a_full_disk_costs_cubins_and_never_breaks_one(small_disk, caplog):
    disk = small_disk("cubins", 1)
    cache = CubinCache(disk.folder)
    source = catalogue().get("gemm").source("naive").encode()
    keys = [f"{number:064x}" for number in range(64)]
    cubins = {key: Compiled((key.encode() + source) * 16, Resources()) for key in keys}
    with caplog.at_level(logging.WARNING):
        for key in keys:
            cache.put(key, cubins[key])
    kept = [key for key in keys if cache.get(key) is not None]
    assert 0 < len(kept) < len(keys)
    assert all(cache.get(key).cubin == cubins[key].cubin for key in kept)
    assert not list(disk.folder.glob("*/.new-*"))
    assert len([record for record in caplog.records if "cannot be used" in record.message]) == 1
    missing = next(key for key in keys if key not in kept)
    for key in kept:
        (disk.folder / key[:2] / key[2:]).unlink()
    cache.put(missing, cubins[missing])
    assert cache.get(missing).cubin == cubins[missing].cubin


def test_a_job_waits_for_room_when_the_databases_disk_is_full(small_disk, request, gate):
    fault = Recovery(
        "disk full under the database, embedded",
        "writes and new connections are refused; the job waits up to a minute for room and goes on in the same process",
        "first trial after room was made",
    )
    disk = small_disk("postgres", 200)
    fleet, _ = request.getfixturevalue("embedded")  # its data lie there
    fleet.start_worker(**gate.environment)
    fleet.wait_for_device()
    job_id = gate.begin(fleet, trials=30, done=2)
    disk.fill()
    gate.open()
    fleet.until(lambda: "No space left on device" in (fleet.folder / "worker.log").read_text())
    with pytest.raises(OperationalError, match="No space left on device"), fleet.session() as session:
        session.execute(text("CREATE TABLE ballast AS SELECT repeat('x', 1000) FROM generate_series(1, 100000)"))
    disk.make_room()
    fault.strikes()
    fleet.assert_finished(job_id, 30, {1})
    fleet.assert_nothing_lost_or_doubled(job_id)
    fault.is_over_with_a_trial(fleet, job_id)


HOLDS = "import sys; held = bytearray(b'x') * (300 << 20); sys.stdin.read()"
"""As another program of the machine: it holds 300 MiB until its input ends."""


def test_a_job_killed_for_want_of_memory_fails_with_that_reason_and_is_not_repeated(fleet, gate, request):
    fault = Recovery(
        "memory runs out (in a control group)",
        "the kernel kills the job's process before the worker; the job fails with that reason and is not repeated",
        "job failed",
    )
    group = MemoryGroup.make(f"tilewright-{uuid.uuid4().hex[:8]}", 1024)
    request.addfinalizer(group.remove)
    fleet.start_worker(inside=group.inside, **gate.environment)
    request.addfinalizer(fleet.stop)
    fleet.wait_for_device()
    job_id = gate.begin(fleet, trials=20, done=2, allowed=2)
    fault.strikes()
    with ExitStack() as others:
        for _ in range(4):
            holding = others.enter_context(
                subprocess.Popen([*group.inside, sys.executable, "-c", HOLDS], stdin=subprocess.PIPE)
            )
            others.callback(holding.stdin.close)
        failed = fleet.wait_for_state(job_id, "failed", within_s=60)
    fault.is_over(failed.finished_at)
    assert (failed.error, failed.epoch) == (NO_MEMORY, 1)
    fleet.assert_every_trial_once(job_id, failed.trials_done)
    fleet.until(lambda: not fleet.engine_entries(job_id))
    assert fleet.workers[0].poll() is None
    gate.open()
    smaller = fleet.wait_for_state(fleet.request(trials=3, variants=["tiled"]), "done", "failed")
    assert (smaller.error, smaller.trials_done) == (None, 3)


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
    job_id = gate.begin(fleet, trials=8, done=2)
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
    job_id = gate.begin(fleet, trials=6, done=2, allowed=3)
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
