import math

import numpy as np
import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.dtypes import UNIT_ROUNDOFF
from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Reference
from tilewright.tuner.arrays import DRAWN_KINDS, random_arrays, scalar_values
from tilewright.tuner.loop.verify import C_DEFAULT, compare, library_widening, speaks_for_library, tolerance, worse
from tilewright.tuner.outcome import Verification


def product_reference(rng, m=37, n=29, k=113):
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    value = a.astype(np.float64) @ b.astype(np.float64)
    magnitude = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    return a, b, Reference(value, magnitude, k)


def test_a_float32_product_is_within_its_bound():
    a, b, reference = product_reference(np.random.default_rng(0))
    verification = compare(a @ b, reference, "float32")
    assert verification.wrong == 0
    assert verification.first_wrong is None
    assert 0 < verification.bound_ratio < 1


def test_a_dropped_term_is_found_and_located():
    a, b, reference = product_reference(np.random.default_rng(1))
    out = a @ b
    out[5, 7] -= a[5, 3] * b[3, 7]
    verification = compare(out, reference, "float32")
    assert verification.wrong == 1
    assert verification.first_wrong == (5, 7)
    got, expected = f"{out[5, 7]:.9g}", f"{reference.value[5, 7]:.9g}"
    assert f"first at (5, 7): got {got}, expected {expected}" in verification.message()


@pytest.mark.parametrize(("bounds", "wrong"), [(1.9, 0), (2.1, 1)])
def test_the_threshold_is_c_bounds(bounds, wrong):
    reference = Reference(np.full((3, 3), 10.0), np.full((3, 3), 16.0), 4)
    out = reference.value.copy()
    out[2, 1] += bounds * 2 * UNIT_ROUNDOFF["float32"] * 16.0
    verification = compare(out, reference, "float32")
    assert C_DEFAULT == 2.0
    assert verification.bound_ratio == pytest.approx(bounds, rel=1e-6)
    assert verification.wrong == wrong


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_poisoned_element_is_wrong_with_an_infinite_ratio(poison):
    a, b, reference = product_reference(np.random.default_rng(2))
    out = a @ b
    out[36, 28] = poison
    verification = compare(out, reference, "float32")
    assert (verification.bound_ratio, verification.wrong, verification.first_wrong) == (math.inf, 1, (36, 28))


def test_where_nothing_is_summed_only_a_last_subnormal_digit_may_be_off():
    reference, digit = Reference(np.zeros(4), np.zeros(4), 1), np.finfo(np.float32).smallest_subnormal
    assert compare(np.zeros(4, np.float32), reference, "float32").bound_ratio == 0.0
    assert compare(np.array([0, 0, digit, 0], np.float32), reference, "float32").bound_ratio == 1.0
    off = compare(np.array([0, 0, 3 * digit, 0], np.float32), reference, "float32")
    assert (off.bound_ratio, off.wrong, off.first_wrong) == (3.0, 1, (2,))


@pytest.mark.parametrize("k", [1, 3, 16, 500])
def test_products_of_the_smallest_numbers_are_held_to_what_fp32_can(k):
    gemm = catalogue().get("gemm")
    problem = gemm.problem({"m": 90, "n": 80, "k": k})
    arrays = random_arrays(gemm, problem, 1, "smallest")
    reference = gemm.reference(problem, arrays, scalar_values(gemm, problem))
    assert np.mean(np.abs(reference.value) < 2.0**-126) > 0.2
    sums = np.zeros((90, 80), np.float32)
    for a, b in zip(arrays["A"].T, arrays["B"], strict=True):
        sums += np.outer(a, b)
    assert compare(2 * sums, reference, "float32").is_right
    flushed = np.where(np.abs(arrays["A"]) < 2.0**-126, np.float32(0), arrays["A"]) @ arrays["B"]
    assert not compare(2 * flushed, reference, "float32").is_right


