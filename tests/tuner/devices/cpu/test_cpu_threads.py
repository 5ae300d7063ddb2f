"""How the CPU device runs the threads of a block: those that never wait on one stack, others on their own."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from contracts.device import outcome_of
from contracts.host_compiler import SANITIZING, checked
from contracts.row_sum import PROBLEM, ROW_SUM, configuration

from tilewright.tuner.devices.cpu.build import LIBRARY, HostBuilder
from tilewright.tuner.devices.cpu.compile import find_compiler
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.outcome import Outcome

FRAMES = """
extern "C" __global__ void row_sum(unsigned waiting_from, unsigned long long* out) {
  volatile int local = 0;
  if (threadIdx.x >= waiting_from) __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = reinterpret_cast<unsigned long long>(&local);
}
"""


@pytest.fixture
def frames(tmp_path):
    """A function: the address of a local variable of each thread, by block and thread, which wait from a thread on."""
    (tmp_path / "good.cu").write_text(FRAMES)
    builder = HostBuilder(find_compiler(), tmp_path / "cache")
    path, _ = builder.program(replace(ROW_SUM, folder=tmp_path), PROBLEM, configuration("good"), LIBRARY)
    launch = ctypes.CDLL(str(path)).host_library_launch

    def run(waiting_from):
        out = np.zeros((3, 96), np.uint64)
        cells = ctypes.c_uint(waiting_from), ctypes.c_void_p(out.ctypes.data)
        launch((ctypes.c_uint * 6)(3, 1, 1, 96, 1, 1), (ctypes.c_void_p * 2)(*map(ctypes.addressof, cells)))
        return out

    return run


def test_only_threads_that_wait_have_a_stack_of_their_own_which_the_next_block_takes_over(frames):
    assert len(np.unique(frames(waiting_from=96))) == 1
    found = frames(waiting_from=64)
    assert [len(np.unique(block[:64])) for block in found] == [1] * 3
    assert [len(np.unique(block[64:])) for block in found] == [32] * 3
    assert len(np.unique(found)) == 32


@SANITIZING
@pytest.mark.parametrize("mode", ["fast", "address", "thread"])
def test_threads_that_return_before_a_barrier_keep_none_of_the_others_waiting(tmp_path, mode):
    device = CpuDevice(cache=tmp_path)
    bench = device.bench(ROW_SUM, PROBLEM, seed=7)
    if mode == "fast":
        assert outcome_of(bench, configuration("early_return")) == (Outcome.MEASURED, "")
    else:
        report = checked(bench, configuration("early_return"), mode)
        assert report.is_clean, report.log
    bench.close()
    device.close()
