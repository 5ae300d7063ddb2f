"""The launcher on the CPU device with arrays of half types, of NumPy, DLPack and PyTorch."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from foreign_arrays import OnlyDlpack
from runtime_gemm import GEMM, TILED, K, M, N, operands

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.dtypes import HALF
from tilewright.kernels.space import Configuration
from tilewright.tuner.runtime import ArgumentError, Runtime
from tilewright.tuner.runtime.arrays.views import READERS

SHAPE = {"m": M, "n": N, "k": K}
NORM = catalogue().get("add_rms_norm")
HELD = Configuration.of("held", {"THREADS_PER_ROW": 32, "ROWS": 1, "VECTOR_WIDTH": 1})


@pytest.fixture
def runtime(cache):
    options = [{}, {"trans_b": True}, {"output": "float32", "beta_zero": False}]
    problems = [GEMM.problem(SHAPE, dtype, each) for dtype in HALF for each in options]
    problems.append(GEMM.problem({**SHAPE, "lda": K + 4}, "bfloat16"))
    return Runtime(pinned=dict.fromkeys(problems, TILED) | {NORM.problem({"m": 3, "n": 20}, "bfloat16"): HELD})


def product(a, b):
    return a.astype(np.float32) @ b.astype(np.float32)


@pytest.mark.parametrize("dtype", HALF)
def test_arrays_of_half_types_are_multiplied_in_float32_and_rounded_once(runtime, dtype):
    a, b, c = operands(dtype)
    assert runtime.best("gemm", **SHAPE, dtype=dtype)(a, b, c) is c
    assert np.abs(c.astype(np.float32) - product(a, b)).max() <= np.abs(product(a, b)).max() * 2.0**-8
    turned = np.ascontiguousarray(b.T).T
    again = np.empty_like(c)
    runtime.best("gemm", **SHAPE, dtype=dtype)(a, turned, again)
    assert np.array_equal(again, c)


def test_a_view_of_a_wider_matrix_is_read_where_it_lies(runtime):
    a, b, c = operands("bfloat16")
    wide = np.zeros((M, K + 4), "bfloat16")
    wide[:, :K] = a
    runtime.best("gemm", **SHAPE, dtype="bfloat16")(wide[:, :K], b, c)
    np.testing.assert_allclose(c.astype(np.float32), product(a, b), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", HALF)
def test_results_may_be_float32_and_numbers_are(runtime, dtype):
    a, b, _ = operands(dtype)
    c = np.ones((M, N), np.float32)
    launch = runtime.best("gemm", **SHAPE, dtype=dtype, output="float32", beta_zero=False)
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


def test_arrays_of_another_type_are_refused_with_the_fix(runtime):
    a, b, c = operands("bfloat16")
    launch = runtime.best("gemm", **SHAPE, dtype="bfloat16")
    with pytest.raises(
        ArgumentError, match=r'^A: is float16, .* Convert it to bfloat16, or ask best\(…, dtype="float16"\)'
    ):
        launch(a.astype(np.float16), b, c)


def test_both_outputs_of_a_fused_norm_come_back_and_eps_has_a_default(runtime):
    rng = np.random.default_rng(5)
    x, r = (rng.standard_normal((3, 20)).astype(ml_dtypes.bfloat16) for _ in range(2))
    w = rng.standard_normal(20).astype(ml_dtypes.bfloat16)
    y, s = np.empty_like(x), np.empty_like(x)
    launch = runtime.best("add_rms_norm", m=3, n=20, dtype="bfloat16")
    outputs = launch(x, r, w, y, s)
    assert outputs[0] is y
    assert outputs[1] is s
    assert np.array_equal(s, (x.astype(np.float32) + r.astype(np.float32)).astype(ml_dtypes.bfloat16))
    wide = s.astype(np.float32)
    for eps in (None, 0.5):
        launch(x, r, w, y, s, **({} if eps is None else {"eps": eps}))
        root = np.sqrt(np.square(wide).mean(axis=1, keepdims=True) + (1e-5 if eps is None else eps))
        np.testing.assert_allclose(y.astype(np.float32), wide / root * w.astype(np.float32), rtol=2.0**-7)


def test_pytorchs_half_tensors_are_launched_on_and_read_by_dlpack(runtime):
    torch = pytest.importorskip("torch")
    for dtype in HALF:
        a, b = torch.randn(M, K, dtype=getattr(torch, dtype)), torch.randn(K, N, dtype=getattr(torch, dtype))
        c = torch.empty(M, N, dtype=getattr(torch, dtype))
        runtime.best("gemm", **SHAPE, dtype=dtype)(a, b, c)
        assert torch.allclose(c.float(), a.float() @ b.float(), rtol=0.02, atol=0.02)
        array = OnlyDlpack(a)
        reader = READERS[OnlyDlpack]
        assert reader.layout(reader.read(array)[1]).dtype == dtype
