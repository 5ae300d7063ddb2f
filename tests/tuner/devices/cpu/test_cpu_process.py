"""Programs of the CPU device in processes of their own, cheats among them; kernels in half precision there."""

import ctypes
import subprocess
import sys
import time

import numpy as np
import pytest
from contracts.cheats import CHEATS, EVERYWHERE, HONEST, ON_HOSTS, PROBLEM, configuration
from sampling import sampled
from waiting import PATIENCE_S, is_running, until

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.dtypes import HALF
from tilewright.kernels.kernel import Kernel, Launch, Reference, Tensor, Variant, shape_of
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile import nvrtc
from tilewright.tuner.compile.compiler import compile_nvrtc
from tilewright.tuner.devices.cpu.compile import HOST_FOLDER, find_compiler
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.devices.cpu.process import CAPTURED_BYTES, Conversation, run_limited
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.loop.finals import finals
from tilewright.tuner.loop.verify import verify_configuration
from tilewright.tuner.outcome import Outcome

CONVERSIONS = """
#include "host_half.h"
extern "C" void widen(const unsigned short* in, float* out, long count, int is_float16) {
  for (long i = 0; i < count; ++i) out[i] = is_float16 ? host_float_of_float16(in[i]) : host_float_of_bfloat16(in[i]);
}
extern "C" void narrow(const float* in, unsigned short* out, long count, int is_float16) {
  for (long i = 0; i < count; ++i) out[i] = is_float16 ? host_float16_of_float(in[i]) : host_bfloat16_of_float(in[i]);
}
"""


@pytest.fixture(scope="module")
def conversions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("half")
    source, library = folder / "half.cpp", folder / "half.so"
    source.write_text(CONVERSIONS)
    compiler = find_compiler()
    command = [*compiler.command, "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{HOST_FOLDER}"]
    subprocess.run([*command, str(source), "-o", str(library)], check=True, timeout=300)
    return ctypes.CDLL(str(library))


def converted(function, numbers, dtype, is_float16):
    out = np.empty(numbers.size, dtype)
    function(ctypes.c_void_p(numbers.ctypes.data), ctypes.c_void_p(out.ctypes.data), numbers.size, int(is_float16))
    return out


@pytest.mark.parametrize("dtype", HALF)
def test_every_number_widens_to_what_numpy_says(conversions, dtype):
    bits = np.arange(1 << 16, dtype=np.uint16)
    expected = bits.view(dtype).astype(np.float32)
    assert np.array_equal(converted(conversions.widen, bits, np.float32, dtype == "float16"), expected, equal_nan=True)


@pytest.mark.parametrize("dtype", HALF)
@np.errstate(over="ignore", invalid="ignore")
def test_floats_narrow_to_nearest_even_as_numpy_has_it(conversions, dtype):
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype).astype(np.float32)
    finite = np.sort(every[np.isfinite(every)])
    ties = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    random = np.random.default_rng(5).integers(0, 2**32, 200_000, np.uint32).view(np.float32)
    around = [np.nextafter(ties, np.float32(sign * np.inf)) for sign in (1, -1)]
    numbers = np.concatenate([every, ties, *around, random])
    got = converted(conversions.narrow, numbers, np.uint16, dtype == "float16").view(dtype)
    expected = numbers.astype(dtype)
    assert np.array_equal(got.astype(np.float32), expected.astype(np.float32), equal_nan=True)
    assert np.array_equal(np.signbit(got[~np.isnan(expected)]), np.signbit(expected[~np.isnan(expected)]))


PROBLEMS = [
    ("gemm", {"m": 17, "n": 23, "k": 75, "lda": 77}, {}),
    ("gemm", {"m": 17, "n": 23, "k": 75, "batch": 2}, {"output": "float32", "trans_b": True, "beta_zero": False}),
    ("gemv", {"m": 9, "n": 203}, {"beta_zero": False}),
    ("gemv", {"m": 24, "n": 75}, {"trans_a": True}),
    ("linear", {"m": 17, "n": 23, "k": 75}, {"activation": "gelu"}),
    ("linear", {"m": 17, "n": 9, "k": 40}, {"activation": "sigmoid", "output": "float32"}),
    ("softmax", {"m": 5, "n": 333}, {}),
    ("softmax", {"m": 3, "n": 1000}, {}),
]


