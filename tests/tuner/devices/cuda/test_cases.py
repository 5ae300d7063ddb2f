"""Inputs and what is expected of them, made for a family's largest size and lent to smaller ones; activated sums."""

import math

import numpy as np
import pytest
from contracts.made_gpu import at

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.dtypes import SMALLEST_NORMAL, UNIT_ROUNDOFF
from tilewright.kernels.family import Family
from tilewright.kernels.linear.reference import ACTIVATIONS, activated, terms
from tilewright.kernels.sources.source import resolved
from tilewright.tuner.arrays import DISTINCT_ROWS, NORMAL, input_kinds, random_arrays
from tilewright.tuner.devices.cuda.arrays import ProblemArrays
from tilewright.tuner.devices.cuda.cases import Cases, case_bytes, fit_at_once, have_first_rows
from tilewright.tuner.loop.verify import bound_factor

GEMM, LINEAR, SOFTMAX = (catalogue().get(name) for name in ("gemm", "linear", "softmax"))
FAMILY = Family.of(GEMM, {"m": (1, 40), "n": 24, "k": 33})
SEED = 7


@pytest.fixture
def kept(gpu):
    return Cases(gpu, GEMM, FAMILY.at(40), SEED, is_kept=True)


@pytest.fixture
def smaller(gpu, kept):
    return ProblemArrays(gpu, GEMM, FAMILY.at(13), SEED, kept)


def computed(arrays, m):
    """What is right for the inputs that lie there."""
    sizes = {"A": (m, 33), "B": (33, 24), "C": (m, 24)}
    inputs = {name: at(arrays.addresses[name], math.prod(n), np.float32).reshape(n) for name, n in sizes.items()}
    with np.errstate(all="ignore"):
        return GEMM.reference(FAMILY.at(m), inputs, arrays.scalars()).value.astype(np.float32).reshape(-1)


def launched(arrays, m):
    arrays.reset_written()
    at(arrays.addresses["C"], m * 24, np.float32)[:] = computed(arrays, m)
    return arrays.inspect()


def test_a_smaller_size_has_the_first_rows_of_each_kind_and_what_is_expected_of_them(gpu, kept, smaller):
    largest = ProblemArrays(gpu, GEMM, FAMILY.at(40), SEED, kept)
    for kind in smaller.kinds:
        for arrays in (largest, smaller):
            arrays.use(kind)
        first = at(smaller.addresses["A"], 13 * 33, np.float32)
        np.testing.assert_array_equal(first, at(largest.addresses["A"], 13 * 33, np.float32))
        for arrays, m in ((largest, 40), (smaller, 13)):
            inspection = launched(arrays, m)
            assert (inspection.verification.wrong, inspection.trespasses()) == (0, [])
            assert inspection.verification.inputs == kind


def test_a_wrong_row_and_a_write_behind_the_last_one_are_found_at_a_smaller_size(smaller):
    launched(smaller, 13)
    out = at(smaller.addresses["C"], 14 * 24, np.float32)
    out[12 * 24 + 5] = 1e9
    assert smaller.inspect().verification.first_wrong == (12, 5)
    out[13 * 24] = 0.0
    assert smaller.inspect().trespasses() == ["1 words of 4 bytes beside C were written"]


def test_a_bound_that_one_size_widened_is_not_that_of_others(gpu, kept, smaller):
    before = smaller.case.references["C"].factor
    smaller.case.widen_bound(3.0)
    smaller.case.admits_library = True
    other = ProblemArrays(gpu, GEMM, FAMILY.at(20), SEED, kept)
    assert other.case.references["C"].factor == before
    assert not other.case.admits_library


def test_cases_serve_the_sizes_up_to_their_own(kept):
    assert kept.serve(GEMM, FAMILY.at(1), SEED)
    assert not kept.serve(GEMM, FAMILY.at(41), SEED)
    assert not kept.serve(GEMM, FAMILY.at(1), SEED + 1)
    assert not kept.serve(GEMM, FAMILY.exact(1), SEED)
    assert not kept.serve(GEMM, Family.of(GEMM, {"m": (1, 40), "n": 25, "k": 33}).at(4), SEED)
    assert not kept.serve(LINEAR, Family.of(LINEAR, {"m": (1, 40), "n": 24, "k": 33}).at(4), SEED)


