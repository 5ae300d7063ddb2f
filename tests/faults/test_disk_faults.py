"""Disks that run full in mid-job: under the compiled programs, under the cubins, and under the database."""

from __future__ import annotations

import logging

import pytest
from recovery import Recovery
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from tilewright.kernels.catalogue import catalogue
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
    job_id = fleet.request(trials=8, shape=gate.shape)
    gate.allow(4)
    fleet.wait_for_trials(job_id, 2)
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
    job_id = fleet.request(trials=30, shape=gate.shape)
    gate.allow(4)
    fleet.wait_for_trials(job_id, 2)
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
