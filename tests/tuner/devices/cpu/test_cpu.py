import ctypes
import json
import os
import time

import numpy as np
import pytest
from contracts.device import DeviceContract, outcome_of
from contracts.launches_on_host import SANITIZING, checked, needs_line_numbers
from contracts.row_sum import PROBLEM, ROW_SUM, configuration
from waiting import PATIENCE_S, until

from tilewright.kernels.gemm.declaration import KERNEL as GEMM
from tilewright.kernels.gemv.declaration import KERNEL as GEMV
from tilewright.kernels.linear.declaration import KERNEL as LINEAR
from tilewright.tuner.arrays import input_kinds, random_arrays
from tilewright.tuner.devices.cpu import bench as cpu_bench
from tilewright.tuner.devices.cpu import library as cpu_library
from tilewright.tuner.devices.cpu import scratch as cpu_scratch
from tilewright.tuner.devices.cpu.device import CpuDevice, slug_of
from tilewright.tuner.errors import OutOfMemoryError, TrialFailure, TunerError
from tilewright.tuner.outcome import Outcome

HUNG_AFTER_S = 0.5
"""Of a kernel without end; every other one has PATIENCE_S."""


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("host-programs")


@pytest.fixture
def device(cache):
    device = CpuDevice(cache=cache, run_timeout_s=PATIENCE_S)
    yield device
    device.close()


@pytest.fixture
def bench(device):
    bench = device.bench(ROW_SUM, PROBLEM, seed=7)
    yield bench
    bench.close()


class TestCpuDevice(DeviceContract):
    @pytest.fixture
    def device(self, cache):
        device = CpuDevice(cache=cache, run_timeout_s=PATIENCE_S)
        yield device
        device.close()

    def hurry(self, bench):
        bench.runner.run_timeout_s = HUNG_AFTER_S


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("variant", "outcome", "words"),
    [
        ("past_end", Outcome.LAUNCH_FAILED, "y was written 0 bytes past its end"),
        ("before_start", Outcome.LAUNCH_FAILED, "y was written 4 bytes before its start"),
        ("far_out", Outcome.LAUNCH_FAILED, "signal 11"),
        ("reads_past_end", Outcome.LAUNCH_FAILED, "access 0 bytes past the end of x"),
        ("writes_input", Outcome.LAUNCH_FAILED, "x is an input and was written"),
        ("divergent", Outcome.LAUNCH_FAILED, "divergent block barrier: thread (32, 0, 0)"),
        ("deadlock", Outcome.LAUNCH_FAILED, "deadlock"),
        ("large_stack", Outcome.LAUNCH_FAILED, "stack overflow"),
        ("no_barrier", Outcome.WRONG_RESULT, "37 components"),
        ("unwritten", Outcome.WRONG_RESULT, "first at (36,): got nan, expected "),
        ("endless", Outcome.TIMED_OUT, "killed after 0.5"),
    ],
)
def test_the_log_says_what_a_bug_did(bench, variant, outcome, words):
    if outcome is Outcome.TIMED_OUT:
        bench.runner.run_timeout_s = HUNG_AFTER_S
    found, log = outcome_of(bench, configuration(variant))
    assert (found, words in log) == (outcome, True), log


def line_of(variant, text):
    lines = ROW_SUM.source(variant).splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.in_turn(2)
@SANITIZING
@pytest.mark.parametrize(
    ("mode", "variant", "text"),
    [
        ("address", "past_end", "y[SHAPE_M] = 1"),
        ("address", "before_start", "y[-1] = 1"),
        ("address", "shared_past_end", "THREADS ? 1 : 0"),
        ("thread", "no_barrier", "parts[threadIdx.x] ="),
    ],
)
def test_a_check_names_the_line(bench, mode, variant, text):
    report = checked(bench, configuration(variant), mode)
    assert not report.is_clean
    needs_line_numbers()
    assert line_of(variant, text) in [finding.line for finding in report.findings], report.log
    assert any(text in finding.text for finding in report.findings)


@pytest.mark.in_turn(3)
@SANITIZING
@pytest.mark.parametrize("mode", ["address", "thread"])
@pytest.mark.parametrize("variant", ["good", "shuffled"])
def test_a_check_of_a_correct_kernel_is_clean(bench, mode, variant):
    report = checked(bench, configuration(variant), mode)
    assert report.is_clean, report.log


