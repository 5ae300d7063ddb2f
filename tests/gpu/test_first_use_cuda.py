"""A configuration that was not verified at its shape is checked on the caller's stream, and nobody waits for it."""

from __future__ import annotations

import warnings

import pytest
from faulty_kernels import faulty, planted

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.runtime import Runtime, UntunedWarning, WrongResultWarning
from tilewright.tuner.runtime.gpu import gpu_place

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("cache"),
    pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning"),
]

M, N, K = 200, 136, 132
SHAPE = {"m": M, "n": N, "k": K}
TILED = Configuration.of("tiled", {"TILE_WIDTH": 8})
RIGHT = "for (unsigned p0 = 0; p0 < K; p0 += TILE_WIDTH)"
WRONG = "for (unsigned p0 = 0; p0 + TILE_WIDTH <= K; p0 += TILE_WIDTH)"
"""The last terms are left out where TILE_WIDTH does not divide K."""

TOLERANCE = {"rtol": 1e-3, "atol": 1e-3}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def wrong_gemm(tmp_path_factory):
    return faulty(tmp_path_factory.mktemp("kernels"), "gemm", "tiled.cu", RIGHT, WRONG)


@pytest.fixture
def no_waiting(torch):
    """PyTorch raises where a call of its own would wait for the GPU."""
    with warnings.catch_warnings():  # PyTorch says that the mode is a prototype
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def runtime_of(folder, kernels, problem, configuration=TILED):
    answers = planted(folder, kernels, problem, gpu_place(0), configuration)
    return Runtime(answers=answers, kernels=kernels, shipped_records=False)


def operands(torch, dtype=None):
    dtype = dtype or torch.float32
    a, b = (torch.randn(shape, device="cuda").to(dtype) for shape in [(M, K), (K, N)])
    return a, b, torch.full((M, N), float("nan"), dtype=dtype, device="cuda")


def difference(torch, result, expected):
    """The largest difference; asks the GPU, so that everything before is done."""
    torch.cuda.set_sync_debug_mode("default")
    return (result.double() - expected).abs().max().item()


def finish(torch):
    """Waits for the GPU, between calls that must not."""
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode(mode)


def states(runtime):
    return [use.state for use in runtime.first_uses()]


