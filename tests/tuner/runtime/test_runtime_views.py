"""The launcher on the CPU device: transposed views, slices and batches."""

import ctypes

import ml_dtypes
import numpy as np
import pytest
from foreign_arrays import OnlyDlpack
from runtime_gemm import GEMM, TILED, K, M, N, operands

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.dtypes import HALF
from tilewright.kernels.kernel import Launch
from tilewright.kernels.linear_quantized.reference import dequantised
from tilewright.kernels.space import Configuration
from tilewright.tuner.runtime import ArgumentError, LaunchError, Runtime, best, quantise
from tilewright.tuner.runtime.arrays.views import READERS, _layout_dlpack, contiguous_strides
from tilewright.tuner.runtime.launches.loaded_kernel import LaunchArguments

TRANS_B = {"trans_b": True}


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
@pytest.mark.parametrize("asked", [{}, {"trans_a": True}, {"trans_b": True}])
def test_a_transposed_view_is_the_other_option(runtime, asked):
    """Whatever was asked, the four ways in which A and B may lie give the same product."""
    a, b, c = operands()
    launch = runtime.best("gemm", m=M, n=N, k=K, **asked)
    left = a.T if asked.get("trans_a") else a
    right = b.T if asked.get("trans_b") else b
    for first in (np.ascontiguousarray(left), np.asfortranarray(left)):
        for second in (np.ascontiguousarray(right), np.asfortranarray(right)):
            c[:] = np.nan
            launch(first, second, c)
            np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
def test_an_axis_of_one_element_has_no_stride_that_counts(runtime):
    column, row = np.ones((5, 3), np.float32)[:, :1], np.ones((3, 2), np.float32)[::2][:1]
    launch, c = runtime.best("gemm", m=5, n=2, k=1, device="cpu"), np.empty((5, 2), np.float32)
    launch(column, row, c)
    assert (c == 1).all()
    chosen = runtime.best("gemm", m=5, n=2, k=1)._laid_out([READERS[np.ndarray]] * 3, pictures(column, row, c))[0]
    assert chosen == GEMM.problem({"m": 5, "n": 2, "k": 1, "lda": 3})


def pictures(*arrays):
    return [READERS[type(array)].read(array)[1] for array in arrays]


def padded(array, rows=0, columns=4):
    """The same numbers as a slice of a larger array, whose other elements are NaN."""
    *batch, m, n = array.shape
    larger = np.full((*batch, m + rows, n + columns), np.nan, array.dtype)
    larger[..., :m, :n] = array
    return larger[..., :m, :n]


