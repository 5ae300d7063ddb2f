"""A configuration that was not verified at its shape is checked on the caller's stream, and nobody waits for it."""

import warnings

import pytest
from contracts.row_sum import ROW_KERNELS
from faulty_kernels import faulty, planted

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.cuda.driver import INVALID_VALUE
from tilewright.tuner.runtime import LaunchError, Runtime, UntunedWarning, WrongResultWarning
from tilewright.tuner.runtime.first_use import first_use
from tilewright.tuner.runtime.launches.gpu import gpu_place

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("cache"),
    pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

M, N, K = 200, 136, 132
SHAPE = {"m": M, "n": N, "k": K}
TILED = Configuration.of("tiled", {"TILE_WIDTH": 8})
RIGHT = "for (unsigned p0 = 0; p0 < K; p0 += TILE_WIDTH)"
WRONG = "for (unsigned p0 = 0; p0 + (TILE_WIDTH == 8 ? 8 : 1) <= K; p0 += TILE_WIDTH)"
"""Tiles of 8 leave out the last terms where 8 does not divide K; other tiles are right."""

TOLERANCE = {"rtol": 1e-3, "atol": 1e-3}


@pytest.fixture(autouse=True)
def another_process():
    """Nothing was used yet, as far as first uses are concerned."""
    first_use.forget()


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
        first_use.forget()
        runtime = runtime_of(tmp_path / str(kind), catalogue(), problem)
        a, b, c = operands(torch)
        a[0] *= scale
        b[:, 7] *= scale
        launch = runtime.best("gemm", **SHAPE)
        for _ in range(2):
            launch(a, b, c)
            finish(torch)
        assert states(runtime) == ["right"], scale


def test_a_nan_beside_sums_that_overflow_is_found(torch, tmp_path, tmp_path_factory):
    right = "C += matrix_of_block() * STRIDE_C;"
    wrong = right + " if (row0 + y == 0 && column0 + x == 5) sum = sum - sum + Sum(0) / Sum(0);"
    kernels = faulty(tmp_path_factory.mktemp("kernels"), "gemm", "tiled.cu", right, wrong)
    runtime = runtime_of(tmp_path, kernels, kernels.get("gemm").problem(SHAPE))
    a, b, c = operands(torch)
    a[0], b[:, 5] = 1e30, 1e30
    launch = runtime.best("gemm", **SHAPE)
    launch(a, b, c)
    finish(torch)
    with pytest.warns(WrongResultWarning, match=r"1 components .* first at \(0, 5\)"):
        launch(a, b, c)


def test_a_launch_that_fails_leaves_the_check_to_the_next_one(torch, tmp_path):
    problem = catalogue().get("gemm").problem(SHAPE, options={"beta_zero": False})
    runtime = runtime_of(tmp_path, catalogue(), problem)
    a, b, _ = operands(torch)
    c = torch.ones(M, N, device="cuda")
    launch = runtime.best("gemm", beta_zero=False, **SHAPE)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        launch(a, b, c)  # loads it
    (launches,) = launch._on.values()
    (loaded,) = launches._loaded.values()
    enqueue, loaded.enqueue = loaded.enqueue, lambda *_: INVALID_VALUE
    with pytest.raises(LaunchError, match="CUDA_ERROR_INVALID_VALUE"):
        launch(a, b, c, beta=3.0)
    assert states(runtime) == ["waiting"]
    loaded.enqueue = enqueue
    for _ in range(2):
        launch(a, b, c, beta=3.0)
        finish(torch)
    assert states(runtime) == ["right"]


def test_a_context_that_comes_after_one_that_is_gone_has_its_own_code_and_memory(drv, tmp_path):
    import numpy as np  # noqa: PLC0415
    from framework_arrays import PycudaArrays  # noqa: PLC0415

    arrays = PycudaArrays(drv)
    a, b = (np.random.default_rng(3).standard_normal(s).astype(np.float32) for s in [(M, K), (K, N)])
    for number in range(4):  # the driver gives the handle of a context that is gone to the next one
        first_use.forget()
        runtime = runtime_of(tmp_path / str(number), catalogue(), catalogue().get("gemm").problem(SHAPE))
        launch, context = runtime.best("gemm", **SHAPE), drv.Device(0).make_context()
        try:
            A, B, C = (arrays.put(one) for one in (a, b, np.zeros((M, N), np.float32)))
            for _ in range(2):
                launch(A, B, C)
                drv.Context.synchronize()
            np.testing.assert_allclose(C.get(), a @ b, **TOLERANCE)
            del A, B, C
        finally:
            context.pop()
            context.detach()
        assert states(runtime) == ["right"]


def test_prepare_withdraws_what_is_wrong_ahead_of_a_capture(torch, tmp_path, wrong_gemm):
    runtime = runtime_of(tmp_path, wrong_gemm, wrong_gemm.get("gemm").problem(SHAPE))
    a, b, c = operands(torch)
    launch, graph = runtime.best("gemm", **SHAPE), torch.cuda.CUDAGraph()
    with pytest.warns(WrongResultWarning), pytest.warns(UntunedWarning):
        launch.prepare("cuda:0")
    assert states(runtime) == ["wrong"]
    with torch.cuda.graph(graph):
        launch(a, b, c)
    graph.replay()
    assert difference(torch, c, a.double() @ b.double()) <= 1e-3


