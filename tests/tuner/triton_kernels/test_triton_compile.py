"""Triton functions compiled ahead for a GPU that is not there, in the pool's processes. Nothing is launched."""

import ctypes
import os

import pytest
from contracts.variant import parameters_of
from triton_kernels.scaled import CONFIGURATION, PROBLEM, SCALED, SOURCE, scaled_in

from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.cache import CubinCache
from tilewright.tuner.compile.compilation import Compilation, CompiledLaunch
from tilewright.tuner.compile.compiler import compile_now
from tilewright.tuner.compile.pool import CompilePool
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.errors import NoCompilerError, TrialFailure
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.runtime.arrays.arguments import scalars_of
from tilewright.tuner.runtime.errors import ArgumentError
from tilewright.tuner.runtime.launches.loaded_kernel import LaunchArguments

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def pool():
    """One worker, in which Triton is loaded once."""
    with CompilePool(1) as pool:
        yield pool


def work_of(folder, source=SOURCE, configuration=CONFIGURATION):
    return Compilation.of(scaled_in(folder, source), PROBLEM, configuration, "sm_90", "nvrtc")


def test_a_function_becomes_a_cubin_with_its_launch(pool, tmp_path):
    compiled = pool.compile(work_of(tmp_path))
    assert compiled.launch == CompiledLaunch("scale", threads=64, shared_bytes=0)
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.resources.registers > 0
    assert compiled.resources.spill_bytes == 0


def test_what_is_passed_is_what_the_cubin_takes(pool, tmp_path):
    """x, y, n and factor, then two addresses: `step` is 1 here, and the constexpr is in the code."""
    compiled = pool.compile(work_of(tmp_path))
    assert parameters_of(compiled.cubin) == [8, 8, 4, 4, 8, 8]


def test_the_launcher_passes_just_that(tmp_path):
    kernel = scaled_in(tmp_path)
    launch = kernel.variants[0].launch(CONFIGURATION.values, PROBLEM)
    words = LaunchArguments(kernel, PROBLEM, [(ctypes.c_void_p(), launch)], scratch=0, nulls=2)
    words.move((0x1000, 0x2000))
    words.change(0, (100, 1, 2.5))
    arguments = words.steps[0][2]
    x, y, n, factor, *hidden = list(arguments)
    addresses = [ctypes.c_uint64.from_address(cell).value for cell in (x, y, *hidden)]
    assert addresses == [0x1000, 0x2000, 0, 0]
    assert ctypes.c_int32.from_address(n).value == 100
    assert ctypes.c_float.from_address(factor).value == 2.5


def test_a_cubin_from_the_cache_has_its_launch(pool, tmp_path):
    work, cache = work_of(tmp_path), CubinCache(tmp_path / "cache")
    compiled = pool.compile(work)
    cache.put(work.key(), compiled)
    assert cache.get(work.key()).launch == compiled.launch


def test_keys_differ_where_code_does(tmp_path):
    keys = {
        work_of(tmp_path).key(),
        work_of(tmp_path, SOURCE + "\n").key(),
        work_of(tmp_path, configuration=Configuration.of("blocks", {"BLOCK": 64, "num_warps": 1})).key(),
        Compilation.of(scaled_in(tmp_path), PROBLEM, CONFIGURATION, "sm_80", "nvrtc").key(),
        Compilation.of(scaled_in(tmp_path), SCALED.problem({"n": 112}), CONFIGURATION, "sm_90", "nvrtc").key(),
    }
    assert len(keys) == 5


def test_a_function_under_autotune_is_compiled_as_itself(pool, tmp_path):
    tuned = SOURCE.replace("@triton.jit", '@triton.autotune([triton.Config({"BLOCK": 16})], ["n"])\n@triton.jit')
    assert pool.compile(work_of(tmp_path, tuned)).launch.threads == 64


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("tl.arange(0, BLOCK)", "tl.arange(0, BLOCK + 1)", "range must be a power of 2\nat 2:"),
        ("import triton\n", "import triton\nimport no_such_module\n", "ModuleNotFoundError: No module named 'no_such"),
        ("* factor", "* tl.missing", "has no attribute 'missing'\") (at 4:65 of the function)"),
    ],
)
def test_a_failure_says_what_is_wrong(pool, tmp_path, old, new, told):
    with pytest.raises(TrialFailure) as failed:
        pool.compile(work_of(tmp_path, SOURCE.replace(old, new)))
    assert failed.value.outcome is Outcome.COMPILE_FAILED
    assert told in failed.value.log