@pytest.mark.parametrize(("expected", "got"), [(math.inf, math.nan), (math.nan, 1.0), (-math.inf, math.inf)])
def test_another_value_that_is_not_finite_is_wrong(expected, got):
    gemm = catalogue().get("gemm")
    problem = gemm.problem({"m": 90, "n": 80, "k": 70})
    arrays = random_arrays(gemm, problem, 1, "nonfinite")
    reference = gemm.reference(problem, arrays, scalar_values(gemm, problem))
    out = reference.value.astype(np.float32)
    assert compare(out, reference, "float32").is_right
    (place,) = np.argwhere(np.isnan(out) if math.isnan(expected) else out == expected)[:1]
    out[tuple(place)] = got
    assert compare(out, reference, "float32").first_wrong == tuple(place)


def test_a_reference_that_is_not_finite_asks_for_the_same_value():
    value = np.array([math.inf, math.nan, -math.inf, 1.0])
    reference = Reference(value, np.array([math.inf, math.nan, math.inf, 1.0]), 2)
    assert compare(value.astype(np.float32), reference, "float32").wrong == 0
    assert compare(np.ones(4, np.float32), reference, "float32").wrong == 3


def test_a_wrong_element_beyond_the_first_chunk_is_located():
    size = (1 << 18) + 1000
    reference = Reference(np.ones((2, size)), np.ones((2, size)), 1)
    out = np.ones((2, size), np.float32)
    out[1, size - 5] = 2
    out[1, size - 3] = 2
    verification = compare(out, reference, "float32")
    assert (verification.wrong, verification.first_wrong) == (2, (1, size - 5))


def test_the_tolerance_array_is_the_bound_with_c_one():
    reference = Reference(np.zeros((2, 2)), np.array([[1.0, 2.0], [0.0, 4.0]]), 9)
    expected = 3 * 2.0**-53 * reference.magnitude
    expected[1, 0] = 3 * np.finfo(np.float64).smallest_subnormal
    assert tolerance(reference, "float64").tolist() == expected.tolist()


def test_another_shape_is_refused():
    reference = Reference(np.zeros((2, 3)), np.zeros((2, 3)), 1)
    with pytest.raises(ValueError, match=r"\(3, 2\)"):
        compare(np.zeros((3, 2), np.float32), reference, "float32")


def test_a_coarser_roundoff_admits_coarser_errors():
    reference = Reference(np.full((2, 2), 10.0), np.full((2, 2), 16.0), 4, unit_roundoff=2.0**-10)
    out = reference.value + 1.5 * 2 * 2.0**-10 * 16.0
    verification = compare(out, reference, "float32")
    assert (verification.bound_ratio, verification.wrong) == (1.5, 0)
    assert compare(out, Reference(reference.value, reference.magnitude, 4), "float32").wrong == 4


@pytest.mark.parametrize(("accuracy", "holds"), [("fp32", False), ("fp32-fma", False), ("tf32", True)])
def test_inputs_cut_to_tf32_are_right_only_where_the_caller_admits_it(accuracy, holds):
    gemm = catalogue().get("gemm")
    problem = gemm.problem({"m": 40, "n": 30, "k": 512}, "float32", {"accuracy": accuracy})
    for kind in DRAWN_KINDS:
        arrays = random_arrays(gemm, problem, 3, kind)
        reference = gemm.reference(problem, arrays, scalar_values(gemm, problem))
        a, b = (cut_to_tf32(arrays[name]).astype(np.float64) for name in "AB")
        with np.errstate(invalid="ignore"):
            product = a @ b
        assert compare((2.0 * product).astype(np.float32), reference, "float32").is_right is holds, kind


