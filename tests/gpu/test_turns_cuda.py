"""On a GPU: what was not measured here takes turns with PyTorch's call, and the clock decides."""

from __future__ import annotations

import time
import warnings

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.pytorch.contest import MOST_CALLS
from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.answers import AnswerCache
from tilewright.tuner.runtime.first_use import first_use
from tilewright.tuner.runtime.launcher import place_of

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


def answered(tmp_path, times_ms):
    """Operators with predictions of gemm at k = n = 1024, by m: what is expected of ours and of the library, in ms."""
    import tilewright.torch as tw  # noqa: PLC0415

    kernel, answers = catalogue().get("gemm"), AnswerCache(tmp_path / "answers")
    configuration = kernel.variant("naive").space().default()
    for m, (ours_ms, library_ms) in times_ms.items():
        facts = {
            "variant": configuration.variant,
            "configuration": dict(configuration.values),
            "match": "predicted",
            "time_ms": ours_ms,
            "library": {"faster": False, "time_ms": library_ms},
            "source_hash": kernel.source_hash(configuration.variant),
        }
        answers.put(kernel.problem({"m": m, "n": 1024, "k": 1024}), place_of("cuda:0"), facts)
    tw.use(Runtime(only_tuned=True, answers=answers))
    return tw


def test_sizes_of_an_octave_decide_together(torch, tmp_path, monkeypatch):
    """64 sizes in turn, none of which is called 20 times: the range gives the slow prediction up after 20 calls."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    first_use.forget()
    sizes = range(1024, 2048, 16)
    tw = answered(tmp_path, {m: (m / 1024, m / 2048) for m in sizes})
    b = torch.randn(1024, 1024, device="cuda")
    inputs = {m: torch.randn(m, 1024, device="cuda") for m in sizes}
    begun = time.perf_counter()
    while time.perf_counter() - begun < LONGEST_S:
        torch.cuda._sleep(SLEEP_CYCLES)
        for a in inputs.values():
            tw.gemm(a, b)
        torch.cuda.synchronize()
        if any("calls each" in one.reason for one in tw.status()):
            break
    for a in inputs.values():  # sizes whose code was still compiled learn it now
        torch.testing.assert_close(tw.gemm(a, b), torch.mm(a, b), rtol=1e-3, atol=1e-2)
    decisions = tw.status()
    tw.use(None)
    decided = [one for one in decisions if "calls each" in one.reason]
    assert decided
    assert not any(one.is_ours for one in decided)
    assert all(one.fallback == "slower" and one.ours_ms > one.pytorch_ms for one in decided)
    assert sum(one.calls_ours for one in decisions) <= MOST_CALLS


def test_calls_and_gain_are_told_in_numbers(torch, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    first_use.forget()
    tw = answered(tmp_path, {1024: (1.0, 2.0)})
    a, b = torch.randn(1024, 1024, device="cuda"), torch.randn(1024, 1024, device="cuda")
    tw.gemm(a, b)
    torch.cuda.synchronize()
    (one,) = tw.status()
    tw.off()
    assert torch.equal(tw.gemm(a, b), torch.mm(a, b))
    tw.on()
    tw.use(None)
    assert one.calls_ours + one.calls_pytorch >= 1
    assert one.gained_ms == one.calls_ours * (one.pytorch_ms - one.ours_ms)


def test_products_are_tf32s_where_the_program_allows_it(torch, tmp_path, monkeypatch):
    """What was tuned for FP32's accuracy is not launched then, and serves again under "highest"."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    import tilewright.torch as tw  # noqa: PLC0415

    kernel, runtime = catalogue().get("gemm"), Runtime(only_tuned=True, answers=AnswerCache(tmp_path / "answers"))
    problem = kernel.problem({"m": 1024, "n": 1024, "k": 1024})
    runtime.pin({problem: kernel.variant("register").space().default()}, {problem: "exact"})
    tw.use(runtime)
    a, b = torch.randn(1024, 1024, device="cuda"), torch.randn(1024, 1024, device="cuda")
    before = torch.get_float32_matmul_precision()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tw.FallbackWarning)
            torch.set_float32_matmul_precision("high")
            assert torch.equal(tw.gemm(a, b), torch.mm(a, b))  # TF32, by PyTorch: nothing is tuned for it
            found = tw.gemm(a, b, accuracy="fp32")
            torch.set_float32_matmul_precision("highest")
            assert torch.equal(tw.gemm(a, b), found)
        exact = a.double() @ b.double()
        assert (found - exact).abs().max() < 1e-3
        assert [one.is_ours for one in tw.status()] == [False, True, True]
    finally:
        torch.set_float32_matmul_precision(before)
        tw.use(None)