def is_usual(name, shape, options, dtype):
    """Each problem in one of the types, in turn."""
    return HALF.index(dtype) == PROBLEMS.index((name, shape, options)) % 2


@pytest.mark.in_turn(4)
@pytest.mark.parametrize(
    ("name", "shape", "options", "dtype"),
    sampled(((*problem, dtype) for problem in PROBLEMS for dtype in HALF), is_usual),
    ids=str,
)
def test_the_default_of_every_variant_is_right_for_every_kind_of_inputs(name, shape, options, dtype):
    kernel, device = catalogue().get(name), CpuDevice()
    problem = kernel.problem(shape, dtype, options)
    bench = device.bench(kernel, problem, 3)
    try:
        for configuration in kernel.space(problem, device.model.limits).defaults():
            verification = verify_configuration(bench, bench.compile(configuration))
            assert verification.is_right, (configuration, verification.message())
    finally:
        bench.close()
        device.close()


OWN = """// y = x + x / 3, in the type itself, by pairs.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
extern "C" __global__ void thirds(const REAL* __restrict__ x, REAL* __restrict__ y) {
  const unsigned i = blockIdx.x * 32 + threadIdx.x;
  if (i < SHAPE_N) y[i] = x[i] + __hmul(x[i], REAL(1.0f / 3.0f));
}
"""


