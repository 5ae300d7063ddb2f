import itertools

import numpy as np
import pytest
from waiting import until

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner import arrays, line_kinds
from tilewright.tuner.arrays import (
    DRAWN_KINDS,
    FACTOR_KINDS,
    ROTATING,
    DrawnAhead,
    input_kinds,
    random_arrays,
    rotating_kinds,
    scalar_values,
)

NAMES = ("gemm", "gemv", "linear", "softmax", "conv2d")
GEMM, GEMV, LINEAR, SOFTMAX, CONV2D = (catalogue().get(name) for name in NAMES)
PRODUCTS = [
    *(
        (GEMM, GEMM.problem({"m": 11, "n": 13, "k": 64}, "float32", {"trans_a": trans_a, "trans_b": trans_b}))
        for trans_a, trans_b in itertools.product((False, True), repeat=2)
    ),
    *((GEMV, GEMV.problem({"m": 11, "n": 64}, "float32", {"trans_a": trans_a})) for trans_a in (False, True)),
    (LINEAR, LINEAR.problem({"m": 11, "n": 13, "k": 64})),
]

IMAGES = {"batch": 2, "height": 5, "width": 6, "channels": 64, "filters": 3, "kernel_h": 3, "kernel_w": 2}
CONVOLUTIONS = [(CONV2D, CONV2D.problem(IMAGES, options={"layout": layout})) for layout in ("nchw", "nhwc")]


def along_sum(kernel, problem, kind):
    """Each factor with the summed axis last, as rows."""
    drawn = random_arrays(kernel, problem, 5, kind)
    factors = [tensor for tensor in kernel.tensors if tensor.summed(problem) is not None]
    return [np.moveaxis(drawn[t.name], t.summed(problem), -1) for t in factors]


def test_sums_in_float32_have_all_kinds_and_others_have_fewer():
    sizes, all_kinds = {"m": 2, "n": 2, "k": 2}, (*DRAWN_KINDS, *FACTOR_KINDS)
    assert input_kinds(GEMM, GEMM.problem(sizes)) == (*all_kinds, "one-array")
    assert input_kinds(GEMM, GEMM.problem(sizes | {"n": 3})) == all_kinds
    sizes["n"] = 3
    assert input_kinds(GEMM, GEMM.problem(sizes, "float64")) == ("normal", "uniform", "nonfinite", *FACTOR_KINDS)
    assert input_kinds(GEMM, GEMM.problem(sizes, "bfloat16")) == all_kinds
    assert set(all_kinds) - set(input_kinds(GEMM, GEMM.problem(sizes, "float16"))) == {"moderate"}
    rows = ("normal", "uniform", "mixed", "mixed-2", "mixed-3", "special")
    assert input_kinds(SOFTMAX, SOFTMAX.problem({"m": 2, "n": 2})) == rows


@pytest.mark.parametrize(("kernel", "problem"), PRODUCTS, ids=lambda value: getattr(value, "canonical", ""))
def test_lines_have_powers_of_two_of_their_own_and_their_products_stay_finite(kernel, problem):
    for kind in ("lines", "large-by-small", "small-by-large", "large", "small"):
        drawn = random_arrays(kernel, problem, 5, kind)
        normal = along_sum(kernel, problem, "normal")
        for changed, plain in zip(along_sum(kernel, problem, kind), normal, strict=True):
            factors = (changed / plain).reshape(-1, 64)
            assert np.array_equal(factors, np.repeat(factors[:, :1], 64, axis=1))
            assert np.all(np.frexp(factors)[0] == 0.5)
            several = len(factors) // 2 if kind not in {"large", "small"} else 0
            assert (len(np.unique(factors[:, 0])) > max(1, several)) is (several > 0)
        reference = kernel.reference(problem, drawn, scalar_values(kernel, problem))
        assert np.abs(reference.magnitude).max() < np.finfo(np.float32).max


def test_trials_take_turns_with_all_drawn_kinds_and_a_few_of_the_others():
    kinds = input_kinds(GEMM, GEMM.problem({"m": 2, "n": 3, "k": 2}))
    turns = [set(rotating_kinds(kinds, seed)) for seed in range(len(FACTOR_KINDS))]
    assert all(set(DRAWN_KINDS) <= turn and len(turn) == len(DRAWN_KINDS) + ROTATING for turn in turns)
    assert set().union(*turns) == set(kinds)


def test_all_sorts_of_rows_are_seen_though_rows_are_few():
    problem = SOFTMAX.problem({"m": 5, "n": 64})
    rows = np.concatenate([random_arrays(SOFTMAX, problem, 5, kind)["X"] for kind in ("mixed", "mixed-2", "mixed-3")])
    assert (np.ptp(rows, axis=1) == 0).sum() == 2  # zeros, and one number
    assert np.abs(rows).max() > 2.0**54
    assert (rows.mean(axis=1) > 900).any()


def test_scalars_have_other_values_with_some_kinds():
    problem = GEMM.problem({"m": 2, "n": 2, "k": 2}, options={"beta_zero": False})
    assert scalar_values(GEMM, problem) == {"alpha": 2.0, "beta": 0.5}
    assert scalar_values(GEMM, problem, "mixed") == {"alpha": -0.75, "beta": -1.25}


@pytest.mark.parametrize(
    ("kernel", "problem"), [*PRODUCTS, *CONVOLUTIONS], ids=lambda value: getattr(value, "canonical", "")
)
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


@pytest.mark.parametrize(("kernel", "problem"), PRODUCTS, ids=lambda value: getattr(value, "canonical", ""))
def test_a_few_results_are_not_finite_and_most_are(kernel, problem):
    drawn = random_arrays(kernel, problem, 5, "nonfinite")
    value = kernel.reference(problem, drawn, scalar_values(kernel, problem)).value
    assert 0 < np.mean(~np.isfinite(value)) < 0.5


