"""Memory that runs out under a job, in a control group of its own."""

from __future__ import annotations

import subprocess
import sys
import uuid
from contextlib import ExitStack

import pytest
from recovery import Recovery
from surroundings import MemoryGroup

from tilewright.service.worker.supervision import NO_MEMORY

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

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
    job_id = fleet.request(trials=20, shape=gate.shape)
    gate.allow(2)
    fleet.wait_for_trials(job_id, 2)
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
