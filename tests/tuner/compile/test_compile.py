from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest
from processes import is_running
from waiting import PATIENCE_S, until

from tilewright.kernels.problem import Limits
from tilewright.tuner.child import Child
from tilewright.tuner.compile import compilation
from tilewright.tuner.compile import pool as compile_pool
from tilewright.tuner.compile.cache import CubinCache
from tilewright.tuner.compile.compilation import Compilation, Compiled, arch_of, read_resources
from tilewright.tuner.compile.compiler import compile_nvrtc
from tilewright.tuner.compile.pool import CompilePool
from tilewright.tuner.devices.cuda.model import limits_of, model_of, slug_of
from tilewright.tuner.devices.occupancy import blocks_per_multiprocessor, occupancy
from tilewright.tuner.errors import NoCompilerError, TrialFailure
from tilewright.tuner.outcome import Outcome, Resources

SOURCE = """
extern "C" __global__ void scale(REAL* x) {
  __shared__ REAL tile[TILE];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = FACTOR * tile[TILE - 1 - threadIdx.x];
}
"""
WORK = Compilation(SOURCE, (("FACTOR", "3"), ("REAL", "float"), ("TILE", "256")), "sm_90", "scale")
BROKEN = replace(WORK, source=SOURCE.replace("REAL* x", "REAL* y"))
H200 = Limits((9, 0), 132, 150 << 30, 1024, 232448, 233472)
TURING = Limits((7, 5), 40, 16 << 30, 1024, 65536, 65536, 65536, 1024, 16)


@pytest.fixture(scope="module")
def pool():
    with CompilePool(2) as pool:
        yield pool


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_resources_are_what_ptxas_says_without_what_the_driver_reserves(arch):
    compiled = compile_nvrtc(SOURCE, dict(WORK.definitions), arch, "scale")
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.resources.shared_bytes == 1024
    assert 4 <= compiled.resources.registers <= 32
    assert compiled.resources.spill_bytes == 0
    assert compiled.compile_ms > 0


def test_spills_are_counted():
    source = """
    extern "C" __global__ void __launch_bounds__(1024) spill(float* x, int n) {
      float v[128];
      for (int i = 0; i < 128; ++i) v[i] = x[i * 1024 + threadIdx.x];
      for (int j = 0; j < n; ++j)
        for (int i = 0; i < 128; ++i) v[i] = v[i] * v[(i + 1) % 128] + x[j];
      for (int i = 0; i < 128; ++i) x[i * 1024 + threadIdx.x] = v[i];
    }"""
    resources = compile_nvrtc(source, {}, "sm_90", "spill").resources
    assert resources.registers == 64  # 65,536 registers for 1,024 threads
    assert resources.spill_bytes > 0


def test_resources_are_those_of_the_entry_asked_for():
    log = (
        "ptxas info    : Compiling entry function 'other' for 'sm_90'\n"
        "ptxas info    : Used 99 registers, used 1 barriers, 4096 bytes smem\n"
        "ptxas info    : Compiling entry function 'mine' for 'sm_90'\n"
        "    8 bytes stack frame, 12 bytes spill stores, 30 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 0 barriers\n"
    )
    assert read_resources(log, "mine") == Resources(40, 0, 42)
    assert read_resources(log, "other") == Resources(99, 4096, None)
    assert read_resources(log, "absent") == Resources()


def test_a_wrong_source_fails_with_the_compilers_log(pool):
    with pytest.raises(TrialFailure, match='identifier "x" is undefined') as failure:
        pool.compile(BROKEN)
    assert failure.value.outcome is Outcome.COMPILE_FAILED
    assert not failure.value.sticky


def test_a_function_of_the_host_beside_the_kernel_is_no_fault():
    on_host = "float reference(const float* x) { return 3 * x[0]; }\n"
    assert compile_nvrtc(on_host + SOURCE, dict(WORK.definitions), "sm_90", "scale").resources.registers
    with pytest.raises(TrialFailure, match="undeclared"):
        compile_nvrtc("float reference() { return undeclared; }\n" + SOURCE, dict(WORK.definitions), "sm_90", "scale")


def test_a_pool_gives_what_one_process_gives(pool):
    here = compile_nvrtc(SOURCE, dict(WORK.definitions), "sm_90", "scale")
    futures = [pool.submit(replace(WORK, definitions=(*WORK.definitions[:2], ("TILE", str(t))))) for t in (64, 256)]
    small, same = (future.result() for future in futures)
    assert same.cubin == here.cubin
    assert small.resources.shared_bytes == 256


def test_a_killed_worker_is_replaced(pool):
    pool.compile(WORK)
    pids = pool.worker_pids()
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert pool.compile(WORK).resources.shared_bytes == 1024
    assert set(pool.worker_pids()) - set(pids)


def test_where_no_process_can_be_started_at_first_the_compilation_tries_again(monkeypatch):
    refused = []

    def child(*arguments, **how):
        if len(refused) < 2:
            refused.append(BlockingIOError("no more processes"))
            raise refused[-1]
        return Child(*arguments, **how)

    monkeypatch.setattr(compile_pool, "Child", child)
    with CompilePool(2, timeout_s=PATIENCE_S) as pool:
        pool.start()
        until(lambda: len(refused) == 2)
        assert pool.compile(WORK).resources.shared_bytes == 1024