def cut_to_tf32(numbers):
    return (numbers.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def test_float64_has_one_accuracy_only():
    with pytest.raises(InvalidProblemError, match="tf32 is for float32"):
        catalogue().get("gemm").problem({"m": 1, "n": 1, "k": 1}, "float64", {"accuracy": "tf32"})
    catalogue().get("gemm").problem({"m": 1, "n": 1, "k": 1}, "float64", {"accuracy": "fp32"})


def test_the_worse_is_the_one_with_more_wrong_components_then_the_larger_ratio():
    right, high, wrong = Verification(0.1, 0), Verification(1.9, 0), Verification(0.5, 3)
    assert worse(right, high) is high
    assert worse(high, wrong) is wrong
    assert not Verification(math.nan, 0).is_right


def test_a_message_names_the_inputs_that_were_not_the_usual():
    assert "with scaled inputs" in Verification(3.0, 1, (0,), "scaled").message()
    assert "inputs" not in Verification(3.0, 1, (0,)).message()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_rounding_to_a_half_type_costs_is_no_error_and_what_goes_beyond_is(dtype):
    _, _, reference = product_reference(np.random.default_rng(4))
    out = reference.value.astype(np.float32).astype(dtype)
    assert compare(out, reference, dtype).wrong == 0
    place = np.unravel_index(np.argmin(np.abs(reference.value)), out.shape)
    out[place] = np.nextafter(out[place], np.array(9.0, dtype), dtype=out.dtype)
    out[place] = np.nextafter(out[place], np.array(9.0, dtype), dtype=out.dtype)
    smallest = compare(out, Reference(reference.value, np.abs(reference.value), 1), dtype)
    assert (smallest.wrong, smallest.first_wrong) == (1, tuple(map(int, place)))


def test_what_tensor_cores_cut_off_of_a_long_sum_is_no_error_where_it_is_stored_in_a_half_type():
    """4112 lies between the bfloat16 numbers 4096 and 4128; an H100 summed 8,020 terms of one sign to below it."""
    value, terms = np.array([4112.108]), 8020
    out = np.array([4096.0])
    assert compare(out.astype("bfloat16"), Reference(value, value, terms), "bfloat16").wrong == 0
    assert compare(out.astype("bfloat16"), Reference(value + 0.5, value, terms), "bfloat16").wrong == 1
    assert compare((value - 0.108).astype(np.float32), Reference(value, value, terms), "float32").wrong == 1


@pytest.mark.parametrize(("dtype", "overflow"), [("float16", 65520.0), ("bfloat16", (2 - 2**-8) * 2.0**127)])
def test_infinity_is_right_where_a_sum_within_the_bound_overflows_the_half_type(dtype, overflow):
    value = np.array([overflow, -overflow, 0.9 * overflow, overflow])
    out = np.array([math.inf, -math.inf, math.inf, -math.inf]).astype(dtype)
    verification = compare(out, Reference(value, np.abs(value), 4), dtype)
    assert (verification.wrong, verification.first_wrong) == (2, (2,))
    assert compare(np.full(4, math.nan).astype(dtype), Reference(value, np.abs(value), 4), dtype).wrong == 4


@pytest.mark.parametrize(
    ("bound_ratio", "times"), [(0.5, 1.0), (1.6, 1.0), (6.6, 4.125), (math.inf, 1.0), (math.nan, 1.0), (None, 1.0)]
)
def test_bounds_are_widened_to_the_librarys_error_and_a_quarter_more(bound_ratio, times):
    assert library_widening(bound_ratio) == times


def test_a_bound_that_is_nan_admits_nothing_but_the_value_itself():
    reference = Reference(np.array([1.0, 2.0]), np.array([math.nan, math.nan]), 3)
    verification = compare(np.array([1.0, 2.5], np.float32), reference, "float32")
    assert (verification.bound_ratio, verification.wrong, verification.first_wrong) == (math.inf, 1, (1,))


@pytest.mark.parametrize("inputs", [*DRAWN_KINDS, "smallest", "special", "special-2"])
@pytest.mark.parametrize("wrong", [0, 3])
def test_a_library_may_be_wrong_about_what_few_promise_and_about_nothing_else(inputs, wrong):
    found = Verification(2.0, wrong, None, inputs=inputs)
    promised = inputs not in {"nonfinite", "smallest", "special", "special-2"}
    assert speaks_for_library(found) is (wrong == 0 or promised)
