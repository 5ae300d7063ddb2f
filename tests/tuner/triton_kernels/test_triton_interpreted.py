"""Triton kernels on the CPU device: verified and sampled by Triton's interpreter, a process for each evaluation."""

from __future__ import annotations

import pytest
from triton_kernels.scaled import CONFIGURATION, PROBLEM, SOURCE, scaled_in

from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.errors import NoCompilerError, TrialFailure
from tilewright.tuner.outcome import Outcome

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
