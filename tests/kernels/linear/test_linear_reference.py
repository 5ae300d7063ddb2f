import itertools
import math

import numpy as np
import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.dtypes import UNIT_ROUNDOFF
from tilewright.kernels.linear.reference import ACTIVATIONS
from tilewright.tuner.arrays import random_arrays

LINEAR = catalogue().get("linear")
SCALAR_FORMS = {
    "none": lambda z: z,
    "relu": lambda z: max(z, 0.0),
    "sigmoid": lambda z: 1 / (1 + math.exp(-z)),
    "tanh": math.tanh,
    "silu": lambda z: z * math.exp(min(z, 0)) / (1 + math.exp(-abs(z))),
    "gelu": lambda z: z * (1 + math.erf(z / math.sqrt(2))) / 2,
}


def arrays_of(problem, scale=1.0):
    rng = np.random.default_rng(11)
    draw = {t.name: rng.standard_normal(t.shape(problem)) * scale for t in LINEAR.tensors if t.role == "input"}
    return {name: values.astype(problem.dtype) for name, values in draw.items()}


def apply(activation, z):
    return np.vectorize(SCALAR_FORMS[activation], otypes=[np.float64])(z.astype(np.float64))


def ratio(out, reference, dtype):
    """The worst error in units of the bound, c = 1; an error where the bound is 0 is infinite."""
    bound = math.sqrt(reference.terms) * UNIT_ROUNDOFF[dtype] * reference.magnitude
    error = np.abs(out.astype(np.float64) - reference.value)
    return float(np.divide(error, bound, out=np.where(error > 0, np.inf, 0.0), where=bound > 0).max())


def problem_of(activation, dtype="float32", m=40, n=50, k=65):
    return LINEAR.problem({"m": m, "n": n, "k": k}, dtype, {"activation": activation})


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_reference_is_the_activated_sum(activation, dtype):
    problem = problem_of(activation, dtype, m=4, n=3, k=5)
    arrays = arrays_of(problem)
    reference = LINEAR.reference(problem, arrays, {})
    x, w, b = (arrays[name].astype(float).tolist() for name in ("X", "W", "b"))
    for i, j in itertools.product(range(4), range(3)):
        z = math.fsum([*(x[i][p] * w[j][p] for p in range(5)), b[j]])
        assert reference.value[i, j] == pytest.approx(SCALAR_FORMS[activation](z), rel=1e-12, abs=1e-14)
    assert reference.terms == 6
    assert reference.value.dtype == reference.magnitude.dtype == np.float64


def test_the_error_function_is_exact_to_the_last_digits_wherever_it_is_a_normal_number():
    x = np.concatenate([np.linspace(-7, 26, 40_001), np.linspace(-1e-3, 1e-3, 101)])
    z = -math.sqrt(2) * x
    exact = [0.5 * math.erfc(-math.sqrt(0.5) * one) for one in z]
    np.testing.assert_allclose(ACTIVATIONS["gelu"].value(z), z * exact, rtol=1e-15)
    infinite = ACTIVATIONS["gelu"].value(np.array([np.inf, np.nan, -50.0]))
    np.testing.assert_array_equal(infinite, [np.inf, np.nan, -0.0])


def test_without_activation_the_magnitude_is_that_of_the_sum():
    problem = problem_of("none", m=2, n=3, k=4)
    arrays = arrays_of(problem)
    magnitude = LINEAR.reference(problem, arrays, {}).magnitude
    assert magnitude == pytest.approx(np.abs(arrays["X"]) @ np.abs(arrays["W"]).T + np.abs(arrays["b"]), rel=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("k", "scale"), [(1, 1.0), (65, 0.05), (65, 0.3), (784, 1.0), (784, 8.0)])