def test_a_wrong_configuration_is_found_by_a_later_call_and_withdrawn(torch, tmp_path, wrong_gemm, no_waiting):
    problem = wrong_gemm.get("gemm").problem(SHAPE)
    runtime = runtime_of(tmp_path, wrong_gemm, problem)
    a, b, c = operands(torch)
    launch = runtime.best("gemm", **SHAPE)
    with warnings.catch_warnings():
        warnings.simplefilter("error", WrongResultWarning)
        launch(a, b, c)
    assert states(runtime) == ["under way"]
    assert not difference(torch, c, a.double() @ b.double()) <= 1e-3  # used before the verdict: stays as it is
    torch.cuda.set_sync_debug_mode("error")
    with (
        pytest.warns(WrongResultWarning, match=rf"gemm m={M},n={N},k={K} float32 .*tiled TILE_WIDTH=8"),
        pytest.warns(UntunedWarning),
    ):
        launch(a, b, c)
    assert states(runtime) == ["wrong"]
    assert difference(torch, c, a.double() @ b.double()) <= 1e-3
    assert launch.choice("cuda:0").match == "default"
    with warnings.catch_warnings():
        warnings.simplefilter("error", WrongResultWarning)
        launch(a, b, c)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_a_right_configuration_is_checked_once_and_stays(torch, tmp_path, no_waiting, dtype):
    problem = catalogue().get("gemm").problem(SHAPE, dtype)
    runtime = runtime_of(tmp_path, catalogue(), problem)
    launch, arrays = runtime.best("gemm", dtype=dtype, **SHAPE), operands(torch, getattr(torch, dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("error", WrongResultWarning)
        launch(*arrays)
        finish(torch)
        launch(*arrays)
    (use,) = runtime.first_uses()
    assert (use.state, use.reason) == ("right", "rows of the result are within their bounds")
    assert use.choice.configuration == TILED


def test_the_rows_of_an_output_that_is_read_are_kept_beforehand(torch, tmp_path, no_waiting):
    problem = catalogue().get("gemm").problem(SHAPE, options={"beta_zero": False})
    runtime = runtime_of(tmp_path, catalogue(), problem)
    a, b, _ = operands(torch)
    c = torch.ones(M, N, device="cuda")
    launch = runtime.best("gemm", beta_zero=False, **SHAPE)
    launch(a, b, c, alpha=0.5, beta=3.0)
    assert difference(torch, c, 0.5 * (a.double() @ b.double()) + 3) <= 1e-3
    launch(a, b, c, alpha=0.5, beta=3.0)
    assert states(runtime) == ["right"]


def test_transposed_views_are_checked_as_they_lie(torch, tmp_path):
    problem = catalogue().get("gemm").problem(SHAPE, options={"trans_a": True, "trans_b": True})
    runtime = runtime_of(tmp_path, catalogue(), problem)
    a, b, c = operands(torch)
    launch = runtime.best("gemm", **SHAPE)
    for _ in range(2):
        launch(a.t().contiguous().t(), b.t().contiguous().t(), c)
        finish(torch)
    assert states(runtime) == ["right"]


@pytest.mark.parametrize("activation", ["none", "relu", "sigmoid", "tanh", "gelu", "silu"])
def test_a_layer_is_checked_with_its_bias_and_activation(torch, tmp_path, activation):
    problem = catalogue().get("linear").problem(SHAPE, options={"activation": activation})
    runtime = runtime_of(tmp_path, catalogue(), problem)
    x, w, bias = (torch.randn(shape, device="cuda") for shape in [(M, K), (N, K), (N,)])
    y = torch.full((M, N), float("nan"), device="cuda")
    launch = runtime.best("linear", activation=activation, **SHAPE)
    for _ in range(2):
        launch(x, w, bias, y)
        finish(torch)
    assert states(runtime) == ["right"]


@pytest.mark.parametrize("trans_a", [False, True])
def test_a_product_with_a_vector_is_checked(torch, tmp_path, trans_a):
    shape = {"m": M, "n": N}
    problem = catalogue().get("gemv").problem(shape, options={"trans_a": trans_a})
    runtime = runtime_of(tmp_path, catalogue(), problem, Configuration.of("naive", {"BLOCK": 128}))
    a = torch.randn((N, M), device="cuda").t() if trans_a else torch.randn((M, N), device="cuda")
    x, y = torch.randn(N, device="cuda"), torch.full((M,), float("nan"), device="cuda")
    launch = runtime.best("gemv", **shape)
    for _ in range(2):
        launch(a, x, y)
        finish(torch)
    assert states(runtime) == ["right"]


def test_a_capture_is_untouched_and_the_first_call_outside_is_checked(torch, tmp_path, wrong_gemm):
    problem = wrong_gemm.get("gemm").problem(SHAPE)
    runtime = runtime_of(tmp_path, wrong_gemm, problem)
    a, b, c = operands(torch)
    launch, graph = runtime.best("gemm", **SHAPE), torch.cuda.CUDAGraph()
    with warnings.catch_warnings():
        warnings.simplefilter("error", WrongResultWarning)
        with torch.cuda.graph(graph):
            launch(a, b, c)
        for _ in range(3):
            graph.replay()
    finish(torch)
    assert states(runtime) == ["waiting"]
    launch(a, b, c)
    finish(torch)
    with pytest.warns(WrongResultWarning):
        launch(a, b, c)


def test_nothing_is_checked_where_the_setting_is_off(torch, tmp_path, wrong_gemm, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_FIRST_USE", "false")
    runtime = runtime_of(tmp_path, wrong_gemm, wrong_gemm.get("gemm").problem(SHAPE))
    launch, arrays = runtime.best("gemm", **SHAPE), operands(torch)
    with warnings.catch_warnings():
        warnings.simplefilter("error", WrongResultWarning)
        for _ in range(2):
            launch(*arrays)
            finish(torch)
    assert runtime.first_uses() == []


def test_numbers_of_many_sizes_and_those_that_are_not_finite_raise_no_false_alarm(torch, tmp_path):
    problem = catalogue().get("gemm").problem(SHAPE)
    for kind, scale in enumerate([1e-40, 1e-20, 1.0, 65536.0, 1e18, float("inf"), float("nan")]):
        runtime = runtime_of(tmp_path / str(kind), catalogue(), problem)
        a, b, c = operands(torch)
        a[0] *= scale
        launch = runtime.best("gemm", **SHAPE)
        for _ in range(2):
            launch(a, b, c)
            finish(torch)
        assert states(runtime) == ["right"], scale
