"""On a GPU: what was not measured here takes turns with PyTorch's call, and the clock decides."""

from __future__ import annotations

import time
import warnings

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.answers import AnswerCache
from tilewright.tuner.runtime.first_use import first_use

pytestmark = pytest.mark.gpu

SLEEP_CYCLES = 4_000_000
"""About 2 ms, in which the host enqueues the calls of a round."""


@pytest.fixture
def operators(torch, tmp_path, monkeypatch):
    """Operators for which this configuration of gemm is predicted at that size."""
    import tilewright.torch as tw  # noqa: PLC0415

    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    first_use.forget()

    def made(size, configuration):
        runtime = Runtime(only_tuned=True, answers=AnswerCache(tmp_path / "answers"))
        problem = catalogue().get("gemm").problem({"m": size, "n": size, "k": size})
        runtime.pin({problem: configuration}, {problem: "predicted"})
        tw.use(runtime)
        return tw

    yield made
    tw.use(None)


LONGEST_S = 90


def decision_of(torch, tw, size, *, is_busy):
    """What is decided after rounds of calls, each of whose results is compared; `is_busy`: they wait for the GPU."""
    a, b = torch.randn(size, size, device="cuda"), torch.randn(size, size, device="cuda")
    expected, begun = a.double() @ b.double(), time.perf_counter()
    while time.perf_counter() - begun < LONGEST_S:
        if is_busy:
            torch.cuda._sleep(SLEEP_CYCLES)
        for found in [tw.gemm(a, b) for _ in range(8 if is_busy else 1)]:
            torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-2)
        torch.cuda.synchronize()
        decision = next(one for one in tw.status() if one.call.startswith(f"({size}, {size})"))
        if "takes turns" not in decision.reason:
            return decision
    raise AssertionError(f"undecided after {LONGEST_S} s: {tw.status()}")


def test_a_slow_prediction_gives_way_to_pytorch(torch, operators):
    tw = operators(1024, Configuration.of("naive", {"BLOCK_X": 32, "BLOCK_Y": 8}))
    decision = decision_of(torch, tw, 1024, is_busy=True)
    assert not decision.is_ours
    assert "PyTorch's" in decision.reason
    assert "calls each" in decision.reason


def test_a_fast_prediction_stays(torch, device, operators):
    if device.model.limits.compute_capability < (9, 0):
        pytest.skip("tensor3xfp16_sm90 needs compute capability 9.0")
    tw = operators(2048, catalogue().get("gemm").variant("tensor3xfp16_sm90").space().default())
    assert decision_of(torch, tw, 2048, is_busy=True).is_ours


def test_an_idle_gpu_decides_by_what_it_tells(torch, operators):
    tw = operators(64, Configuration.of("naive", {"BLOCK_X": 32, "BLOCK_Y": 8}))
    decision = decision_of(torch, tw, 64, is_busy=False)
    assert (decision.is_ours and "host-bound" in decision.reason) or "calls each" in decision.reason


def test_the_first_calls_do_not_wait_for_the_compiler(torch, operators):
    tw = operators(1536, catalogue().get("gemm").variant("register").space().default())
    a, b = torch.randn(1536, 1536, device="cuda"), torch.randn(1536, 1536, device="cuda")
    torch.mm(a, b)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tw.FallbackWarning)
        tw.gemm(a[:8], b)  # all that calls need is imported
    torch.cuda.synchronize()
    times_ms = []
    for _ in range(20):
        begun = time.perf_counter()
        tw.gemm(a, b)
        torch.cuda.synchronize()
        times_ms.append((time.perf_counter() - begun) * 1e3)
    assert max(times_ms) < 500, times_ms  # NVRTC takes more than a second for it
    decision_of(torch, tw, 1536, is_busy=True)


def test_a_shape_that_nobody_measured_stalls_no_call(torch, tmp_path, monkeypatch):
    import tilewright.torch as tw  # noqa: PLC0415

    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    first_use.forget()
    tw.use(Runtime(only_tuned=True, answers=AnswerCache(tmp_path / "answers")))
    x, w = torch.randn(777, 1000, device="cuda"), torch.randn(1234, 1000, device="cuda")
    torch.nn.functional.linear(x, w)
    expected = x.double() @ w.double().T
    torch.cuda.synchronize()
    times_ms, begun = [], time.perf_counter()
    while time.perf_counter() - begun < LONGEST_S:
        called = time.perf_counter()
        found = tw.linear(x, w)
        torch.cuda.synchronize()
        times_ms.append((time.perf_counter() - called) * 1e3)
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-2)
        (decision,) = tw.status()
        if "calls each" in decision.reason or "host-bound" in decision.reason:
            break
    tw.use(None)
    assert "until a configuration is found" not in decision.reason
    assert max(times_ms[1:]) < 500, max(times_ms[1:])  # finding takes a second of Python, and compiling as long
