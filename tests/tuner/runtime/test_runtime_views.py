"""The launcher on the CPU device: transposed views, slices and batches."""

from __future__ import annotations

import numpy as np
import pytest
from runtime_gemm import GEMM, K, M, N, operands

from tilewright.tuner.runtime import ArgumentError, LaunchError
from tilewright.tuner.runtime.arrays.views import READERS, _layout_dlpack, contiguous_strides

pytestmark = pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")

TRANS_B = {"trans_b": True}


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


def test_slices_of_larger_matrices_are_taken_as_they_are(runtime, launch):
    a, b, _ = operands()
    for first, second in ((padded(a), b), (a, padded(b)), (padded(a), padded(b.T).T)):
        c = padded(np.zeros((M, N), np.float32))
        assert launch(first, second, c) is c
        np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)
        assert np.isnan(c.base[:, N:]).all()
    problem = launch._laid_out([READERS[np.ndarray]] * 3, pictures(padded(a), padded(b.T).T, c))[0]
    assert problem == GEMM.problem({"m": M, "n": N, "k": K, "lda": K + 4, "ldb": K + 4, "ldc": N + 4}, options=TRANS_B)


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


def test_a_batch_whose_results_share_memory_is_refused(launch):
    a, b = batches(np.random.default_rng(4))
    c = np.lib.stride_tricks.as_strided(np.empty((M, N), np.float32), (3, M, N), (0, 4 * N, 4))
    with pytest.raises(ArgumentError, match=r"^C: C is written, so its matrices cannot share memory \(stride_c is 0"):
        launch(a, b, c)


def test_views_of_one_matrix_that_have_no_element_in_common_may_be_operands(launch):
    a, b, _ = operands()
    whole = np.full((M, K + N + 4), np.nan, np.float32)
    whole[:, :K] = a
    beside, over = whole[:, K : K + N], whole[:, K - 4 : K - 4 + N]
    launch(whole[:, :K], b, beside)
    np.testing.assert_allclose(beside, a @ b, rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError, match=r"^C: shares memory with A"):
        launch(whole[:, :K], b, over)


def test_strides_of_an_array_that_lies_in_order():
    assert contiguous_strides((4, 3, 2)) == (6, 2, 1)
    assert contiguous_strides(()) == ()


def test_an_output_may_begin_where_an_input_ends(launch):
    a, b, _ = operands()
    memory = np.empty(M * K + M * N, np.float32)
    memory[: M * K] = a.reshape(-1)
    first, behind = memory[: M * K].reshape(M, K), memory[M * K :].reshape(M, N)
    assert M * K % 4 == 0
    launch(first, b, behind)
    np.testing.assert_allclose(behind, a @ b, rtol=1e-4, atol=1e-5)


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
