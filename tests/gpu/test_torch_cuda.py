"""The operators of tilewright.torch on CUDA tensors: streams, graphs, compilers, gradients, and what a call costs."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_operators import ours

from tests.tuner.pytorch.ranks import two_ranks
from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.choice import TargetDevice
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches import cuda, gpu

pytestmark = pytest.mark.gpu


MOST_RATIO = 1.6
"""Of a warm call to torch.mm(out=), in eager mode: both grow with the host, whose latter took 8.9 to 16.7 us."""

CALLS = {
    "gemm": (lambda tw, _F, a, b: tw.gemm(a, b), lambda _F, a, b: a @ b, [(70, 60), (60, 50)]),
    "linear": (lambda tw, _F, *a: tw.linear(*a), lambda F, *a: F.linear(*a), [(2, 30, 60), (50, 60), (50,)]),
    "gemv": (lambda tw, _F, a, x: tw.gemv(a, x), lambda _F, a, x: a @ x, [(70, 60), (60,)]),
    "softmax": (lambda tw, _F, x: tw.softmax(x), lambda _F, x: x.softmax(-1), [(20, 70)]),
    "rms_norm": (
        lambda tw, _F, *a: tw.rms_norm(*a),
        lambda F, x, w: F.rms_norm(x, w.shape, w),
        [(20, 70), (70,)],
    ),
    "add_layer_norm": (
        lambda tw, _F, *a: sum(tw.add_layer_norm(*a)),
        lambda F, x, r, w, b: F.layer_norm(x + r, w.shape, w, b) + x + r,
        [(20, 70), (20, 70), (70,), (70,)],
    ),
    "conv2d": (
        lambda tw, _F, *a: tw.conv2d(*a, padding=1),
        lambda F, *a: F.conv2d(*a, padding=1),
        [(2, 3, 16, 15), (4, 3, 3, 3), (4,)],
    ),
}


@pytest.mark.filterwarnings("ignore:tilewright:UserWarning", "ignore:Attempting to run cuBLAS:UserWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_result_and_its_gradients_are_those_of_pytorch(torch, tw, name):
    call, reference, shapes = CALLS[name]
    functional = torch.nn.functional
    given = [torch.randn(one, dtype=torch.float64, device="cuda", requires_grad=True) for one in shapes]
    result, expected = call(tw, functional, *given), reference(functional, *given)
    torch.testing.assert_close(result, expected)
    along = torch.randn_like(expected)
    torch.testing.assert_close(torch.autograd.grad(result, given, along), torch.autograd.grad(expected, given, along))
    assert name in ours(tw)


def test_a_call_is_on_the_current_stream(torch, tw):
    a = torch.randn(512, 512, device="cuda")
    expected = (a @ a) @ a
    tw.gemm(a, a)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late = a * 1
        c = tw.gemm(tw.gemm(late, late), late)
    torch.cuda.current_stream().wait_stream(stream)
    torch.testing.assert_close(c, expected, rtol=1e-3, atol=1e-2)


def test_a_cuda_graph_replays_the_operators_with_new_numbers(torch, tw):
    x, w, b = (torch.randn(*one, device="cuda") for one in [(64, 64), (64, 64), (64,)])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = tw.softmax(tw.linear(x, w, b, activation="relu"))
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(y, torch.relu(torch.nn.functional.linear(x, w, b)).softmax(-1), rtol=1e-3, atol=1e-4)
    assert ours(tw) == {"linear", "softmax"}


def test_a_layer_without_a_bias_that_was_captured_first_is_right_before_a_replay_and_after_the_graph(torch, tw):
    x, w = torch.randn(48, 40, device="cuda"), torch.randn(56, 40, device="cuda")
    expected = torch.nn.functional.linear(x, w)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        with torch.cuda.graph(graph):
            y = tw.linear(x, w)
        torch.testing.assert_close(tw.linear(x, w), expected, rtol=1e-3, atol=1e-4)
        graph.replay()
        torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-4)
        del graph, y
        torch.cuda.empty_cache()
        torch.testing.assert_close(tw.linear(x, w), expected, rtol=1e-3, atol=1e-4)
    assert ours(tw) == {"linear"}


@pytest.mark.filterwarnings("ignore")  # PyTorch's compiler deprecates parts of PyTorch
def test_the_compiler_makes_one_graph_with_the_operators_in_it(torch, tw):
    layer = torch.nn.Linear(64, 64, device="cuda")
    x = torch.randn(32, 64, device="cuda")

    def model(x):
        y = tw.linear(x, layer.weight, layer.bias).relu() + 1
        return tw.softmax(tw.linear(y, layer.weight))  # without a bias: its zeros are kept

    compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    linear = torch.nn.functional.linear
    expected = linear(linear(x, layer.weight, layer.bias).relu().add(1), layer.weight).softmax(-1)
    for _ in range(3):  # the third is a graph's
        with torch.no_grad():
            torch.testing.assert_close(compiled(x).clone(), expected, rtol=1e-3, atol=1e-4)
    assert ours(tw) == {"linear", "softmax"}


def test_half_types_are_computed(torch, tw):
    x, w = (torch.randn(*one, device="cuda", dtype=torch.bfloat16) for one in [(32, 64), (96, 64)])
    gate, up = torch.nn.functional.linear(x.double(), w.double()).chunk(2, -1)
    expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(tw.linear_gated(x, w).double(), expected, rtol=0.03, atol=0.1)
    assert ours(tw) == {"linear_gated"}


def test_a_convolution_that_stays_in_tf32_is_not_held_against_replacements(torch, tw):
    from tilewright.tuner.pytorch.acceleration.judgement.standard import Standard  # noqa: PLC0415 - as above
    from tilewright.tuner.pytorch.precision import without_tf32  # noqa: PLC0415 - it imports torch

    torch.backends.cudnn.conv.fp32_precision = "tf32"  # as PyTorch begins
    model, x = torch.nn.Conv2d(64, 64, 3).cuda().eval(), torch.randn(4, 64, 32, 32, device="cuda")
    with torch.no_grad():
        standard = Standard.of(lambda call: call(x), model)
        assert not standard.verdict(model(x)).is_right
        assert standard.of_program.verdict(model(x)).is_right
        assert not standard.of_program.verdict(model(x) * 1.01).is_right
        with without_tf32():
            assert standard.verdict(model(x)).is_right


def test_a_model_is_accelerated_by_a_lock_on_the_gpu(torch, tw, tmp_path):
    tw.use(Runtime(only_tuned=True, answers=AnswerCache(tmp_path)))
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512)).cuda()
    x = torch.randn(2048, 512, device="cuda")
    with torch.no_grad():
        expected = model(x)
        result = tw.accelerate(model, x, tune="now", tune_seconds=3, compiles=None)
        torch.testing.assert_close(model(x), expected, rtol=1e-3, atol=1e-3)
        if result.is_applied and result.speedup("ours")[1] > 1:
            path = result.save(tmp_path / "tilewright.lock")
            result.undo()
            assert tw.accelerate(model, lock=path).is_applied
            torch.testing.assert_close(model(x), expected, rtol=1e-3, atol=1e-3)


def test_a_warm_call_costs_little_more_than_a_product_of_pytorch(torch, tw):
    a, b, c = (torch.randn(64, 64, device="cuda") for _ in range(3))
    calls = {
        "torch.mm(out=)": lambda: torch.mm(a, b, out=c),
        "torch.mm": lambda: torch.mm(a, b),
        "tw.gemm_": lambda: tw.gemm_(c, a, b),
        "tw.gemm": lambda: tw.gemm(a, b),
        "torch.ops.tilewright.gemm": lambda: torch.ops.tilewright.gemm(a, b),
    }
    times_us = {name: [] for name in calls}
    with torch.no_grad():
        for _ in range(60):
            for name, call in calls.items():
                begun = time.perf_counter_ns()
                for _ in range(100):
                    call()
                times_us[name].append((time.perf_counter_ns() - begun) / 1e5)
                torch.cuda.synchronize()
    # The least of 60: what a call takes where no neighbour has the core, which adds to all of them alike.
    least_us = {name: min(times) for name, times in times_us.items()}
    assert least_us["tw.gemm"] <= MOST_RATIO * least_us["torch.mm(out=)"], least_us


@pytest.fixture
def ranks(torch, tmp_path, monkeypatch):
    """The program of a rank, with the operators by configurations that compile quickly."""
    from tests.tuner.pytorch import conftest, locked_rank  # noqa: PLC0415 - they import torch

    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    runtime = Runtime(only_tuned=True)
    runtime._pinned.configurations = conftest.Small(16)
    locked_rank.tw.use(runtime)
    yield locked_rank
    locked_rank.tw.use(None)


def test_two_ranks_have_the_same_choices_by_one_lock(ranks, tmp_path):
    first, second = two_ranks("locked_rank", ranks.lock_for("cuda", tmp_path / "tilewright.lock"), "cuda")
    assert first == second
    assert (first["applied"], first["said"]) == (True, [])
    assert [one.partition(" ")[0] for one in first["chosen"]] == ["layer_norm", "linear", "linear", "softmax"]


def test_two_ranks_that_start_cold_have_the_choices_of_the_first(gpu, tmp_path, monkeypatch):
    """They begin with different configurations, and their own clocks decide: on two GPUs where there are as many."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    first, second = two_ranks("warm_rank", tmp_path, "neither")["neither"]
    assert {name: one for name, one in first.items() if name not in {"before", "reason"}} == {
        name: one for name, one in second.items() if name not in {"before", "reason"}
    }
    assert "calls each" in first["reason"]


@pytest.mark.filterwarnings("always")
def test_a_gpu_that_nobody_tuned_for_runs_the_model_as_it_was(torch, ranks, tmp_path, monkeypatch):
    unknown = TargetDevice("nvidia-never-seen", gpu.gpu_place(0).limits)
    for module in (gpu, cuda):
        monkeypatch.setattr(module, "gpu_place", lambda _ordinal: unknown)
    ranks.tw.use(Runtime(only_tuned=True, shipped_records=False, answers=AnswerCache(tmp_path / "answers")))
    model, x = ranks.model_on("cuda")
    with torch.no_grad():
        expected = model(x)
        with pytest.warns(ranks.tw.AccelerationWarning, match="none of its 5 .* on nvidia-never-seen. Tune it:"):
            assert not ranks.tw.accelerate(model, x, compiles=None, graph=False).is_applied
        torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "says"), [("serving.md", "40 answers of 128 numbers"), ("fine-tuning.md", "merged: off by")]
)
def test_the_pages_program_runs_on_a_gpu(torch, page, says):
    [code] = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert says in ended.stdout, ended.stdout + ended.stderr