def batches(generator, batch=3):
    a, b = generator.standard_normal((batch, M, K)), generator.standard_normal((batch, K, N))
    return a.astype(np.float32), b.astype(np.float32)


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
def test_slices_of_larger_matrices_are_taken_as_they_are(runtime, launch):
    a, b, _ = operands()
    for first, second in ((padded(a), b), (a, padded(b)), (padded(a), padded(b.T).T)):
        c = padded(np.zeros((M, N), np.float32))
        assert launch(first, second, c) is c
        np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)
        assert np.isnan(c.base[:, N:]).all()
    problem = launch._laid_out([READERS[np.ndarray]] * 3, pictures(padded(a), padded(b.T).T, c))[0]
    assert problem == GEMM.problem({"m": M, "n": N, "k": K, "lda": K + 4, "ldb": K + 4, "ldc": N + 4}, options=TRANS_B)


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
@pytest.mark.parametrize("asked", [{}, {"batch": 3}])
def test_arrays_of_three_axes_are_a_batch(runtime, asked):
    a, b = batches(np.random.default_rng(4))
    launch = runtime.best("gemm", m=M, n=N, k=K, **asked)
    views = {
        "dense": (a, b),
        "transposed inside the batch": (a, np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2)),
        "slices": (padded(a, 2), padded(b, 0)),
        "rows that take turns": (np.ascontiguousarray(a.swapaxes(0, 1)).swapaxes(0, 1), b),
        "expanded": (np.broadcast_to(a[:1], a.shape), b),
        "one for all": (a, b[0]),
    }
    for name, (first, second) in views.items():
        c = np.full((3, M, N), np.nan, np.float32)
        launch(first, second, c)
        np.testing.assert_allclose(c, np.matmul(first, second), rtol=1e-4, atol=1e-5, err_msg=name)
    problem = launch._laid_out([READERS[np.ndarray]] * 3, pictures(*views["expanded"], c))[0]
    assert problem == GEMM.problem({"m": M, "n": N, "k": K, "batch": 3, "stride_a": 0})


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
def test_a_batch_whose_results_share_memory_is_refused(launch):
    a, b = batches(np.random.default_rng(4))
    c = np.lib.stride_tricks.as_strided(np.empty((M, N), np.float32), (3, M, N), (0, 4 * N, 4))
    with pytest.raises(ArgumentError, match=r"^C: C is written, so its matrices cannot share memory \(stride_c is 0"):
        launch(a, b, c)


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
def test_views_of_one_matrix_that_have_no_element_in_common_may_be_operands(launch):
    a, b, _ = operands()
    whole = np.full((M, K + N + 4), np.nan, np.float32)
    whole[:, :K] = a
    beside, over = whole[:, K : K + N], whole[:, K - 4 : K - 4 + N]
    launch(whole[:, :K], b, beside)
    np.testing.assert_allclose(beside, a @ b, rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError, match=r"^C: shares memory with A"):
        launch(whole[:, :K], b, over)


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
def test_strides_of_an_array_that_lies_in_order():
    assert contiguous_strides((4, 3, 2)) == (6, 2, 1)
    assert contiguous_strides(()) == ()


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
def test_an_output_may_begin_where_an_input_ends(launch):
    a, b, _ = operands()
    memory = np.empty(M * K + M * N, np.float32)
    memory[: M * K] = a.reshape(-1)
    first, behind = memory[: M * K].reshape(M, K), memory[M * K :].reshape(M, N)
    assert M * K % 4 == 0
    launch(first, b, behind)
    np.testing.assert_allclose(behind, a @ b, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
@pytest.mark.parametrize(
    ("device", "element", "strides", "layout"),
    [
        ((1, 0), (0, 32, 1), (4, 1), ("cpu", "int32", (4, 1), None)),
        ((2, 3), (1, 8, 1), (1, 3), ("cuda", "uint8", (1, 3), 3)),
        ((2, 0), (2, 64, 1), None, ("cuda", "float64", (4, 1), 0)),
        ((2, 0), (4, 16, 1), None, ("cuda", "bfloat16", (4, 1), 0)),
        ((2, 0), (2, 32, 4), None, ("cuda", "DLPack type 2, 32 bits, 4 lanes", (4, 1), 0)),
        ((2, 0), (5, 64, 1), None, ("cuda", "DLPack type 5, 64 bits, 1 lanes", (4, 1), 0)),
    ],
)
def test_what_dlpack_says_of_an_array_is_its_layout(device, element, strides, layout):
    found = _layout_dlpack((device, element, (3, 4), strides))
    assert (found.kind, found.dtype, found.strides, found.ordinal) == layout
    with pytest.raises(LaunchError, match="DLPack device type 10 is neither"):
        _layout_dlpack(((10, 0), element, (3, 4), strides))


SHAPE = {"m": M, "n": N, "k": K}
NORM = catalogue().get("add_rms_norm")
HELD = Configuration.of("held", {"THREADS_PER_ROW": 32, "ROWS": 1, "VECTOR_WIDTH": 1})


@pytest.fixture
def half_runtime(cache):
    options = [{}, {"trans_b": True}, {"output": "float32", "beta_zero": False}]
    problems = [GEMM.problem(SHAPE, dtype, each) for dtype in HALF for each in options]
    problems.append(GEMM.problem({**SHAPE, "lda": K + 4}, "bfloat16"))
    return Runtime(pinned=dict.fromkeys(problems, TILED) | {NORM.problem({"m": 3, "n": 20}, "bfloat16"): HELD})


def product(a, b):
    return a.astype(np.float32) @ b.astype(np.float32)


@pytest.mark.parametrize("dtype", HALF)
def test_arrays_of_half_types_are_multiplied_in_float32_and_rounded_once(half_runtime, dtype):
    a, b, c = operands(dtype)
    assert half_runtime.best("gemm", **SHAPE, dtype=dtype)(a, b, c) is c
    assert np.abs(c.astype(np.float32) - product(a, b)).max() <= np.abs(product(a, b)).max() * 2.0**-8
    turned = np.ascontiguousarray(b.T).T
    again = np.empty_like(c)
    half_runtime.best("gemm", **SHAPE, dtype=dtype)(a, turned, again)
    assert np.array_equal(again, c)


def test_a_view_of_a_wider_matrix_is_read_where_it_lies(half_runtime):
    a, b, c = operands("bfloat16")
    wide = np.zeros((M, K + 4), "bfloat16")
    wide[:, :K] = a
    half_runtime.best("gemm", **SHAPE, dtype="bfloat16")(wide[:, :K], b, c)
    np.testing.assert_allclose(c.astype(np.float32), product(a, b), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", HALF)
def test_results_may_be_float32_and_numbers_are(half_runtime, dtype):
    a, b, _ = operands(dtype)
    c = np.ones((M, N), np.float32)
    launch = half_runtime.best("gemm", **SHAPE, dtype=dtype, output="float32", beta_zero=False)
    launch(a, b, c, alpha=1 / 3, beta=0.1)
    np.testing.assert_allclose(c, product(a, b) / 3 + 0.1, rtol=1e-5, atol=1e-5)
    with pytest.raises(ArgumentError, match=f"C: is {dtype}, not float32. Convert it to float32"):
        launch(a, b, c.astype(dtype))


def test_an_operand_is_packed_for_results_of_another_type_too(cache):
    options = {"output": "float32", "packed_b": True}
    a, b, _ = operands("bfloat16")
    c = np.empty((M, N), np.float32)
    pinned = {GEMM.problem(SHAPE, "bfloat16", options): TILED}
    launch = Runtime(pinned=pinned).best("gemm", **SHAPE, dtype="bfloat16", **options)
    launch(a, launch.pack(b), c)
    np.testing.assert_allclose(c, product(a, b), rtol=1e-5, atol=1e-5)


def test_arrays_of_another_type_are_refused_with_the_fix(half_runtime):
    a, b, c = operands("bfloat16")
    launch = half_runtime.best("gemm", **SHAPE, dtype="bfloat16")
    with pytest.raises(
        ArgumentError, match=r'^A: is float16, .* Convert it to bfloat16, or ask best\(…, dtype="float16"\)'
    ):
        launch(a.astype(np.float16), b, c)


def test_both_outputs_of_a_fused_norm_come_back_and_eps_has_a_default(half_runtime):
    rng = np.random.default_rng(5)
    x, r = (rng.standard_normal((3, 20)).astype(ml_dtypes.bfloat16) for _ in range(2))
    w = rng.standard_normal(20).astype(ml_dtypes.bfloat16)
    y, s = np.empty_like(x), np.empty_like(x)
    launch = half_runtime.best("add_rms_norm", m=3, n=20, dtype="bfloat16")
    outputs = launch(x, r, w, y, s)
    assert outputs[0] is y
    assert outputs[1] is s
    assert np.array_equal(s, (x.astype(np.float32) + r.astype(np.float32)).astype(ml_dtypes.bfloat16))
    wide = s.astype(np.float32)
    for eps in (None, 0.5):
        launch(x, r, w, y, s, **({} if eps is None else {"eps": eps}))
        root = np.sqrt(np.square(wide).mean(axis=1, keepdims=True) + (1e-5 if eps is None else eps))
        np.testing.assert_allclose(y.astype(np.float32), wide / root * w.astype(np.float32), rtol=2.0**-7)


def test_pytorchs_half_tensors_are_launched_on_and_read_by_dlpack(half_runtime):
    torch = pytest.importorskip("torch")
    for dtype in HALF:
        a, b = torch.randn(M, K, dtype=getattr(torch, dtype)), torch.randn(K, N, dtype=getattr(torch, dtype))
        c = torch.empty(M, N, dtype=getattr(torch, dtype))
        half_runtime.best("gemm", **SHAPE, dtype=dtype)(a, b, c)
        assert torch.allclose(c.float(), a.float() @ b.float(), rtol=0.02, atol=0.02)
        array = OnlyDlpack(a)
        reader = READERS[OnlyDlpack]
        assert reader.layout(reader.read(array)[1]).dtype == dtype


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
@pytest.mark.parametrize("weights", ["int8", "int4_zeros"])
def test_a_layer_of_quantised_weights_is_computed(weights):
    generator = np.random.default_rng(5)
    x, w = generator.normal(size=(2, 256)).astype("float16"), generator.normal(size=(8, 256)).astype("float16")
    q = quantise(w, weights)
    launch = best("linear_quantized", m=2, n=8, k=256, dtype=q.dtype, device="cpu", **q.options)
    y = launch(x, q.W, q.S, np.empty((2, 8), "float16")).astype(float)
    stands_for = dequantised(launch.problem, {"W": q.W, "S": q.S})
    assert np.allclose(y, x.astype(float) @ stands_for.T, rtol=2e-3, atol=2e-2)
    step = {"int8": 0.06, "int4_zeros": 0.6}[weights]  # of weights within 4: their error adds over k as random numbers
    assert np.abs(y - x.astype(float) @ w.astype(float).T).max() < 16 * step


def test_a_torch_tensor_gives_torch_tensors():
    torch = pytest.importorskip("torch")
    w = torch.randn(4, 128, dtype=torch.bfloat16)
    q = quantise(w, "int4")
    assert (q.W.dtype, q.S.dtype, q.dtype) == (torch.uint8, torch.bfloat16, "bfloat16")
    assert np.array_equal(quantise(w.float().numpy(), "int4").W, q.W.numpy())


@pytest.mark.parametrize(
    ("given", "options", "argument"),
    [
        (np.ones((2, 100)), {}, "W"),
        (np.ones(128), {}, "W"),
        ([[1.0]], {}, "W"),
        (np.ones((2, 128)), {"weights": "int3"}, "weights"),
        (np.ones((2, 128)), {"group": 64}, "group"),
        (np.ones((2, 128)), {"dtype": "float32"}, "dtype"),
    ],
)
def test_what_cannot_be_quantised_names_the_argument(given, options, argument):
    with pytest.raises(ArgumentError) as raised:
        quantise(given, **options)
    assert raised.value.argument == argument


def test_maps_come_behind_all_other_parameters():
    variant = GEMM.variant("tensor_half_sm90")
    problem = GEMM.problem({"m": 64, "n": 64, "k": 64}, "bfloat16")
    values = variant.space().default().values
    maps = variant.tensor_maps(values, problem)
    launch = Launch((1, 1, 1), (128, 1, 1))  # the variant's own overlaps, and whether it may the driver says
    words = LaunchArguments(GEMM, problem, [(ctypes.c_void_p(), launch)], scratch=1, maps=maps)
    _alpha, *_tensors, _beta, _c, _workspace, a, b, c = list(words.steps[0][2])
    assert len({a, b, c}) == 3
    assert all(place % 64 == 0 for place in (a, b, c))
    assert [len(list(LaunchArguments(GEMM, problem, [(ctypes.c_void_p(), launch)], scratch=1).steps[0][2]))] == [6]
