import itertools

import numpy as np
import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Scalar

SCALARS = {"alpha": -1.5, "beta": 0.25}


def random_arrays(kernel, problem):
    """Arguments as a bench makes them: what the kernel does not read is NaN."""
    rng = np.random.default_rng(7)
    arrays = {t.name: rng.standard_normal(t.shape(problem)).astype(problem.dtype) for t in kernel.tensors}
    if not kernel.output.is_read(problem):
        arrays[kernel.output.name].fill(np.nan)
    return arrays


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("trans_a", "trans_b", "beta_zero"), list(itertools.product((False, True), repeat=3)))
def test_gemm_reference_is_the_sum_of_products(trans_a, trans_b, beta_zero, dtype):
    gemm = catalogue().get("gemm")
    options = {"trans_a": trans_a, "trans_b": trans_b, "beta_zero": beta_zero}
    problem = gemm.problem({"m": 4, "n": 3, "k": 5}, dtype, options)
    arrays = random_arrays(gemm, problem)
    reference = gemm.reference(problem, arrays, SCALARS)
    a, b, c = (arrays[name].astype(float) for name in ("A", "B", "C"))
    for i, j in itertools.product(range(4), range(3)):
        products = [(a[p, i] if trans_a else a[i, p]) * (b[j, p] if trans_b else b[p, j]) for p in range(5)]
        added = 0.0 if beta_zero else 0.25 * c[i, j]
        assert reference.value[i, j] == pytest.approx(-1.5 * sum(products) + added, rel=1e-12, abs=1e-13)
        assert reference.magnitude[i, j] == pytest.approx(1.5 * sum(map(abs, products)) + abs(added), rel=1e-12)
    assert reference.terms == (5 if beta_zero else 6)
    assert reference.value.dtype == reference.magnitude.dtype == np.float64


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("trans_a", "beta_zero"), list(itertools.product((False, True), repeat=2)))
def test_gemv_reference_is_the_sum_of_products(trans_a, beta_zero, dtype):
    gemv = catalogue().get("gemv")
    problem = gemv.problem({"m": 6, "n": 5}, dtype, {"trans_a": trans_a, "beta_zero": beta_zero})
    arrays = random_arrays(gemv, problem)
    reference = gemv.reference(problem, arrays, SCALARS)
    a, x, y = (arrays[name].astype(float) for name in ("A", "x", "y"))
    for i in range(6):
        products = [(a[j, i] if trans_a else a[i, j]) * x[j] for j in range(5)]
        added = 0.0 if beta_zero else 0.25 * y[i]
        assert reference.value[i] == pytest.approx(-1.5 * sum(products) + added, rel=1e-12, abs=1e-13)
        assert reference.magnitude[i] == pytest.approx(1.5 * sum(map(abs, products)) + abs(added), rel=1e-12)
    assert reference.terms == (5 if beta_zero else 6)


@pytest.mark.parametrize("name", ["gemm", "gemv"])
def test_float32_arithmetic_stays_within_its_bound_and_a_lost_term_does_not(name):
    kernel = catalogue().get(name)
    problem = kernel.problem(dict.fromkeys(kernel.axes, 65))
    arrays = random_arrays(kernel, problem)
    scalars = {a.name: a.value(problem) for a in kernel.arguments if isinstance(a, Scalar)}
    reference = kernel.reference(problem, arrays, scalars)
    first, second = (t.name for t in kernel.tensors[:2])
    bound = 2 * np.sqrt(reference.terms) * 2.0**-24 * reference.magnitude
    good = np.float32(scalars["alpha"]) * (arrays[first] @ arrays[second])
    assert (np.abs(good - reference.value) <= bound).all()
    short = np.float32(scalars["alpha"]) * (arrays[first][:, :-1] @ arrays[second][:-1])
    assert (np.abs(short - reference.value) > bound).any()