def test_float32_arithmetic_stays_within_the_bound(activation, k, scale):
    """Small and saturating arguments alike; a sum in float32, the activation rounded once."""
    problem = problem_of(activation, k=k)
    arrays = arrays_of(problem, scale)
    z = arrays["X"] @ arrays["W"].T + arrays["b"]
    with np.errstate(over="ignore"):
        good = apply(activation, np.clip(z, -700, 700) if activation == "sigmoid" else z).astype(np.float32)
    reference = LINEAR.reference(problem, arrays, {})
    assert np.isfinite(reference.magnitude).all()
    assert ratio(good, reference, "float32") < 1


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bug", ["a lost term", "no bias", "the bias of a neighbour", "half precision"])
def test_a_bug_in_the_sum_is_over_the_bound(activation, dtype, bug):
    problem = problem_of(activation, dtype, k=784)
    arrays = arrays_of(problem, 0.2)
    reference = LINEAR.reference(problem, arrays, {})
    x, w, b = (arrays[name].astype(np.float64) for name in ("X", "W", "b"))
    wrong = {
        "a lost term": lambda: x[:, :-1] @ w[:, :-1].T + b,
        "no bias": lambda: x @ w.T,
        "the bias of a neighbour": lambda: x @ w.T + np.roll(b, 1),
        "half precision": lambda: x.astype(np.float16).astype(np.float64) @ w.T + b,
    }[bug]()
    assert ratio(apply(activation, wrong), reference, dtype) > 10


@pytest.mark.parametrize(("wanted", "computed"), list(itertools.permutations(ACTIVATIONS, 2)))
def test_another_activation_is_over_the_bound(wanted, computed):
    problem = problem_of(wanted)
    arrays = arrays_of(problem, 0.5)
    z = arrays["X"].astype(np.float64) @ arrays["W"].T.astype(np.float64) + arrays["b"]
    assert ratio(apply(computed, z), LINEAR.reference(problem, arrays, {}), "float32") > 10


def test_gelu_by_tanh_is_over_the_bound_and_both_exact_forms_are_not():
    problem = problem_of("gelu")
    arrays = arrays_of(problem, 0.3)
    reference = LINEAR.reference(problem, arrays, {})
    z = (arrays["X"].astype(np.float64) @ arrays["W"].T.astype(np.float64) + arrays["b"]).astype(np.float32)
    by_tanh = 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    assert ratio(by_tanh, reference, "float32") > 10
    argument = z * np.float32(math.sqrt(0.5))
    one = np.float32(1)
    by_erf = np.float32(0.5) * z * (one + np.vectorize(math.erf)(argument).astype(np.float32))
    by_erfc = np.float32(0.5) * z * np.vectorize(math.erfc)(-argument).astype(np.float32)
    assert by_erf.dtype == by_erfc.dtype == np.float32
    assert max(ratio(by_erf, reference, "float32"), ratio(by_erfc, reference, "float32")) < 1


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("reach", [1e-6, 1e-2, 0.5, 3.0])
def test_no_slope_between_the_bounds_is_steeper_than_the_steepest(activation, reach):
    centre = np.linspace(-9, 9, 301)
    low, high = centre - reach, centre + reach
    form = ACTIVATIONS[activation]
    steepest = form.steepest(low, high)
    places = np.linspace(low, high, 21)
    slopes = np.abs(np.diff(form.value(places), axis=0)) / np.diff(places, axis=0)
    # Differences of rounded values: 1e-9 is what float64 leaves of a slope over steps of 1e-7.
    assert (slopes <= steepest * (1 + 1e-9) + 1e-8).all()
    # And not much looser than it must be: twice the slope found, but for gelu's flat side.
    if reach < 0.1 and activation in {"none", "sigmoid", "tanh"}:
        assert (steepest <= 2 * slopes.max(axis=0) + 1e-8).all()


def test_where_relu_is_surely_off_only_zero_is_right():
    problem = problem_of("relu")
    arrays = arrays_of(problem)
    reference = LINEAR.reference(problem, arrays, {})
    off = reference.magnitude == 0
    assert 0.3 < off.mean() < 0.6
    assert (reference.value[off] == 0).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_finite_number_has_a_bound_also_of_an_infinite_sum(activation):
    """A layer with a gate multiplies it by another sum, whose error must have its bound."""
    for kernel in (LINEAR, catalogue().get("linear_gated")):
        if activation not in next(o.values for o in kernel.options if o.name == "activation"):
            continue
        problem = kernel.problem({"m": 30, "n": 40, "k": 20}, "bfloat16", {"activation": activation})
        reference = kernel.reference(problem, random_arrays(kernel, problem, 3, "nonfinite"), {})
        assert not np.isfinite(reference.value).all()
        assert np.isfinite(reference.magnitude[np.isfinite(reference.value)]).all()
