"""Weights as whole numbers and scales: what they stand for is the weight, within half a step of its group."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.dtypes import UNIT_ROUNDOFF
from tilewright.kernels.linear_quantized.quantise import quantised
from tilewright.kernels.linear_quantized.reference import dequantised, scales_shape, weights_shape

KERNEL = catalogue().get("linear_quantized")
STEPS = {"int8": 127, "int4": 7, "int4_zeros": 15}


def weights_of(seed, n, k, spread):
    generator = np.random.default_rng(seed)
    return generator.normal(scale=generator.uniform(0.1, 10.0, (n, 1)), size=(n, k)) + generator.normal(scale=spread)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 3)),
    spread=st.sampled_from([0.0, 5.0]),
    kind=st.sampled_from(sorted(STEPS)),
    group=st.sampled_from(["128", "row"]),
    dtype=st.sampled_from(["bfloat16", "float16"]),
)
def test_every_weight_is_within_half_a_step(seed, sizes, spread, kind, group, dtype):
    n, groups = sizes
    k = 128 * groups
    weights = weights_of(seed, n, k, spread)
    whole, scales = quantised(weights, kind, group, dtype)
    problem = KERNEL.problem({"m": 1, "n": n, "k": k}, dtype, {"weights": kind, "group": group})
    assert whole.shape == weights_shape(problem)
    assert scales.shape == scales_shape(problem)
    assert scales.dtype == np.dtype(dtype)
    lines = weights.reshape(n, 1 if group == "row" else groups, -1)
    least = np.minimum(lines.min(axis=-1, keepdims=True), 0)
    span = (
        lines.max(axis=-1, keepdims=True).clip(min=0) - least
        if kind == "int4_zeros"
        else abs(lines).max(-1, keepdims=True)
    )
    # A rounded scale moves the outermost multiple; a rounded zero point moves all by half a step.
    scale = span / STEPS[kind]
    allowed = (1.0 if kind == "int4_zeros" else 0.5) * scale + 2 * UNIT_ROUNDOFF[dtype] * span
    error = abs(dequantised(problem, {"W": whole, "S": scales}).reshape(lines.shape) - lines)
    assert (error <= allowed).all()


@pytest.mark.parametrize("kind", sorted(STEPS))
def test_what_stands_on_the_grid_is_kept(kind):
    low, high = {"int8": (-127, 127), "int4": (-7, 7), "int4_zeros": (-3, 12)}[kind]
    weights = np.resize(np.arange(low, high + 1), (2, 256)) * 0.25
    weights[:, -1] = high * 0.25
    whole, scales = quantised(weights, kind, "row", "float16")
    problem = KERNEL.problem({"m": 1, "n": 2, "k": 256}, "float16", {"weights": kind, "group": "row"})
    assert (dequantised(problem, {"W": whole, "S": scales}) == weights).all()


@pytest.mark.parametrize("kind", sorted(STEPS))
def test_a_group_of_zeros_stands_for_zeros(kind):
    whole, scales = quantised(np.zeros((1, 128)), kind, "128", "bfloat16")
    problem = KERNEL.problem({"m": 1, "n": 1, "k": 128}, "bfloat16", {"weights": kind, "group": "128"})
    assert not dequantised(problem, {"W": whole, "S": scales}).any()


@pytest.mark.parametrize(
    ("weights", "dtype", "said"),
    [
        (np.ones((1, 100)), "float16", "multiple of 128"),
        (np.full((1, 128), np.nan), "float16", "infinity or a NaN"),
        (np.full((1, 128), 1e30), "float16", "too large for float16"),
    ],
)
def test_weights_that_cannot_be_quantised_say_why(weights, dtype, said):
    with pytest.raises(ValueError, match=said):
        quantised(weights, "int8", "128", dtype)
