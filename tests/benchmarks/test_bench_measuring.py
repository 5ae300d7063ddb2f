from __future__ import annotations

import gzip
import json

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.loop.outcome import Outcome
from tilewright.tuner.loop.tune import Budget
from tilewright.tuner.recorded.recordings import read_recording

GEMM = catalogue().get("gemm")
TINY = GEMM.problem({"m": 24, "n": 16, "k": 20})
LARGE = GEMM.problem({"m": 2048, "n": 2048, "k": 2048})
H200 = Limits((9, 0), 132, 140 * 2**30, max_shared_bytes=227 * 1024, shared_bytes_per_multiprocessor=228 * 1024)


@pytest.fixture
def record(benchmark_module):
    return benchmark_module("record")


@pytest.fixture
def rate(benchmark_module):
    return benchmark_module("rate")


@pytest.fixture
def device():
    device = CpuDevice()
    yield device
    device.close()


def test_what_is_recorded_can_be_replayed(record, device, tmp_path):
    trials = record.record(device, GEMM, TINY, "tiled", count=3, seed=1, seconds=60.0)
    path = tmp_path / "gemm.json.gz"
    record.write_t4(path, trials, {"kernel": "gemm"})
    recording = read_recording(path)
    assert len(recording.entries) == len(trials) == 3
    for trial in trials:
        entry = next(e for c, e in recording.entries.items() if c.items == trial.configuration.items)
        assert entry.outcome is Outcome.MEASURED
        assert entry.samples_ms["warm"] == pytest.approx(trial.evaluation.warm.samples_ms, rel=1e-4)
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert {m["name"] for m in document["results"][0]["measurements"]} >= {"time", "time_cold"}
    assert not list(tmp_path.glob("*.partial"))


def test_recorded_configurations_are_sampled_in_full_however_slow(record, device):
    trials = record.record(device, GEMM, TINY, "naive", count=4, seed=1, seconds=60.0)
    assert min(len(trial.evaluation.warm.samples_ms) for trial in trials) >= record.NO_RACE.least_samples


def test_the_rate_counts_unique_verified_configurations(rate, device):
    row = rate.ours(device, GEMM, TINY, GEMM.space(TINY, device.model.limits, ["naive"]), 4, seed=1)
    assert (row["configurations"], row["unique"], row["verified"]) == (4, 4, 4)
    assert row["outcomes"] == {"measured": 4}
    assert row["per_second"] == pytest.approx(4 / row["wall_s"], rel=0.05)


def test_kernel_tuner_gets_the_part_of_the_space_that_it_can_launch(rate):
    whole = GEMM.space(LARGE, H200, ["register"])
    common = rate.common_space(GEMM, whole)
    variant = GEMM.variant("register")
    expected = {
        c
        for c in whole.feasible
        if variant.launch(c.values, LARGE).shared_bytes <= 48 * 1024 and not variant.workspace_bytes(c.values, LARGE)
    }
    assert set(common.feasible) == expected
    assert 0 < len(common) < len(whole)


def test_a_search_to_a_target_ends_there_and_says_what_it_took(benchmark_module, monkeypatch):
    for name in ("TILEWRIGHT_CACHE_DIR", "CUDA_CACHE_PATH"):
        monkeypatch.setenv(name, "set anew by the search")
    search = benchmark_module("time_to_solution").Search("cpu", GEMM, TINY, Budget(seconds=60, target_ms=1e3), seed=1)
    row = search.row("cold", 1, 1e3)
    assert (row["solved"], row["trials"]) == (True, 1)
    assert 0 <= row["setup_s"] <= row["wall_s"] < 60