def test_a_compiler_that_hangs_does_not_outlive_the_process_that_would_stop_it():
    script = (
        "import sys, time; sys.path[:0] = sys.argv[1:]; from test_compile import WORK, endless\n"
        "from tilewright.tuner.compile.pool import CompilePool\n"
        "pool = CompilePool(1); pool.compile(WORK); (pid,) = pool.worker_pids(); pool.submit(endless())\n"
        "print(pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, *(str(Path(__file__).parents[i]) for i in (0, 2))],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        pid = int(process.stdout.readline())
        process.kill()
    until(lambda: not is_running(pid))


def test_a_compile_that_does_not_end_is_stopped_and_the_pool_goes_on():
    with CompilePool(1, timeout_s=PATIENCE_S) as pool:
        pool.compile(WORK)  # the worker is up
        pool.timeout_s = 0.3
        with pytest.raises(TrialFailure) as failure:
            pool.compile(endless())
        assert failure.value.outcome is Outcome.TIMED_OUT
        pool.timeout_s = PATIENCE_S
        assert pool.compile(WORK).resources.shared_bytes == 1024


def endless():
    """262,144 statements in one basic block: many seconds of optimizing."""
    source = """
    extern "C" __global__ void scale(unsigned* x) {
      unsigned v[4096];
      #pragma unroll
      for (int j = 0; j < 4096; ++j) v[j] = x[j];
      #pragma unroll
      for (int i = 0; i < 64; ++i)
        #pragma unroll
        for (int j = 0; j < 4096; ++j) v[j] = v[j] * v[(j * 7 + i) % 4096] + (v[(j + i) % 4096] >> 3);
      #pragma unroll
      for (int j = 0; j < 4096; ++j) x[j] = v[j];
    }"""
    return replace(WORK, source=source)


FREES_AND_TAKES_AGAIN = """
import ctypes, resource, sys
from tilewright.tuner.compile.pool import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(100_000) for _ in range(200)]
    for block in blocks:
        ctypes.memset(block, 1, 100_000)
    for block in blocks:
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

kept = sys.argv[1] == "kept" and keep_freed_memory()
page_faults()
print(int(kept), page_faults())
"""


def test_a_worker_keeps_what_one_compilation_frees_for_the_next():
    def run(how):
        command = [sys.executable, "-c", FREES_AND_TAKES_AGAIN, how]
        return map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())

    is_kept, faults = run("kept")
    if not is_kept:
        pytest.skip("this C library has no mallopt")
    _, usual = run("given back")
    assert faults < usual / 10


def test_the_second_time_comes_from_the_cache(tmp_path):
    with CompilePool(1, CubinCache(tmp_path)) as pool:
        first, second = pool.compile(WORK), pool.compile(WORK)
    assert first.compile_ms > 0
    assert second == Compiled(first.cubin, first.resources, first.log, 0.0)
    with CompilePool(1, CubinCache(tmp_path)) as other:
        assert other.compile(WORK).compile_ms == 0
        assert other.worker_pids() == []


def test_a_compilation_that_ends_at_once_holds_nobody_up(monkeypatch):
    with CompilePool(1) as pool:
        monkeypatch.setattr(pool, "_compile", lambda work: Compiled(work.entry.encode()))
        monkeypatch.setattr(pool._threads, "submit", lambda function: function())
        for _ in range(2):
            assert pool.submit(WORK).result(timeout=PATIENCE_S).cubin == b"scale"


def test_what_others_claim_is_theirs_until_they_give_it_back(monkeypatch):
    with CompilePool(1) as pool:
        monkeypatch.setattr(pool, "_compile", lambda work: Compiled(work.entry.encode()))
        hold = Event()
        pool._threads.submit(hold.wait)  # the pool's one compiler is busy
        asked = []
        pool.on_waiting = lambda: asked.append(len(pool.waiting()))
        futures = [pool.submit(replace(WORK, entry=entry)) for entry in ("a", "b", "c", "d")]
        assert asked == [1, 2, 3, 4]
        assert pool.submit(replace(WORK, entry="b")) is futures[1]  # joined
        a, b, c, _ = pool.waiting()
        assert [pool.claim(each) for each in (a, b, c, b)] == [True, True, True, False]
        b.settle(lambda: Compiled(b"from elsewhere"))
        pool.give_back(c)
        hold.set()
        assert [future.result(PATIENCE_S).cubin for future in futures[1:]] == [b"from elsewhere", b"c", b"d"]
        assert not futures[0].done()
        assert futures[0].cancel()
        a.settle(lambda: pytest.fail("nobody waits for it"))


