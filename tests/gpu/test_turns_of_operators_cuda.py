"""On a GPU: operators that were not measured here take turns with PyTorch's calls, and the clock decides."""

import statistics
import time
import warnings

import pytest
from turns_on_gpu import LONGEST_S, NAIVE, SLEEP_CYCLES, facts, settled, square

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.runtime import Runtime
from tilewright.tuner.turns.contest import MOST_CALLS

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def no_turns():
    """Calls take turns here."""


@pytest.fixture
def operators(runtime_of):
    """Operators that know these answers alone."""
    import tilewright.torch as tw  # noqa: PLC0415

    def made(answers, **named):
        tw.use(runtime_of(answers, **named))
        return tw

    yield made
    tw.use(None)


def of_square(size, configuration, match="predicted"):
    """The answer to one product."""
    return {square(size): facts(square(size), configuration, match)}


def decision_of(torch, tw, size, *, is_busy, atol=1e-2):
    """What is decided after rounds of calls, each of whose results is compared; `is_busy`: they wait for the GPU."""
    a, b = torch.randn(size, size, device="cuda"), torch.randn(size, size, device="cuda")
    expected, begun = a.double() @ b.double(), time.perf_counter()
    while time.perf_counter() - begun < LONGEST_S:
        if is_busy:
            torch.cuda._sleep(SLEEP_CYCLES)
        for found in [tw.gemm(a, b) for _ in range(8 if is_busy else 1)]:
            torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=atol)
        torch.cuda.synchronize()
        decision = next(one for one in tw.status() if one.call.startswith(f"({size}, {size})"))
        if not any(open_words in decision.reason for open_words in ("takes turns", "until a configuration is found")):
            return decision
    raise AssertionError(f"undecided after {LONGEST_S} s: {tw.status()}")


def test_a_slow_prediction_gives_way_to_pytorch(torch, operators):
    tw = operators(of_square(1024, NAIVE))
    decision = decision_of(torch, tw, 1024, is_busy=True)
    assert not decision.is_ours
    assert "PyTorch's" in decision.reason
    assert "calls each" in decision.reason


def test_a_fast_prediction_stays(torch, device, operators):
    if device.model.limits.compute_capability < (9, 0):
        pytest.skip("tensor3xfp16_sm90 needs compute capability 9.0")
    tw = operators(of_square(2048, catalogue().get("gemm").variant("tensor3xfp16_sm90").space().default()))
    assert decision_of(torch, tw, 2048, is_busy=True).is_ours


def test_warm_decides_by_times_where_the_gpu_would_wait_for_the_host(torch, operators):
    tw = operators(of_square(64, NAIVE))
    a, b = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    [decision] = tw.warm(tw.gemm, a, b)
    assert "calls each" in decision.reason


def test_an_idle_gpu_decides_by_what_it_tells(torch, operators):
    tw = operators(of_square(64, NAIVE))
    decision = decision_of(torch, tw, 64, is_busy=False)
    assert (decision.is_ours and "host-bound" in decision.reason) or "calls each" in decision.reason


def test_the_first_calls_do_not_wait_for_the_compiler(torch, operators):
    tw = operators(of_square(1536, catalogue().get("gemm").variant("register").space().default()))
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


def test_a_shape_that_nobody_measured_stalls_no_call(torch, operators):
    tw = operators({})
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
    assert "until a configuration is found" not in decision.reason
    assert max(times_ms[1:]) < 500, max(times_ms[1:])  # finding takes a second of Python, and compiling as long


def by_rows(times_ms):
    """Predictions of gemm at k = n = 1024, by m: what is expected of ours and of the library, in ms."""
    kernel = catalogue().get("gemm")
    configuration = kernel.variant("naive").space().default()
    posed = {kernel.problem({"m": m, "n": 1024, "k": 1024}): expected for m, expected in times_ms.items()}
    return {problem: facts(problem, configuration, "predicted", *expected) for problem, expected in posed.items()}


def test_sizes_of_an_octave_decide_together(torch, operators):
    """64 sizes in turn, none of which is called 20 times: the range gives the slow prediction up after 20 calls."""
    sizes = range(1024, 2048, 16)
    tw = operators(by_rows({m: (m / 1024, m / 2048) for m in sizes}))
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
    decided = [one for one in decisions if "calls each" in one.reason]
    assert decided
    assert not any(one.is_ours for one in decided)
    assert all(one.fallback == "slower" and one.ours_ms > one.pytorch_ms for one in decided)
    assert sum(one.calls_ours for one in decisions) <= MOST_CALLS


