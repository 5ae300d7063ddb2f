"""How the CPU device runs the threads of a block: those that never wait on one stack, others on their own."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from contracts.device import outcome_of
from contracts.host_compiler import SANITIZING, checked
from contracts.row_sum import PROBLEM, ROW_SUM, configuration

from tilewright.tuner.devices.cpu.build import LIBRARY, HostBuilder, default_cache
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


SHARED = """
template <typename T>
__device__ T* shared() {
  __shared__ T array[THREADS];
  return array;
}
extern "C" __global__ void row_sum(unsigned, unsigned long long* out) {
  *out = reinterpret_cast<unsigned long long>(shared<float>());
}
"""


def loaded(source, folder, threads=32):
    """What launches that source of row_sum, compiled for so many threads a block, in this process."""
    (folder / "good.cu").write_text(source)
    builder = HostBuilder(find_compiler(), default_cache())
    path, _ = builder.program(replace(ROW_SUM, folder=folder), PROBLEM, configuration("good", threads), LIBRARY)
    return ctypes.CDLL(str(path)).host_library_launch


@pytest.fixture
def frames(tmp_path):
    """A function: the address of a local variable of each thread, by block and thread, which wait from a thread on."""
    launch = loaded(FRAMES, tmp_path)

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


def test_configurations_in_one_process_do_not_share_their_shared_memory(tmp_path):
    """A linker may hold arrays of templates for one and the same, whose lengths differ."""
    places = set()
    for threads in (32, 1024):
        out = ctypes.c_ulonglong()
        cells = ctypes.c_uint(), ctypes.c_void_p(ctypes.addressof(out))
        launch = loaded(SHARED, tmp_path, threads)
        launch((ctypes.c_uint * 6)(1, 1, 1, 1, 1, 1), (ctypes.c_void_p * 2)(*map(ctypes.addressof, cells)))
        places.add(out.value)
    assert len(places) == 2


@SANITIZING
@pytest.mark.parametrize("mode", ["fast", "address", "thread"])
def test_threads_that_return_before_a_barrier_keep_none_of_the_others_waiting(mode):
    device = CpuDevice()
    bench = device.bench(ROW_SUM, PROBLEM, seed=7)
    if mode == "fast":
        assert outcome_of(bench, configuration("early_return")) == (Outcome.MEASURED, "")
    else:
        report = checked(bench, configuration("early_return"), mode)
        assert report.is_clean, report.log
    bench.close()
    device.close()