PREPARED = {
    "gemm": ("tiled", {"TILE_WIDTH": 8}, SHAPE, "float32", {}),
    "gemm in bfloat16": ("tiled", {"TILE_WIDTH": 8}, SHAPE, "bfloat16", {}),
    "gemm that reads C": ("tiled", {"TILE_WIDTH": 8}, SHAPE, "float32", {"beta_zero": False}),
    "gemm of a batch": ("tiled", {"TILE_WIDTH": 8}, SHAPE | {"batch": 3}, "float32", {}),
    "gemv": ("naive", {"BLOCK": 128}, {"m": 90, "n": 33}, "float64", {}),
    **ROW_KERNELS,
}


@pytest.mark.parametrize("kind", PREPARED)
def test_prepare_checks_every_kernel_that_has_rows(torch, tmp_path, kind):
    name = kind.partition(" ")[0]
    variant, values, shape, dtype, options = PREPARED[kind]
    problem = catalogue().get(name).problem(shape, dtype, options)
    runtime = runtime_of(tmp_path, catalogue(), problem, Configuration.of(variant, values))
    runtime.best(name, dtype=dtype, **shape, **options).prepare("cuda:0")
    (use,) = runtime.first_uses()
    assert (use.state, use.reason) == ("right", "rows of the result are within their bounds")


@pytest.mark.parametrize("name", ["gemm", "linear"])
def test_prepare_checks_the_defaults_of_every_variant_that_runs_here(torch, tmp_path, name):
    kernel, place = catalogue().get(name), gpu_place(0)
    for dtype in ("float32", "bfloat16"):
        problem = kernel.problem({"m": 256, "n": 384, "k": 512}, dtype)
        for place_in_turn, configuration in enumerate(kernel.space(problem, place.limits).defaults()):
            first_use.forget()
            folder = tmp_path / f"{dtype}-{place_in_turn}"
            runtime = runtime_of(folder, catalogue(), problem, configuration)
            runtime.best(name, dtype=dtype, **problem.stated_shape).prepare("cuda:0")
            assert states(runtime) == ["right"], configuration


def test_prepare_packs_an_operand_of_its_own(torch, tmp_path):
    kernel, shape = catalogue().get("gemm"), {"m": 64, "n": 200, "k": 4100}
    problem = kernel.problem(shape, "float32", {"packed_b": True})
    configuration = next(
        (one for one in kernel.space(problem, gpu_place(0).limits).defaults() if one.variant == "tensor3xfp16_sm90"),
        None,
    )
    if configuration is None:
        pytest.skip("no variant packs here")
    runtime = runtime_of(tmp_path, catalogue(), problem, configuration)
    runtime.best("gemm", packed_b=True, **shape).prepare("cuda:0")
    assert states(runtime) == ["right"]


@pytest.fixture
def operators(torch, tmp_path, wrong_gemm):
    """The operators, with a wrong prediction for one product; and that product's factors."""
    import tilewright.torch as tw  # noqa: PLC0415 - it needs PyTorch
    from tilewright.tuner.turns.turns import held  # noqa: PLC0415

    answers = planted(tmp_path, wrong_gemm, wrong_gemm.get("gemm").problem(SHAPE), gpu_place(0), TILED)
    tw.use(Runtime(only_tuned=True, answers=answers, kernels=wrong_gemm, shipped_records=False))
    with held():  # the first call is ours
        yield tw, *operands(torch)[:2]
    tw.use(None)


def test_operators_say_what_was_withdrawn(torch, operators):
    tw, a, b = operators
    tw.gemm(a, b)
    finish(torch)
    assert tw.status()[0].check.startswith("under way: tiled TILE_WIDTH=8 (predicted, from cache)")
    with pytest.warns(WrongResultWarning), pytest.warns(tw.FallbackWarning):
        result = tw.gemm(a, b)
    assert difference(torch, result, a.double() @ b.double()) <= 1e-2
    assert tw.status()[0].check.startswith("withdrawn: tiled TILE_WIDTH=8 (predicted, from cache)")
    tw.gemm(a, b)
    assert not tw.status()[0].is_ours


def test_what_operators_decided_is_prepared_ahead_of_a_capture(torch, operators):
    tw, a, b = operators
    with pytest.warns(WrongResultWarning), pytest.warns(tw.FallbackWarning):
        (decision,) = tw.prepare(tw.gemm, a, b)
    assert not decision.is_ours
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = tw.gemm(a, b)
    graph.replay()
    assert difference(torch, result, a.double() @ b.double()) <= 1e-2


def test_a_model_is_not_captured_with_what_was_never_checked(torch, operators):
    from tilewright.tuner.pytorch.acceleration.graphs.graph import captured  # noqa: PLC0415 - it needs PyTorch

    tw, a, b = operators
    with pytest.warns(WrongResultWarning), pytest.warns(tw.FallbackWarning):
        graph, result = captured(lambda: tw.gemm(a, b))
    graph.replay()
    assert difference(torch, result, a.double() @ b.double()) <= 1e-2