def test_calls_and_gain_are_told_in_numbers(torch, operators):
    tw = operators(by_rows({1024: (1.0, 2.0)}))
    a, b = torch.randn(1024, 1024, device="cuda"), torch.randn(1024, 1024, device="cuda")
    settled(torch, lambda: tw.gemm(a, b), lambda: tw.status()[0].ours_ms is not None)
    (one,) = tw.status()
    tw.off()
    assert torch.equal(tw.gemm(a, b), torch.mm(a, b))
    tw.on()
    assert one.calls_ours + one.calls_pytorch >= 1
    assert one.gained_ms == one.calls_ours * (one.pytorch_ms - one.ours_ms)


def test_products_are_tf32s_where_the_program_allows_it(torch, runtime_of, operators):
    """What was tuned for FP32's accuracy is not launched then, and serves again under "highest"."""
    kernel, runtime = catalogue().get("gemm"), runtime_of({})
    runtime.pin({square(1024): kernel.variant("register").space().default()}, {square(1024): "exact"})
    tw = operators({})
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


def test_what_is_asked_in_fp32_is_pytorchs_fp32_where_nothing_is_tuned(torch, operators, high):
    tw = operators({}, shipped_records=False)
    a = torch.randn(1000, 1000, device="cuda")
    exact = a.double() @ a.double()
    with pytest.warns(tw.FallbackWarning):
        found = tw.gemm(a, a, accuracy="fp32")
    assert (found - exact).abs().max() < 1e-3
    assert torch.equal(tw.gemm(a, a, accuracy="fp32"), found)
    assert (torch.mm(a, a) - exact).abs().max() > 1e-3  # TF32, as the program allows
    assert not tw.status()[0].is_ours


def test_a_measured_answer_takes_no_turns(torch, operators):
    tw = operators(of_square(1024, NAIVE, match="exact"))
    a = torch.randn(1024, 1024, device="cuda")
    settled(torch, lambda: tw.gemm(a, a), lambda: tw.status()[0].is_ours)
    (before,) = tw.status()  # it counts all calls of the process
    for _ in range(8):
        tw.gemm(a, a)
    (decision,) = tw.status()
    assert (decision.is_ours, decision.calls_ours - before.calls_ours) == (True, 8)
    assert "turns" not in decision.reason


def test_nobody_waits_for_the_code_of_a_measured_answer(torch, operators):
    """PyTorch's call runs while a thread compiles; what a lock or the application names runs from the first call."""
    configuration = catalogue().get("gemm").variant("tensor3xtf32").space().default()
    tw = operators(of_square(1024, configuration, match="exact"))
    a = torch.randn(1024, 1024, device="cuda")
    torch.mm(a, a)
    torch.cuda.synchronize()
    times_ms = []

    def call():
        begun = time.perf_counter()
        tw.gemm(a, a)
        times_ms.append((time.perf_counter() - begun) * 1e3)

    settled(torch, call, lambda: tw.status()[0].is_ours)
    assert len(times_ms) > 1
    assert max(times_ms[1:]) < 100, max(times_ms[1:])
    tw.use(None)
    runtime = Runtime(only_tuned=True)
    runtime.pin({square(1024): configuration}, {square(1024): "exact"})
    tw.use(runtime)
    tw.gemm(a, a)
    assert tw.status()[0].is_ours


@pytest.fixture
def any_rows(operators):
    """Operators of any number of rows, from what ships."""
    return operators({}, any_size_operators=True)


def test_lengths_of_a_range_decide_together_and_no_call_waits(torch, any_rows):
    """Ranges of 3072 x 768: 64 lengths between 800 and 1311, each of which comes a few times."""
    w, sizes, times_ms, begun = torch.randn(3072, 768, device="cuda"), range(800, 1312, 8), [], time.perf_counter()
    inputs = [torch.randn(m, 768, device="cuda") for m in sizes]
    any_rows.linear(inputs[0], w)
    while time.perf_counter() - begun < LONGEST_S:
        torch.cuda._sleep(SLEEP_CYCLES)
        found = []
        for x in inputs:
            called = time.perf_counter()
            found.append(any_rows.linear(x, w))
            times_ms.append((time.perf_counter() - called) * 1e3)
        for x, y in zip(inputs, found, strict=True):
            torch.testing.assert_close(y, torch.nn.functional.linear(x, w), rtol=1e-3, atol=1e-2)
        decided = [one for one in any_rows.status() if "calls each" in one.reason or "host-bound" in one.reason]
        if len(decided) == len(sizes):
            break
    assert len(decided) == len(sizes), any_rows.status()
    assert max(times_ms[1:]) < 500, max(times_ms[1:])
    by_range = {(one.reason.partition("; ")[2], one.is_ours) for one in decided}
    assert len(by_range) == len({configuration for configuration, _ in by_range}), by_range  # one answer a range


