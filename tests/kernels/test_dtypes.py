import hashlib
import itertools

import ml_dtypes
import numpy as np
import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.dtypes import (
    HALF,
    ITEM_BYTES,
    REAL,
    SMALLEST_NORMAL,
    UNIT_ROUNDOFF,
    real_macros,
    rounding_of,
)
from tilewright.kernels.errors import InvalidProblemError

BEFORE_HALF_TYPES = "f8af576890666d7322706931c325b1000021b33ca3e79d2fcccaec0082e5594e"
"""SHA-256 over the hashes below as they were before there were half types (commit 8b8e61a)."""


def test_no_key_of_a_float32_or_float64_problem_has_changed():
    digest = hashlib.sha256()
    for name in ("classifier", "conv2d", "gemm", "gemv", "linear", "softmax"):
        kernel = catalogue().get(name)
        options = [option for option in kernel.options if option.name != "output"]
        words = [[value for value in option.values if value != "silu"] for option in options]  # those there were
        for dtype, values in itertools.product(("float32", "float64"), itertools.product(*words)):
            chosen = {option.name: value for option, value in zip(options, values, strict=True)}
            try:
                digest.update(kernel.problem(kernel.example_shape, dtype, chosen).hash.encode())
            except InvalidProblemError:
                continue  # an option that the dtype does not have
    assert digest.hexdigest() == BEFORE_HALF_TYPES


@pytest.mark.parametrize("dtype", REAL)
def test_accuracy_and_size_are_those_of_the_type_in_numpy(dtype):
    information = ml_dtypes.finfo(np.dtype(dtype))
    assert float(information.eps) == 2 * UNIT_ROUNDOFF[dtype]
    assert float(information.smallest_normal) == SMALLEST_NORMAL[dtype]
    assert np.dtype(dtype).itemsize == ITEM_BYTES[dtype]


@pytest.mark.parametrize("dtype", HALF)
def test_a_sum_overflows_from_the_stated_number_on(dtype):
    overflow = np.float32(rounding_of(dtype).overflow)
    assert overflow == rounding_of(dtype).overflow
    with np.errstate(over="ignore"):
        assert np.isinf(overflow.astype(dtype))
    assert np.isfinite(np.nextafter(overflow, np.float32(0)).astype(dtype))


@pytest.mark.parametrize("dtype", HALF)
def test_rounding_to_a_half_type_costs_no_more_than_stated(dtype):
    rounding, rng = rounding_of(dtype), np.random.default_rng(3)
    numbers = rng.standard_normal(100_000) * 2.0 ** rng.integers(-30, 10, 100_000)
    cost = np.abs(numbers.astype(np.float32).astype(dtype).astype(np.float64) - numbers)
    allowed = rounding.unit_roundoff * np.maximum(np.abs(numbers), rounding.smallest_normal)
    assert np.all(cost <= allowed * (1 + 2.0**-12))  # they went through float32
    assert np.max(cost / allowed) > 0.95


def test_half_types_say_in_the_source_which_they_are():
    assert real_macros("bfloat16") == {"REAL": "__nv_bfloat16", "REAL_BYTES": "2", "REAL_IS_BFLOAT16": "1"}
    assert real_macros("float32") == {"REAL": "float", "REAL_BYTES": "4"}


def test_the_output_of_a_half_product_may_be_float32_and_that_is_part_of_its_key():
    gemm = catalogue().get("gemm")
    shape = {"m": 3, "n": 5, "k": 7}
    half, wide = gemm.problem(shape, "bfloat16"), gemm.problem(shape, "bfloat16", {"output": "float32"})
    assert "output" not in half.canonical
    assert half.hash != wide.hash
    assert [tensor.dtype_for(wide) for tensor in gemm.tensors] == ["bfloat16", "bfloat16", "float32"]
    assert gemm.bytes_moved(wide) - gemm.bytes_moved(half) == 2 * 3 * 5
    with pytest.raises(InvalidProblemError, match="bfloat16, float16"):
        gemm.problem(shape, "float32", {"output": "float32"})
