from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner import arrays
from tilewright.tuner.arrays import KINDS, input_kinds, random_arrays, scalar_values

GEMM, GEMV, LINEAR, SOFTMAX = (catalogue().get(name) for name in ("gemm", "gemv", "linear", "softmax"))
PRODUCTS = [
    *(
        (GEMM, GEMM.problem({"m": 11, "n": 13, "k": 64}, "float32", {"trans_a": trans_a, "trans_b": trans_b}))
        for trans_a, trans_b in itertools.product((False, True), repeat=2)
    ),
    *((GEMV, GEMV.problem({"m": 11, "n": 64}, "float32", {"trans_a": trans_a})) for trans_a in (False, True)),
    (LINEAR, LINEAR.problem({"m": 11, "n": 13, "k": 64})),
]


def along_sum(kernel, problem, kind):
    """Each factor with the summed axis last, as rows."""
    drawn = random_arrays(kernel, problem, 5, kind)
    factors = [tensor for tensor in kernel.tensors if tensor.summed(problem) is not None]
    return [np.moveaxis(drawn[t.name], t.summed(problem), -1) for t in factors]


def test_sums_in_float32_have_all_kinds_and_others_have_two():
    assert input_kinds(GEMM, GEMM.problem({"m": 2, "n": 2, "k": 2})) == KINDS
    assert input_kinds(GEMM, GEMM.problem({"m": 2, "n": 2, "k": 2}, "float64")) == ("normal", "uniform")
    assert input_kinds(SOFTMAX, SOFTMAX.problem({"m": 2, "n": 2})) == ("normal", "uniform")


@pytest.mark.parametrize(("kernel", "problem"), PRODUCTS, ids=lambda value: getattr(value, "canonical", ""))
def test_the_summed_axis_is_the_one_of_the_products(kernel, problem):
    assert {rows.shape[-1] for rows in along_sum(kernel, problem, "normal")} == {64}


@pytest.mark.parametrize(("kernel", "problem"), PRODUCTS, ids=lambda value: getattr(value, "canonical", ""))
def test_cancelling_terms_leave_almost_nothing_of_what_was_added(kernel, problem):
    drawn = random_arrays(kernel, problem, 5, "cancelling")
    if kernel is LINEAR:
        drawn["b"][:] = 0
    reference = kernel.reference(problem, drawn, scalar_values(kernel, problem))
    left = np.abs(reference.value) / reference.magnitude
    assert 0 < left.max() < 1e-5
    first, second = along_sum(kernel, problem, "cancelling")
    assert np.array_equal(first[..., :32], first[..., 32:])
    assert not np.array_equal(second[..., :32], -second[..., 32:])


@pytest.mark.parametrize(("kernel", "problem"), PRODUCTS, ids=lambda value: getattr(value, "canonical", ""))
def test_scaled_factors_reach_from_tiny_to_huge_within_a_row(kernel, problem):
    for rows in along_sum(kernel, problem, "scaled"):
        exponents = np.log2(np.abs(rows.reshape(-1, 64)))
        assert np.all(np.ptp(exponents, axis=-1) > 40)
        assert np.all(np.abs(exponents) < arrays.SCALE + 25)
        assert rows.dtype == np.float32


@pytest.mark.parametrize(("kernel", "problem"), PRODUCTS, ids=lambda value: getattr(value, "canonical", ""))
def test_moderate_factors_span_a_dozen_bits_and_few_more(kernel, problem):
    for rows in along_sum(kernel, problem, "moderate"):
        exponents = np.log2(np.abs(rows.reshape(-1, 64)))
        assert np.all(np.ptp(exponents, axis=-1) > 8)
        assert exponents.max() < arrays.MODERATE_SCALE + 3
        assert np.median(exponents.max(axis=-1) - np.median(exponents, axis=-1)) < 12


def test_uniform_inputs_are_never_negative_and_normal_ones_often():
    problem = GEMM.problem({"m": 64, "n": 64, "k": 64}, "float64", {"beta_zero": False})
    uniform, normal = (random_arrays(GEMM, problem, 5, kind) for kind in ("uniform", "normal"))
    assert set(uniform) == set(normal) == {"A", "B", "C"}
    for name in uniform:
        assert np.all((uniform[name] >= 0) & (uniform[name] < 1))
        assert normal[name].dtype == np.float64
        assert 0.4 < np.mean(normal[name] < 0) < 0.6


def test_what_is_drawn_depends_on_the_seed_and_on_nothing_else(monkeypatch):
    problem = GEMM.problem({"m": 1100, "n": 3, "k": 1000})  # A takes two blocks

    def drawn(seed):
        return random_arrays(GEMM, problem, seed, "cancelling")["A"]

    once = drawn(1)
    monkeypatch.setattr(arrays, "_MAX_THREADS", 1)
    assert np.array_equal(once, drawn(1))
    assert not np.array_equal(once, drawn(2))
    assert len(np.unique(once)) > 0.45 * once.size  # no block repeats another


def test_a_single_term_has_no_partner():
    problem = GEMV.problem({"m": 3, "n": 1})
    assert np.all(random_arrays(GEMV, problem, 1, "cancelling")["A"] != 0)