def test_a_replaced_layer_takes_turns_at_lengths_that_accelerate_did_not_measure(torch, any_rows):
    model = torch.nn.Sequential(torch.nn.Linear(768, 3072), torch.nn.GELU()).cuda().eval()
    with torch.no_grad():
        result = any_rows.accelerate(model, torch.randn(64, 768, device="cuda"), compiles=None, graph=False)
        if not result.is_applied:
            pytest.skip(f"nothing is faster here: {result}")
        weight, bias = model[0].weight, model[0].bias
        for m in (64, 40, 2000, 3000, 2000, 8000) * 8:
            x = torch.randn(m, 768, device="cuda")
            torch.cuda._sleep(SLEEP_CYCLES)
            expected = torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias))
            torch.testing.assert_close(model(x), expected, rtol=1e-3, atol=1e-2)
            torch.cuda.synchronize()
    of_sample = [one for one in any_rows.status() if one.call.startswith("(64, 768)")]
    assert of_sample
    assert all(one.is_ours and "calls each" not in one.reason for one in of_sample), of_sample


@pytest.fixture
def high(torch):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def test_fp32s_configuration_takes_turns_with_pytorchs_tf32(torch, operators, high):
    """It was measured beside the library's FP32, which is not PyTorch's call under "high"."""
    tw = operators(of_square(1024, NAIVE, match="exact"))
    decision = decision_of(torch, tw, 1024, is_busy=True, atol=0.2)
    assert not decision.is_ours
    a = torch.randn(1024, 1024, device="cuda")
    assert torch.equal(tw.gemm(a, a), torch.mm(a, a))
    found = tw.gemm(a, a, accuracy="fp32")
    assert (found - a.double() @ a.double()).abs().max() < 1e-3


def test_convolutions_take_turns_where_pytorchs_compute_in_tf32(torch, operators):
    assert torch.backends.cudnn.allow_tf32  # PyTorch's default
    x, w = torch.randn(8, 64, 56, 56, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    operators({})
    posed = problem_of(x, w)
    answers = {posed: facts(posed, catalogue().get("conv2d").variant("direct").space().default(), match="exact")}
    tw = operators(answers)
    settled(torch, lambda: tw.conv2d(x, w, padding=1), lambda: "calls each" in tw.status()[0].reason)
    (decision,) = tw.status()
    assert not decision.is_ours, decision
    tw = operators(answers)
    tw.conv2d(x, w, padding=1, accuracy="fp32")
    assert [one.is_ours for one in tw.status()] == [True]


def problem_of(x, w):
    """The convolution's problem."""
    from tilewright.tuner.pytorch.operators.convolution import CONV2D  # noqa: PLC0415
    from tilewright.tuner.pytorch.recording.operators import posed_problem  # noqa: PLC0415

    arguments = (x, w, None, [1, 1], [1, 1], [1, 1], 1, "none", "fp32")
    return posed_problem("conv2d", CONV2D.plans.posed(*arguments), x.dtype)


@pytest.mark.filterwarnings("ignore:nothing is fused")  # torch.fx cannot trace PyTorch's own layer
@pytest.mark.parametrize("with_gradients", [False, True])
def test_a_model_under_high_is_never_slower_than_eager(torch, any_rows, high, with_gradients):
    """A layer of BERT's shape, in inference and with gradients recorded."""
    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True).cuda().eval()
    x = torch.randn(8, 128, 768, device="cuda")

    def step():
        y = layer(x)
        if with_gradients:
            y.sum().backward()

    with torch.set_grad_enabled(with_gradients):
        result = any_rows.accelerate(layer, x, compiles=None, limit_s=120)
        if result.way != "eager":
            ratio, low, _ = result.speedup()
            assert low > 0.98, (ratio, low, str(result))
        times_ms = {"plain": [], "ours": []}
        for _ in range(15):
            for name, own in times_ms.items():
                (any_rows.off if name == "plain" else any_rows.on)()
                step()
                torch.cuda.synchronize()
                begun = time.perf_counter()
                for _ in range(10):
                    step()
                torch.cuda.synchronize()
                own.append((time.perf_counter() - begun) * 1e2)
    any_rows.on()
    ratios = [ours / plain for plain, ours in zip(times_ms["plain"], times_ms["ours"], strict=True)]
    assert statistics.median(ratios) < 1.03, (ratios, str(result))