def test_what_configurations_share_is_compiled_once_and_comes_with_each(monkeypatch):
    shared = replace(WORK, entry="shared")
    with CompilePool(1) as pool:
        begun, hold = [], Event()
        monkeypatch.setattr(pool, "_compile", lambda work: begun.append(work) or Compiled(work.entry.encode()))
        pool._threads.submit(hold.wait)
        works = [replace(WORK, entry=entry, shared=shared) for entry in ("a", "b", "c")]
        first, second, dropped = [pool.submit(work) for work in works]
        assert [each.work for each in pool.waiting()] == [shared, *(replace(work, shared=None) for work in works)]
        assert dropped.cancel()
        hold.set()
        found = [future.result(PATIENCE_S) for future in (first, second)]
        assert [(each.cubin, each.shared) for each in found] == [(b"a", b"shared"), (b"b", b"shared")]
    assert [work.entry for work in begun] == ["shared", "a", "b"]


def test_a_configuration_fails_with_what_it_shares():
    with CompilePool(1) as pool, pytest.raises(TrialFailure, match="identifier"):
        pool.compile(replace(WORK, shared=BROKEN))


def test_the_end_of_a_pool_cancels_what_has_not_begun():
    pool, hold = CompilePool(1), Event()
    pool._threads.submit(hold.wait)
    future = pool.submit(WORK)
    closing = Thread(target=pool.close)
    closing.start()
    until(future.cancelled)
    hold.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()


def test_the_key_changes_with_everything_that_the_cubin_depends_on(monkeypatch):
    changed = [
        replace(WORK, source=SOURCE + " "),
        replace(WORK, definitions=(("REAL", "double"),)),
        replace(WORK, arch="sm_80"),
        replace(WORK, entry="other"),
    ]
    keys = {work.key() for work in (WORK, *changed)}
    monkeypatch.setattr(compilation, "compiler_version", lambda _compiler: "99.9")
    keys.add(WORK.key())
    assert len(keys) == 6
    assert WORK.key() == replace(WORK).key()


def test_a_missing_nvcc_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    compilation.compiler_version.cache_clear()
    with pytest.raises(NoCompilerError, match="install the CUDA toolkit, or use --compiler nvrtc"):
        compilation.compiler_version("pycuda")


def test_arch_names():
    assert [arch_of(cc) for cc in ((7, 5), (9, 0), (12, 1))] == ["sm_75", "sm_90", "sm_121"]


# Expected values by the driver's cuOccupancyMaxActiveBlocksPerMultiprocessor on an H200; tests/gpu compares more.
@pytest.mark.parametrize(
    ("registers", "shared_bytes", "threads", "limits", "blocks"),
    [
        (32, 0, 1024, H200, 2),
        (33, 0, 1024, H200, 1),
        (255, 0, 256, H200, 1),
        (16, 0, 32, H200, 32),
        (16, 48000, 128, H200, 4),
        (94, 16384, 128, H200, 5),
        (32, 1024, 1024, TURING, 1),
        (64, 20000, 128, TURING, 3),
        (255, 0, 1024, H200, 0),
    ],
)
def test_blocks_on_a_multiprocessor(registers, shared_bytes, threads, limits, blocks):
    assert blocks_per_multiprocessor(registers, shared_bytes, threads, limits) == blocks


def test_occupancy_is_a_share_of_resident_warps():
    assert occupancy(32, 0, 256, H200) == 1.0
    assert occupancy(94, 16384, 128, H200) == pytest.approx(5 * 4 / 64)
    assert occupancy(255, 0, 1024, H200) == 0.0


ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 132,
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    "WARP_SIZE": 32,
    "MAX_GRID_DIM_X": 2**31 - 1,
    "MAX_GRID_DIM_Y": 65535,
    "MAX_GRID_DIM_Z": 65535,
    "L2_CACHE_SIZE": 62914560,
    "CLOCK_RATE": 1980000,
    "MEMORY_CLOCK_RATE": 3201000,
    "GLOBAL_MEMORY_BUS_WIDTH": 6144,
}


def test_an_h200_by_its_attributes():
    model = model_of("NVIDIA H200", ATTRIBUTES, 150 << 30, 4197.0)
    assert model.slug == "nvidia-h200"
    assert model.limits == replace(H200, memory_bytes=150 << 30)
    assert model.datasheet_gflops["float32"] == pytest.approx(66908, rel=1e-4)  # the data sheet says 67 TFLOP/s
    assert model.datasheet_gflops["float64"] == pytest.approx(33454, rel=1e-4)  # and 34
    assert model.datasheet_gflops["fp64_tensor"] == pytest.approx(66908, rel=1e-4)  # and 67
    assert model.datasheet_gb_per_s == 4800.0


def test_unknown_products_have_a_computed_bandwidth_unknown_generations_no_peak():
    model = model_of("NVIDIA Future 1", {**ATTRIBUTES, "COMPUTE_CAPABILITY_MAJOR": 99}, 1 << 30, None)
    assert model.datasheet_gb_per_s == pytest.approx(4917, rel=1e-3)
    assert model.datasheet_gflops == {}
    assert limits_of(ATTRIBUTES, 1).compute_capability == (9, 0)


def test_slugs():
    assert slug_of("NVIDIA A100-SXM4-80GB") == "nvidia-a100-sxm4-80gb"
    assert slug_of("NVIDIA GeForce RTX 4090") == "nvidia-geforce-rtx-4090"