def test_infinities_meet_zeros_and_one_another():
    problem = GEMM.problem({"m": 160, "n": 160, "k": 8})
    drawn = random_arrays(GEMM, problem, 5, "nonfinite")
    value = GEMM.reference(problem, drawn, scalar_values(GEMM, problem)).value
    rows, columns = (np.isnan(drawn["A"]).any(axis=1), np.isnan(drawn["B"]).any(axis=0))
    assert np.isposinf(value).any()
    assert np.isneginf(value).any()
    assert np.isnan(value[~rows][:, ~columns]).any()


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


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_types_get_fresh_numbers_of_their_own_type_that_are_finite_or_meant_not_to_be(dtype):
    problem = GEMM.problem({"m": 11, "n": 13, "k": 64}, dtype)
    for kind in input_kinds(GEMM, problem):
        first, second = (random_arrays(GEMM, problem, seed, kind) for seed in (5, 6))
        for name, array in first.items():
            assert array.dtype == np.dtype(dtype)
            assert not np.array_equal(array, second[name]) or kind in {"ones", "zeros"}
            assert np.isfinite(array.astype(np.float32)).all() or kind in {"nonfinite", "special", "special-2"}


def test_partial_sums_of_cancelling_float16_pass_its_range_and_results_do_not():
    problem = GEMM.problem({"m": 11, "n": 13, "k": 256}, "float16")
    first, second = along_sum(GEMM, problem, "cancelling")
    partial = first[..., :128].astype(np.float64) @ second[..., :128].astype(np.float64).T
    reference = GEMM.reference(problem, random_arrays(GEMM, problem, 5, "cancelling"), scalar_values(GEMM, problem))
    assert np.mean(np.abs(partial) > 65504) > 0.5
    assert np.abs(reference.value).max() < 65504
    assert np.abs(reference.value).max() > 0


def test_what_is_drawn_ahead_is_what_would_be_drawn_in_any_order():
    problem = GEMM.problem({"m": 5, "n": 6, "k": 7})
    ahead = DrawnAhead(GEMM, problem, 3, DRAWN_KINDS[1:])
    for kind in (
        DRAWN_KINDS[3],
        *DRAWN_KINDS,
        *FACTOR_KINDS,
    ):  # one before its turn, and the first, which was not asked for
        for name, array in ahead.take(kind).items():
            np.testing.assert_array_equal(array, random_arrays(GEMM, problem, 3, kind)[name])
    ahead.close()


def test_only_one_kind_is_drawn_until_it_is_taken():
    ahead = DrawnAhead(GEMM, GEMM.problem({"m": 5, "n": 6, "k": 7}), 3, DRAWN_KINDS[1:])
    until(lambda: ahead.is_drawn(DRAWN_KINDS[1]))
    assert not ahead.is_drawn(DRAWN_KINDS[2])
    ahead.take(DRAWN_KINDS[1])
    until(lambda: ahead.is_drawn(DRAWN_KINDS[2]))
    ahead.close()


def test_several_kinds_are_drawn_ahead_of_each_other_where_that_is_asked_for():
    kinds = DRAWN_KINDS[1:5]
    ahead = DrawnAhead(GEMM, GEMM.problem({"m": 5, "n": 6, "k": 7}), 3, kinds, at_once=3)
    until(lambda: all(ahead.is_drawn(kind) for kind in kinds[:3]))
    assert not ahead.is_drawn(kinds[3])
    ahead.take(kinds[1])
    until(lambda: ahead.is_drawn(kinds[3]))
    ahead.close()


def test_what_was_to_be_drawn_ahead_is_drawn_at_once_after_the_end():
    """A family's inputs may still be in use when those of another problem take their place."""
    problem = GEMM.problem({"m": 5, "n": 6, "k": 7})
    ahead = DrawnAhead(GEMM, problem, 3, DRAWN_KINDS[1:], at_once=2)
    ahead.close()
    for kind in DRAWN_KINDS[1:]:
        assert not ahead.is_drawn(kind)
        np.testing.assert_array_equal(ahead.take(kind)["A"], random_arrays(GEMM, problem, 3, kind)["A"])


def test_kinds_are_drawn_from_seeds_of_their_own():
    drawn = {kind: random_arrays(*PRODUCTS[0], 5, kind)["A"] for kind in ("normal", "nonfinite")}
    same = drawn["normal"] == drawn["nonfinite"]
    assert np.mean(same) < 0.1


def test_of_an_odd_number_of_lines_the_first_factor_has_the_larger_half_small_and_its_partner_the_smaller():
    problem = GEMM.problem({"m": 5, "n": 7, "k": 64})
    drawn = random_arrays(GEMM, problem, 5, "smallest")
    assert np.count_nonzero(np.abs(drawn["A"]).max(axis=1) < 2.0**-100) == 3
    assert np.count_nonzero(np.abs(drawn["B"]).max(axis=0) < 2.0**-100) == 3


def test_constant_lines_are_numbers_of_three_bits_near_the_first_and_sparse_ones_keep_a_fiftieth():
    lines = np.random.default_rng(3).standard_normal((40, 2000)).astype(np.float32)
    sparse, first = lines.copy(), lines[0].copy()
    line_kinds._constant(lines)
    assert np.array_equal(lines, np.broadcast_to(lines[0], lines.shape))
    assert np.all(np.abs(lines[0] - first) <= np.abs(first) / 8)
    assert np.all(np.frexp(lines[0])[0] * 8 % 1 == 0)
    line_kinds._sparse(sparse)
    assert np.count_nonzero(sparse) / sparse.size == pytest.approx(0.02, abs=0.002)