def test_a_second_compile_comes_from_the_cache(cache, bench):
    first = bench.compile(configuration("good", 256))
    second = bench.compile(configuration("good", 256))
    assert second.path == first.path
    assert second.path.parent == cache
    assert second.compile_ms == 0


def test_a_closed_bench_leaves_no_files(device):
    bench = device.bench(ROW_SUM, PROBLEM, seed=7)
    folder = bench._folder.path
    assert sorted(path.name for path in folder.iterdir()) == ["normal.x.bin", "results"]
    bench.verify(bench.compile(configuration("good")))
    assert sorted(path.name for path in folder.iterdir()) == ["normal.x.bin", "results"]
    bench.close()
    assert not folder.exists()


def test_an_unread_inout_is_poisoned_and_a_read_one_is_not(device):
    for beta_zero in (True, False):
        problem = GEMV.problem({"m": 9, "n": 33}, options={"beta_zero": beta_zero})
        bench = device.bench(GEMV, problem, seed=3)
        assert (bench._folder.path / "normal.y.bin").exists() is not beta_zero
        assert outcome_of(bench, GEMV.default_configuration(GEMV.space(problem, device.model.limits)))[1] == ""
        bench.close()


@pytest.mark.parametrize("kernel", [GEMM, GEMV], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_library_takes_the_same_problem(device, kernel, dtype):
    problem = kernel.problem(dict.fromkeys(kernel.axes, 64), dtype)
    bench = device.bench(kernel, problem, seed=3)
    library = bench.library()
    if library is None:
        pytest.skip("NumPy here does not carry OpenBLAS")
    assert "OpenBLAS" in bench.library_name()
    for l2 in ("warm", "cold"):
        assert all(0 < sample < 100 for sample in bench.sample(library, l2, 3))
    bench.close()


def test_there_is_no_library_for_a_kernel_that_it_lacks(bench):
    assert bench.library() is None
    assert bench.library_name() is None


def test_a_sampling_process_that_died_in_between_is_replaced(bench):
    program = bench.compile(configuration("good"))
    bench.sample(program, "warm", 1)
    (conversation,) = bench._warm.values()
    conversation._process.kill()
    conversation._process.wait()
    assert len(bench.sample(program, "warm", 3)) == 3


def test_a_sampling_process_that_dies_at_work_is_the_trial_s_failure(bench):
    program = bench.compile(configuration("far_out"))
    with pytest.raises(TrialFailure) as caught:
        bench.sample(program, "warm", 1)
    assert caught.value.outcome is Outcome.LAUNCH_FAILED
    assert "signal 11" in caught.value.log
    assert not bench._warm


def test_a_sampling_process_that_hangs_is_killed(bench):
    program = bench.compile(configuration("endless"))
    bench.runner.run_timeout_s = HUNG_AFTER_S
    with pytest.raises(TrialFailure) as caught:
        bench.sample(program, "warm", 1)
    assert caught.value.outcome is Outcome.TIMED_OUT
    assert not bench._warm


def test_at_most_six_sampling_processes_stay(bench):
    for threads in (64, 96, 128, 192, 256, 512, 1024):
        bench.sample(bench.compile(configuration("good", threads)), "warm", 1)
    assert len(bench._warm) == 6


def test_programs_of_other_devices_are_refused(bench):
    with pytest.raises(TunerError, match="not a program of the CPU device"):
        bench.verify(object())


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("AMD EPYC 9B14", "amd-epyc-9b14"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "intel-xeon"),
        ("AMD Ryzen 9 7950X 16-Core Processor", "amd-ryzen-9-7950x-16-core"),
        ("aarch64", "aarch64"),
    ],
)
def test_a_slug_has_words_and_hyphens_only(name, slug):
    assert slug_of(name) == slug


def test_times_repeat(bench):
    program = bench.compile(configuration("good"))

    def repeat():  # what else the machine does may disturb some of them
        samples = bench.sample(program, "warm", 9)
        return np.percentile(samples, 75) < 2 * np.percentile(samples, 25)

    until(repeat)


