"""Two workers of one device model on one study: real processes, the second with a machine id of its own."""

from __future__ import annotations

import math

import pytest
from sqlalchemy import select

from tilewright.kernels.space import Configuration
from tilewright.service.operations.requests import BudgetRequest
from tilewright.service.store import models
from tilewright.service.store import session as sessions
from tilewright.service.worker import leases
from tilewright.service.worker.leases import Leases

OTHER_MACHINE = "from tilewright.tuner.devices.cpu import device\ndevice._machine_id = lambda: 'another'\n"
BEGIN_TOGETHER = """
import os, pathlib, time
from tilewright.tuner.devices.cpu.device import CpuDevice
made = CpuDevice.bench

def bench(*arguments):
    begun = pathlib.Path({folder!r})
    (begun / str(os.getpid())).touch()
    while len(list(begun.iterdir())) < 2:
        time.sleep(0.01)
    return made(*arguments)

CpuDevice.bench = bench
"""
ONE, TWO, THREE = (Configuration.of("naive", {"BLOCK_X": x}) for x in (8, 16, 32))


@pytest.fixture
def two_devices(fleet, tmp_path):
    """The UUIDs of two CPU devices of one model, each with its worker."""
    begun = tmp_path / "begun"
    begun.mkdir()
    for name, code in (("one", ""), ("other", OTHER_MACHINE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(code + BEGIN_TOGETHER.format(folder=str(begun)))
        fleet.start_worker(PYTHONPATH=str(tmp_path / name))

    def both():
        with fleet.session() as session:
            found = list(session.scalars(select(models.Device.uuid)))
        return found if len(found) == 2 else None

    return fleet.until(both)


@pytest.mark.exhaustive
def test_two_devices_share_a_study_and_try_nothing_twice(fleet, two_devices):
    jobs = [
        fleet.request(budget=BudgetRequest(trials=12), device=uuid, seed=seed) for seed, uuid in enumerate(two_devices)
    ]
    ended = [fleet.wait_for_state(job, "done", "failed", within_s=120) for job in jobs]
    assert [(job.state, job.error, job.trials_done) for job in ended] == [("done", None, 12)] * 2
    assert ended[0].study_id == ended[1].study_id
    trials = [fleet.trials(job) for job in jobs]
    numbers = sorted(trial.number for both in trials for trial in both)
    assert numbers == list(range(24))
    assert {len(both) for both in trials} == {12}
    assert len({trial.configuration_hash for both in trials for trial in both}) == 24
    assert {trial.device_id for trial in trials[0]} != {trial.device_id for trial in trials[1]}
    # At the same time: each had trials before the other ended.
    assert min(t.number for t in trials[0]) < max(t.number for t in trials[1])
    assert min(t.number for t in trials[1]) < max(t.number for t in trials[0])


@pytest.mark.usefixtures("configured")
def test_what_one_has_under_way_another_cannot_claim_until_its_trial_is_known(monkeypatch):
    monkeypatch.setattr(leases, "HEARD_S", math.inf)
    with Leases(1) as mine, Leases(1) as theirs, Leases(2) as elsewhere:
        assert mine.claim(ONE)
        assert not theirs.claim(ONE)
        assert elsewhere.claim(ONE)  # another study
        assert theirs.claim(TWO)
        mine.release(ONE)
        assert mine.claim(THREE)
        assert not theirs.claim(ONE)
        monkeypatch.setattr(leases, "HEARD_S", 0.0)
        assert mine.claim(THREE)  # on the way it gives back what is known by now
        assert theirs.claim(ONE)


@pytest.mark.usefixtures("configured")
def test_leases_end_with_their_holder():
    with Leases(1) as theirs:
        with Leases(1) as mine:
            assert mine.claim(ONE)
        assert theirs.claim(ONE)


def test_without_a_database_everything_is_granted():
    sessions.configure("postgresql://nobody@127.0.0.1:1/none")
    with Leases(1) as mine:
        assert mine.claim(ONE)
    sessions.configure(None)
