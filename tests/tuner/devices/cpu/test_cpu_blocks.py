"""How the CPU device shares the blocks of a verified launch among processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from contracts.device import outcome_of
from contracts.row_sum import PROBLEM, ROW_SUM, configuration

from tilewright.tuner.devices.cpu import runner as cpu_runner
from tilewright.tuner.devices.cpu.compile import blocks_may_meet
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.devices.cpu.process import output_of
from tilewright.tuner.outcome import Outcome

WHO = """
extern "C" int getpid();
extern "C" __global__ void row_sum(const REAL* x, REAL* y) { y[blockIdx.x] = getpid(); }
"""


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(cpu_runner, "_WORK_OF_A_PROCESS", 1)
    monkeypatch.setattr(cpu_runner.os, "sched_getaffinity", lambda _pid: set(range(5)))
    device = CpuDevice(run_timeout_s=60.0)
    yield device
    device.close()


def test_each_process_runs_its_part_of_the_blocks_and_one_array_holds_all_results(device, tmp_path):
    (tmp_path / "good.cu").write_text(WHO)
    bench = device.bench(replace(ROW_SUM, folder=tmp_path), PROBLEM, seed=7)
    program = bench.compile(configuration("good"))
    task = f"verify {bench.runner.processes(program)} 255 0"
    command = bench.runner.command(program, task, "out", bench._sources, bench._scalars)
    output_of(command, 60.0)
    for launch in (0, 1):
        found = np.fromfile(bench.runner.results_folder / f"out.{ROW_SUM.output.name}.{launch}", np.float32)
        assert sorted(Counter(found).values()) == [7, 7, 7, 8, 8]
        assert np.array_equal(found[5:], found[:-5])
    bench.close()


@pytest.mark.parametrize(  # it is the last block that does it, which is the second process's
    ("variant", "outcome", "words"),
    [
        ("good", Outcome.MEASURED, ""),
        ("past_end", Outcome.LAUNCH_FAILED, "y was written 0 bytes past its end"),
        ("reads_past_end", Outcome.LAUNCH_FAILED, "access 0 bytes past the end of x"),
    ],
)
def test_what_another_process_does_wrong_is_found(device, variant, outcome, words):
    bench = device.bench(ROW_SUM, PROBLEM, seed=7)
    found, log = outcome_of(bench, configuration(variant))
    assert (found, words in log) == (outcome, True), log
    bench.close()


@pytest.mark.parametrize(
    ("source", "may_meet"),
    [
        ("__device__ float twice(float x) { return x + x; }  __constant__ float table[2];", False),
        ("unsigned last = atomicInc(counter, gridDim.x - 1);", True),
        ("__device__ unsigned finished = 0;", True),
        ("__device__ float partial[64];", True),
        ("__device__ __align__(16) float partial[64];", True),
        ("__global__ void count() { static int launches; }", True),
        ("static constexpr int WIDTH = 4;  static_assert(WIDTH > 1);", False),
        ("while (*static_cast<volatile int*>(flag) == 0) {}", True),
    ],
)
def test_blocks_that_may_read_what_others_write_stay_in_one_process(source, may_meet):
    assert blocks_may_meet(source) is may_meet


def test_little_work_stays_in_one_process(device, monkeypatch):
    bench = device.bench(ROW_SUM, PROBLEM, seed=7)
    program = bench.compile(configuration("good"))
    assert bench.runner.processes(program) == 5
    assert bench.runner.processes(replace(program, workspace_bytes=16)) == 1
    monkeypatch.setattr(cpu_runner, "_WORK_OF_A_PROCESS", 1e8)
    assert bench.runner.processes(program) == 1
    bench.close()