def test_a_hung_kernel_is_killed_on_time(bench):
    program = bench.compile(configuration("endless"))
    bench.runner.run_timeout_s = HUNG_AFTER_S
    started = time.monotonic()
    with pytest.raises(TrialFailure):
        bench.verify(program)
    assert HUNG_AFTER_S <= time.monotonic() - started < PATIENCE_S  # by itself it would never end


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("accuracy", ["fp32", "fp32-fma", "tf32"])
def test_every_trial_is_held_against_the_next_kind_of_inputs(device, accuracy):
    problem = GEMM.problem({"m": 33, "n": 21, "k": 64}, "float32", {"trans_a": True, "accuracy": accuracy})
    bench = device.bench(GEMM, problem, seed=3)
    program = bench.compile(GEMM.default_configuration(GEMM.space(problem, device.model.limits)))
    kinds = input_kinds(GEMM, problem)
    found = [bench.verify(program) for _ in range(len(kinds) + 1)]
    assert [one.inputs for one in found] == [*kinds, "normal"]
    assert bench.verify_each_kind(program) == tuple(found[: len(kinds)])
    assert all(one.wrong == 0 for one in found)
    assert bench.verify_each_kind(bench.library()) is None
    bench.close()


@pytest.mark.parametrize("activation", ["none", "relu", "sigmoid", "tanh"])
def test_the_library_of_a_layer_is_its_product_and_the_rest_by_numpy(device, activation):
    problem = LINEAR.problem({"m": 32, "n": 48, "k": 16}, "float32", {"activation": activation})
    bench = device.bench(LINEAR, problem, seed=3)
    library = bench.library()
    if library is None:
        pytest.skip("NumPy here does not carry OpenBLAS")
    assert "bias and activation by NumPy" in bench.library_name()
    assert all(0 < sample < 100 for sample in bench.sample(library, "warm", 3))
    bench.close()


def test_there_is_no_library_for_an_activation_that_numpy_lacks(device):
    bench = device.bench(LINEAR, LINEAR.problem({"m": 8, "n": 8, "k": 8}, options={"activation": "gelu"}), seed=3)
    assert bench.library() is None
    bench.close()


@pytest.mark.parametrize("activation", ["none", "relu", "sigmoid", "tanh"])
def test_the_library_of_a_layer_computes_the_layer(tmp_path, activation):
    problem = LINEAR.problem({"m": 5, "n": 7, "k": 9}, "float64", {"activation": activation})
    arrays = random_arrays(LINEAR, problem, 1)
    for name, array in arrays.items():
        array.tofile(tmp_path / name)
    call = cpu_library.library_call(problem, {}, {name: tmp_path / name for name in arrays})
    if call is None:
        pytest.skip("NumPy here does not carry OpenBLAS")
    what = json.loads(call.command[-1])
    routine = getattr(ctypes.CDLL(what["library"]), what["routine"])
    routine.restype = None
    outputs = []

    def spy(*arguments):
        outputs.append(ctypes.cast(arguments[-2], ctypes.POINTER(ctypes.c_double)))
        routine(*arguments)

    run = cpu_library._linear(what, spy)
    for _ in range(2):  # the second run starts from what the first has left
        run()
    found = np.ctypeslib.as_array(outputs[-1], (5, 7))
    assert np.allclose(found, LINEAR.reference(problem, arrays, {}).value, rtol=1e-12, atol=1e-15)


def test_a_named_cpu_device_is_another_one_of_the_same_model(cache, monkeypatch):
    plain = CpuDevice(cache=cache)
    alone = plain.uuid
    monkeypatch.setenv("TILEWRIGHT_CPU_NAME", "second")
    named = CpuDevice(cache=cache)
    assert named.uuid != alone
    assert named.uuid == CpuDevice(cache=cache).uuid
    assert named.model.slug == plain.model.slug


def test_room_that_a_killed_process_held_is_free_before_the_next_bench(monkeypatch, tmp_path):
    left = tmp_path / "tilewright-bench-left"
    left.mkdir()
    os.utime(left, (0, 0))
    monkeypatch.setattr(cpu_scratch, "_roots", lambda: (tmp_path, tmp_path))
    cpu_scratch.remove_abandoned()
    assert not left.exists()


def test_a_problem_is_refused_with_what_it_takes_and_what_to_do(cache):
    device, problem = CpuDevice(cache=cache), GEMM.problem({"m": 64, "n": 64, "k": 64})
    needed = cpu_bench.needed_bytes(GEMM, problem)
    assert needed > 16.8 * GEMM.memory_bytes(problem)  # what such jobs were seen to take
    with pytest.raises(OutOfMemoryError, match=r"references in float64.* GB are free\. Choose a smaller shape"):
        cpu_bench.CpuBench(device._builder, GEMM, problem, 0, memory_bytes=needed - 1, cache_bytes=0)
    cpu_bench.CpuBench(device._builder, GEMM, problem, 0, memory_bytes=needed, cache_bytes=0).close()