def thirds(folder):
    """A kernel by CUDA's own half types, and what it must compute: every operation is rounded to the type."""
    (folder / "thirds.cu").write_text(OWN)
    kernel = Kernel(
        name="thirds",
        folder=folder,
        dtypes=HALF,
        example_shape={"n": 300},
        arguments=(Tensor("x", "input", shape_of("n")), Tensor("y", "output", shape_of("n"))),
        variants=(Variant("plain", "thirds.cu", lambda _c, p: Launch((-(-p.shape["n"] // 32), 1, 1), (32, 1, 1))),),
        reference=lambda _p, arrays, _scalars: {"y": exactly(arrays["x"])},
    )
    return kernel, Configuration.of("plain", {})


def exactly(x):
    """Rounded in the type itself, twice; as a reference it admits what storing the result costs and no more."""
    value = (x + x * np.float32(1 / 3).astype(x.dtype)).astype(np.float64)
    return Reference(value, np.zeros(value.shape), terms=1)


@pytest.mark.parametrize("dtype", HALF)
def test_a_kernel_by_cudas_own_half_types_rounds_every_operation(tmp_path, dtype):
    kernel, configuration = thirds(tmp_path)
    bench = CpuDevice().bench(kernel, kernel.problem({"n": 300}, dtype), 3)
    verification = verify_configuration(bench, bench.compile(configuration))
    bench.close()
    assert verification.is_right, verification.message()


@pytest.mark.skipif(not nvrtc.is_available() or not nvrtc.header_folders(), reason="needs NVRTC and CUDA's headers")
@pytest.mark.parametrize("dtype", HALF)
def test_nvrtc_finds_cudas_own_headers_where_they_are_installed(tmp_path, dtype):
    kernel, configuration = thirds(tmp_path)
    definitions = kernel.definitions(kernel.problem({"n": 300}, dtype), configuration)
    assert compile_nvrtc(kernel.source("plain"), definitions, "sm_90", "thirds").cubin


ORPHAN = """
import os, sys
from tilewright.tuner.devices.cpu.process import run_limited
os.cpu_count = lambda: 0.05  # two seconds of CPU time, however long they take
run_limited(["sh", "-c", "sh -c 'echo $$ > $0; while :; do :; done' \\"$0\\"; true", sys.argv[1]], timeout_s=20)
"""


@pytest.fixture
def said(tmp_path):
    return tmp_path / "pid"


def test_what_runs_too_long_is_killed_with_all_that_it_started(said):
    script = "sh -c 'echo $$ > $0; exec sleep 600' \"$0\"; true"
    assert run_limited(["sh", "-c", script, str(said)], timeout_s=5.0).code is None  # to begin with, it is written
    until(lambda: not is_running(int(said.read_text())))


@pytest.mark.in_turn(2)
def test_an_endless_compiler_of_a_killed_tuner_ends_too(said):
    tuner = subprocess.Popen([sys.executable, "-c", ORPHAN, str(said)])
    until(lambda: said.exists() and said.read_text().endswith("\n"))
    tuner.kill()
    tuner.wait()
    pid = int(said.read_text())
    assert is_running(pid)
    until(lambda: not is_running(pid))  # two seconds of CPU time


DAEMON = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
open(sys.argv[1], "w").write(f"{os.getpid()}\\n")
time.sleep(600)
"""


def test_a_daemon_that_keeps_the_pipe_open_is_not_waited_for_and_ended(said):
    began = time.monotonic()
    script = '"$1" -c "$2" "$0"; until [ -s "$0" ]; do sleep 0.01; done; echo compiled'
    ended = run_limited(["sh", "-c", script, str(said), sys.executable, DAEMON], timeout_s=PATIENCE_S)
    assert (ended.code, ended.output) == (0, "compiled\n")
    assert time.monotonic() - began < PATIENCE_S / 2
    until(lambda: not is_running(int(said.read_text())))


def test_a_daemon_that_keeps_the_pipe_open_does_not_outlive_the_deadline(said):
    script = '"$1" -c "$2" "$0"; sleep 600'
    ended = run_limited(["sh", "-c", script, str(said), sys.executable, DAEMON], timeout_s=5.0)
    assert ended.code is None
    until(lambda: not is_running(int(said.read_text())))


def test_what_is_printed_without_end_is_kept_to_a_limit():
    ended = run_limited(["sh", "-c", "yes 2>&1 & yes >&2"], timeout_s=1.0)
    assert ended.code is None
    assert (len(ended.output), len(ended.errors)) == (CAPTURED_BYTES, CAPTURED_BYTES)


def test_a_conversation_whose_process_shuts_its_output_and_goes_on_ends():
    conversation = Conversation(["sh", "-c", "exec >&-; sleep 600"])
    with pytest.raises(TrialFailure):
        conversation.ask("1", 1, PATIENCE_S)
    assert not conversation.is_alive


@pytest.fixture(scope="module")
def bench(shared_cache):
    device = CpuDevice(cache=shared_cache / "host", run_timeout_s=PATIENCE_S)
    bench = device.bench(CHEATS, PROBLEM, seed=7)
    yield bench
    bench.close()
    device.close()


def test_there_are_more_than_a_dozen():
    assert len({*EVERYWHERE, *ON_HOSTS}) >= 12


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("ranking_l2", ["warm", "cold"])
@pytest.mark.parametrize("variant", sorted([*EVERYWHERE, *ON_HOSTS]))
def test_a_cheat_is_refused_or_its_time_is_the_honest_one(bench, variant, ranking_l2):
    honest = bench.evaluate(configuration(HONEST), ranking_l2)
    assert honest.outcome is Outcome.MEASURED, honest.log
    found = bench.evaluate(configuration(variant), ranking_l2)
    has_no_effect = variant in {"own_clock", "only_poisoned"}
    if has_no_effect and found.outcome is Outcome.MEASURED:  # each of these launches found a poisoned output
        assert found.time_ms > 0.5 * honest.time_ms
    else:
        assert found.outcome in {Outcome.WRONG_RESULT, Outcome.LAUNCH_FAILED}, (found.time_ms, honest.time_ms)


def test_inputs_change_between_the_rounds_of_finals_and_every_contestant_is_right(bench):
    standing = finals(bench, [configuration(HONEST)], "warm")
    assert [finalist.configuration for finalist in standing.finalists] == [configuration(HONEST)]
    assert standing.dropped == ()


@pytest.mark.parametrize("variant", EVERYWHERE)
def test_a_cheat_that_had_a_trial_falls_in_the_finals(bench, variant):
    standing = finals(bench, [configuration(variant), configuration(HONEST)], "warm")
    assert [finalist.configuration for finalist in standing.finalists] == [configuration(HONEST)]
    assert [dropped.configuration for dropped in standing.dropped] == [configuration(variant)]
