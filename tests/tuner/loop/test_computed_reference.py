"""What another configuration computed, taken as right: both are off by the rounding of what they compute in."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright.kernels.reference import close_to, computed
from tilewright.tuner.loop.verify import compare

N, D = 2048, 64


@pytest.fixture(scope="module")
def factors():
    generator = np.random.default_rng(1)
    return [generator.standard_normal((N, D)).astype(ml_dtypes.bfloat16).astype(np.float32) for _ in "qkv"]


def attention(factors, block, *, without=-1, narrow=ml_dtypes.bfloat16, out=ml_dtypes.bfloat16):
    """Causal attention over blocks of keys, as it is written for GPUs; `without` leaves one block out."""
    q, k, v = factors
    most, total, result = np.full(N, -np.inf, np.float32), np.zeros(N, np.float32), np.zeros((N, D), np.float32)
    for start in range(0, N, block):
        keys = np.arange(start, start + block)
        scores = q @ k[keys].T / np.float32(8)
        scores = np.where(np.arange(N)[:, None] >= keys, scores, -np.inf)
        new = np.maximum(most, scores.max(axis=1))
        if start // block != without:
            part, old = np.exp(scores - new[:, None]), np.exp(most - new)
            result = result * old[:, None] + part.astype(narrow).astype(np.float32) @ v[keys]
            total, most = total * old + part.sum(axis=1), new
    return (result / total[:, None]).astype(out)


@pytest.mark.parametrize("block", [16, 32, 128, 256])
def test_another_order_of_sums_in_a_half_type_is_right(factors, block):
    default, other = attention(factors, 64), attention(factors, block)
    assert not compare(other, close_to(default, "bfloat16"), "bfloat16").is_right  # as values that are exact
    assert compare(other, computed(default, "bfloat16"), "bfloat16").is_right


def test_a_block_of_keys_that_is_left_out_is_wrong(factors):
    default = attention(factors, 64)
    for without in (1, 100):
        missing = attention(factors, 16, without=without)
        assert not compare(missing, computed(default, "bfloat16"), "bfloat16").is_right


def test_a_wider_result_of_half_arithmetic_is_held_to_that(factors):
    default, other = (attention(factors, block, narrow=np.float16, out=np.float32) for block in (64, 16))
    assert not compare(other, computed(default, "float32"), "float32").is_right
    assert compare(other, computed(default, "float32", "float16"), "float32").is_right


def test_integers_stay_exact():
    assert not compare(np.array([1, 2]), computed(np.array([1, 3]), "int64", "float16"), "int64").is_right