def test_a_source_that_ends_its_process_ends_no_other(tmp_path):
    with CompilePool(1) as pool, pytest.raises(TrialFailure, match="died twice on this source"):
        pool.compile(work_of(tmp_path, "import os\nos._exit(1)\n" + SOURCE))


def test_without_a_pool_the_source_runs_in_a_process_of_its_own(tmp_path):
    """An application's launcher and the process that has the GPU compile so."""
    source = f"import os\nassert os.getpid() != {os.getpid()}\n" + SOURCE
    assert compile_now(work_of(tmp_path, source)).launch.threads == 64


def test_scratch_memory_is_for_the_whole_grid(pool, tmp_path):
    """Tensor descriptors that are made on the device lie there."""
    described = SOURCE.replace(
        "    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n",
        "    d = tl.make_tensor_descriptor(x, [n], [1], [BLOCK])\n"
        "    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n",
    ).replace("tl.load(x + place, mask=inside)", "d.load([tl.program_id(0) * BLOCK])")
    compiled = pool.compile(work_of(tmp_path, described)).launch
    launch = compiled.applied(scaled_in(tmp_path).variants[0].launch(CONFIGURATION.values, PROBLEM))
    assert launch.shared_bytes == compiled.shared_bytes > 0
    assert compiled.workspace_bytes(launch) == 2 * compiled.scratch_bytes > 0


def test_the_launcher_refuses_a_number_that_the_code_is_not_compiled_for(tmp_path):
    kernel = scaled_in(tmp_path)
    assert scalars_of(kernel, PROBLEM, {"factor": 0.5, "n": 100}) == (100, 1, 0.5)
    with pytest.raises(ArgumentError, match="n: is 99, and the code is compiled for 100"):
        scalars_of(kernel, PROBLEM, {"n": 99})


pytest.importorskip("triton")


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    device = CpuDevice(cache=tmp_path_factory.mktemp("cache"))
    yield device
    device.close()


@pytest.fixture
def bench_of(device, tmp_path):
    benches = []

    def make(source=SOURCE, problem=PROBLEM):
        benches.append(device.bench(scaled_in(tmp_path, source), problem, 1))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


def test_a_right_kernel_is_verified_and_sampled(bench_of):
    bench = bench_of()
    program = bench.compile(CONFIGURATION)
    assert bench.verify(program).is_right
    assert all(time_ms > 0 for time_ms in bench.sample(program, "warm", 2))


def test_a_wrong_result_is_found(bench_of):
    bench = bench_of(SOURCE.replace("* factor", "+ factor"))
    assert not bench.verify(bench.compile(CONFIGURATION)).is_right


def test_an_element_that_is_left_out_is_found(bench_of):
    bench = bench_of(SOURCE.replace("inside = place < n", "inside = place < n - 1"))
    verification = bench.verify(bench.compile(CONFIGURATION))
    assert (verification.wrong, verification.first_wrong) == (1, (99,))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("place * step, tl.load", "place * step + 1, tl.load", 'File "scaled/scale.py", line 9 in scale'),
        ("tl.load(x + place, mask=inside)", "tl.load(x + place + 1, mask=inside)", "SIGSEGV"),
        ("tl.store(y + place", "tl.store(y + place - 1", "out of bounds: y was written before its start"),
        ("* factor", "* factors", "line 9: NameError: name 'factors' is not defined"),
    ],
)
def test_a_kernel_that_fails_is_a_failed_launch_and_says_where(bench_of, old, new, told):
    bench = bench_of(SOURCE.replace(old, new))
    with pytest.raises(TrialFailure) as failed:
        bench.verify(bench.compile(CONFIGURATION))
    assert failed.value.outcome is Outcome.LAUNCH_FAILED
    assert told in failed.value.log


def test_a_kernel_that_hangs_is_stopped(bench_of):
    bench = bench_of(SOURCE + "\nwhile True:\n    pass\n")
    bench.runner.run_timeout_s = 0.1
    with pytest.raises(TrialFailure) as failed:
        bench.verify(bench.compile(CONFIGURATION))
    assert failed.value.outcome is Outcome.TIMED_OUT


def test_there_are_no_sanitizers(bench_of):
    with pytest.raises(NoCompilerError, match="no sanitizers"):
        bench_of().check(CONFIGURATION, "address")