@pytest.mark.parametrize(
    ("kernel", "shape", "options", "are_first"),
    [
        (GEMM, {"m": (1, 40), "n": 24, "k": 33}, {}, True),
        (LINEAR, {"m": (1, 40), "n": 24, "k": 33}, {"activation": "gelu"}, True),
        (GEMM, {"m": 4, "n": 24, "k": 33, "batch": (1, 6)}, {}, True),
        (GEMM, {"m": (1, 24), "n": 24, "k": 33}, {"trans_b": True}, False),
        (SOFTMAX, {"m": (1, 40), "n": 24}, {}, False),
    ],
    ids=["gemm", "linear", "matrices", "one array for both factors", "no product"],
)
def test_only_rows_of_products_are_the_first_of_more(kernel, shape, options, are_first):
    family = Family.of(kernel, shape, "", options)
    assert have_first_rows(kernel, family.at(family.high)) is are_first
    assert not have_first_rows(kernel, family.exact(family.high))


def test_cases_are_kept_where_all_kinds_have_room():
    """18 kinds of A (40, 33), B (33, 24) and C (40, 24), and 16 bytes for each number that is right of C."""
    kinds = len(input_kinds(GEMM, FAMILY.at(40)))
    needed = kinds * case_bytes(GEMM, FAMILY.at(40))
    assert case_bytes(GEMM, FAMILY.at(40)) >= 4 * (40 * 33 + 33 * 24) + 16 * 40 * 24
    assert fit_at_once(GEMM, FAMILY.at(40), 2 * needed)
    assert not fit_at_once(GEMM, FAMILY.at(40), 2 * needed - 2)


def test_rows_of_inputs_that_are_not_timed_repeat():
    problem = FAMILY.at(DISTINCT_ROWS + 50)
    for kind, repeats in (("lines", True), (NORMAL, False)):
        rows = random_arrays(GEMM, problem, SEED, kind)["A"]
        assert rows.shape == (DISTINCT_ROWS + 50, 33)
        assert np.array_equal(rows[:50], rows[DISTINCT_ROWS:]) is repeats
        assert len(np.unique(rows[:DISTINCT_ROWS], axis=0)) == DISTINCT_ROWS


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_gpu_activates_sums_as_the_host_does(gpu, activation):
    problem = LINEAR.problem({"m": 7, "n": 50, "k": 9}, "float32", {"activation": activation})
    generator = np.random.default_rng(3)
    z = generator.normal(0, 1, (7, 50)) * np.exp2(generator.integers(-12, 8, (7, 50)))
    z[0, :4] = np.inf, -np.inf, np.nan, 0.0
    magnitude, b = np.abs(z) + generator.random((7, 50)), generator.normal(0, 1, 50)
    there, count = LINEAR.product.there, terms(problem)
    text = gpu.compilation(resolved(there.source), there.macros(problem), "finish")
    value, size = z.copy(), magnitude.copy()
    numbers = math.sqrt(count), UNIT_ROUNDOFF["float32"], SMALLEST_NORMAL["float32"]
    finish = gpu.load(gpu.compile(text).cubin, "finish", "PPPQQddd")
    finish.enqueue(None, value.ctypes.data, size.ctypes.data, b.ctypes.data, 50, 350, *numbers)
    expected = activated(problem, {"b": b}, z.copy(), magnitude.copy())
    assert bound_factor(expected.terms, expected.unit_roundoff, "float32") > 0
    np.testing.assert_allclose(value, expected.value, rtol=1e-12, atol=1e-300)
    finite = np.isfinite(expected.value)
    np.testing.assert_allclose(size[finite], expected.magnitude[finite], rtol=1e-12)
