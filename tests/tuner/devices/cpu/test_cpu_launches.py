"""How the CPU device runs launches in order, blocks in processes, and the threads of a block."""

import ctypes
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from contracts.device import outcome_of
from contracts.launches_on_host import SANITIZING, checked
from contracts.row_sum import PROBLEM, ROW_SUM, configuration

from tilewright.kernels.kernel import Kernel, Launch, Preparation, Tensor, Variant, shape_of
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.cpu import runner as cpu_runner
from tilewright.tuner.devices.cpu.build import LIBRARY, HostBuilder, default_cache
from tilewright.tuner.devices.cpu.compile import blocks_may_meet, find_compiler
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.devices.cpu.process import output_of
from tilewright.tuner.errors import TunerError
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.launches.host import HostFunction

SOURCE = """
extern "C" __global__ void reverse_twice(const REAL* x, REAL* y, REAL* z, unsigned char* workspace) {
  __shared__ REAL block[32];
  block[threadIdx.x] = 2 * x[blockIdx.x * 32 + threadIdx.x];
  __syncthreads();
  y[blockIdx.x * 32 + threadIdx.x] = block[threadIdx.x];
  if (WORKSPACE) reinterpret_cast<REAL*>(workspace)[blockIdx.x] = block[0];
}
extern "C" __global__ void reverse(const REAL* x, REAL* y, REAL* z, unsigned char* workspace) {
  const unsigned i = blockIdx.x * 8 + threadIdx.x;
  z[i] = y[SHAPE_N - 1 - i] + (WORKSPACE ? reinterpret_cast<REAL*>(workspace)[i / 32] : 0);
}
"""


def reference(problem, arrays, _scalars):
    y = 2.0 * arrays["x"].astype(np.float64)
    return {"y": y, "z": y[::-1] + np.repeat(y[::32], 32) * KEEPS[problem.shape["n"]]}


KEEPS = {320: 0, 640: 1}
"""By length, whether the second launch reads what the first has left in the workspace."""


def kernel_in(folder, source=SOURCE):
    (folder / "reverse.cu").write_text(source)
    return Kernel(
        name="reverse",
        folder=folder,
        arguments=tuple(
            Tensor(name, role, shape_of("n")) for name, role in (("x", "input"), ("y", "output"), ("z", "output"))
        ),
        variants=(
            Variant(
                "plain",
                "reverse.cu",
                lambda _c, p: Launch((p.shape["n"] // 8, 1, 1), (8, 1, 1)),
                workspace_bytes=lambda _c, p: 4 * (p.shape["n"] // 32) * KEEPS[p.shape["n"]],
                before=(Preparation("twice", lambda _c, p: Launch((p.shape["n"] // 32, 1, 1), (32, 1, 1))),),
            ),
        ),
        reference=reference,
        example_shape={"n": 320},
    )


@pytest.mark.parametrize("n", sorted(KEEPS))
def test_a_launch_finds_what_those_before_it_wrote_also_with_several_processes(tmp_path, monkeypatch, n):
    monkeypatch.setattr(cpu_runner, "_WORK_OF_A_PROCESS", 1)
    monkeypatch.setattr(cpu_runner.os, "sched_getaffinity", lambda _pid: set(range(3)))
    flag = f"#define WORKSPACE {KEEPS[n]}\n"
    # Without a workspace there is no parameter for it either.
    text = flag + (SOURCE if KEEPS[n] else SOURCE.replace(", unsigned char* workspace", "").replace("workspace)", "z)"))
    kernel, device = kernel_in(tmp_path, text), CpuDevice()
    problem, configuration = kernel.problem({"n": n}), Configuration.of("plain", {})
    bench = device.bench(kernel, problem, seed=1)
    try:
        assert bench.runner.processes(bench.compile(configuration)) == (1 if KEEPS[n] else 3)
        evaluation = bench.evaluate(configuration, "warm")
        assert evaluation.outcome is Outcome.MEASURED, evaluation.log
    finally:
        bench.close()
        device.close()
    x = np.arange(n, dtype=np.float32)
    y, z = np.zeros_like(x), np.zeros_like(x)
    function = HostFunction(kernel, problem, Choice(configuration, "pinned"))
    function.launch(tuple(array.ctypes.data for array in (x, y, z)), (), 0, None)
    expected = reference(problem, {"x": x}, {})
    assert np.array_equal(y, expected["y"])
    assert np.array_equal(z, expected["z"])


def test_launches_with_other_parameters_are_refused(tmp_path):
    text = "#define WORKSPACE 0\n" + SOURCE.replace(", unsigned char* workspace", "").replace("workspace)", "z)")
    kernel = kernel_in(tmp_path, text.replace("reverse(const REAL* x", "reverse(int n, const REAL* x"))
    device = CpuDevice()
    bench = device.bench(kernel, kernel.problem({"n": 320}), seed=1)
    try:
        with pytest.raises(TunerError, match="the launches of a variant must have the same parameters"):
            bench.verify(bench.compile(Configuration.of("plain", {})))
    finally:
        bench.close()
        device.close()


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
