"""Configurations of a space: the feasible ones are found without visiting every point."""

import itertools
import math
import operator
import pickle
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sampling import shape_or_example

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.enumeration.lanes import LARGEST, Lanes, Split, Unsuitable, lanes
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration, Constraint, SearchSpace, Values, VariantSpace, choice

LIMITS = Limits(compute_capability=(9, 0), multiprocessors=132, memory_bytes=140 * 2**30, max_shared_bytes=227 * 1024)
PROBLEM = Problem("toy", (("m", 48),), "float32", ())
NAMES = ("PA", "PB", "PC", "PD")

# What constraints do with numbers: functions of two, each also of arrays where arrays can do the same.
BINARY = (
    *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.truediv),
    # By less than 80: shifted by what was itself shifted, a number would take all memory.
    *(operator.and_, operator.or_, operator.xor, lambda a, b: a << b % 80, operator.rshift, operator.pow),
    *(operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge),
    *(min, max, math.gcd, math.hypot),
    *(lambda a, b: a and b, lambda a, b: a or b, lambda a, b: a if b else not a, lambda a, b: a in (b, 3, 8)),
    *(lambda a, b: {4: b, 2: 1}.get(a, 7), lambda a, _b: a.bit_length() if isinstance(a, int) else round(a)),
    *(lambda a, b: all(x > 1 for x in (a, b)), lambda a, b: -abs(a) + b, lambda a, b: math.ceil(a / 3) + b),
)
MISTAKES = (ArithmeticError, TypeError, ValueError)


def expressions(names):
    """Functions of a configuration, the problem's size and nothing else, as trees of what constraints are made of."""
    read = st.sampled_from(names).map(lambda name: lambda c: getattr(c, name))
    item = st.sampled_from(names).map(lambda name: lambda c: c[name])
    constant = st.integers(-3, 70).map(lambda number: lambda _c: number)

    def grow(part):
        return st.tuples(st.sampled_from(BINARY), part, part).map(
            lambda node: lambda c: node[0](node[1](c), node[2](c) if node[0] is not BINARY[11] else 2)
        )

    return st.recursive(read | item | constant, grow, max_leaves=7)


def forgiving(expression):
    """The constraint that this expression is, false where it cannot be computed."""

    def holds(c, _p, _d):
        try:
            return expression(c)
        except MISTAKES:
            return False

    return holds


@st.composite
def spaces(draw):
    """Up to 4096 points, up to three constraints."""
    values = st.lists(st.integers(0, 70), min_size=1, max_size=8, unique=True)
    parameters = tuple(choice(name, *draw(values)) for name in NAMES[: draw(st.integers(2, 4))])
    trees = draw(st.lists(expressions([p.name for p in parameters]), max_size=3))
    constraints = tuple(Constraint(f"c{i}", forgiving(tree)) for i, tree in enumerate(trees))
    return SearchSpace((VariantSpace("v", parameters, constraints),), PROBLEM, LIMITS)


def brute_force(space):
    """All feasible configurations in order, each constraint asked of each point in plain numbers."""
    for variant in space.spaces:
        names = [p.name for p in variant.parameters]
        for point in itertools.product(*(p.values for p in variant.parameters)):
            values = dict(zip(names, point, strict=True))
            if variant.violated(Values(values), space.problem, space.limits) is None:
                yield Configuration.of(variant.variant, values)


def space_of(values, *constraints):
    """One variant whose parameters PA to PD all take these values."""
    named = tuple(Constraint(f"c{i}", holds) for i, holds in enumerate(constraints))
    return SearchSpace((VariantSpace("v", tuple(choice(n, *values) for n in NAMES), named),), PROBLEM, LIMITS)


@settings(max_examples=150, deadline=None)
@given(spaces())
def test_it_is_what_brute_force_finds_in_the_same_order(space):
    assert list(space.feasible) == list(brute_force(space))


@pytest.mark.parametrize("kernel", catalogue().kernels(), ids=lambda k: k.name)
def test_declared_spaces_are_what_brute_force_finds(kernel):
    shape = {axis: size + 13 * i for i, (axis, size) in enumerate(kernel.example_shape.items())}
    problem = kernel.problem(shape_or_example(kernel, shape), kernel.dtypes[-1])
    variants = [v for v in kernel.usable_variants(problem, LIMITS) if v.space().product_size() < 10_000]
    space = kernel.space(problem, LIMITS, [v.name for v in variants])
    assert list(space.feasible) == list(brute_force(space))


def test_a_constraint_that_needs_another_one_first_is_not_asked_too_early_in_effect():
    def divides(c, _p, _d):
        return 64 % (c.PA - c.PB) == 0  # an error where they are equal

    first = space_of(range(1, 9), lambda c, _p, _d: c.PA > c.PB, divides)
    assert list(first.feasible) == list(brute_force(first))
    with pytest.raises(ZeroDivisionError):
        len(space_of(range(1, 9), divides))


@pytest.mark.parametrize(
    "constraint",
    [
        lambda c, _p, _d: (c.PA > 0) + (c.PB < 9) == 2,
        lambda c, _p, _d: ((c.PA != 9) - (c.PB == 9)) * c.PA > 2,
        lambda c, _p, _d: type(c.PA > 0) is bool or c.PA < 3,
        forgiving(lambda c: c.PB < 5 or (c.PA > 0) // (c.PA > 9)),
    ],
)
def test_a_comparison_that_says_the_same_of_all_points_is_a_plain_bool(constraint):
    space = space_of(range(1, 9), constraint)
    assert list(space.feasible) == list(brute_force(space))


def test_what_a_constraint_reads_may_depend_on_what_it_has_read():
    def holds(c, _p, _d):
        return c.PA == 1 or (c.PB > 2 if c.PA < 5 else c["PC"] < c.PD)

    space = space_of(range(1, 8), holds)
    assert list(space.feasible) == list(brute_force(space))


def test_a_constraint_may_look_at_all_of_a_configuration():
    space = space_of(range(1, 6), lambda c, _p, _d: "PA" in c and len(c) == 4 and sum(c.values()) % 3 == len({*c}) % 3)
    assert list(space.feasible) == list(brute_force(space))


def test_an_unknown_parameter_is_an_error():
    with pytest.raises(AttributeError):
        len(space_of((1, 2), lambda c, _p, _d: c.PX > 1))
    with pytest.raises(KeyError):
        len(space_of((1, 2), lambda c, _p, _d: c["PX"] > 1))


def test_numbers_beyond_64_bits_are_computed_as_python_does():
    space = space_of([2**k for k in range(0, 60, 6)], lambda c, _p, _d: (c.PA * c.PB * c.PC) % (2**70 - 1) < 2**40)
    assert list(space.feasible) == list(brute_force(space))


def test_a_constraint_is_asked_once_for_each_combination_of_what_it_reads():
    asked = []

    def holds(c, _p, _d):
        asked.append(1)
        return math.gcd(c.PA, c.PB) == 1

    space = space_of(range(1, 31), holds)
    assert len(space) == 900 * len(
        list(filter(lambda ab: math.gcd(*ab) == 1, itertools.product(range(1, 31), repeat=2)))
    )
    assert len(asked) < 1200


def test_a_million_points_take_less_than_a_second():
    names = [f"P{i}" for i in range(6)]
    parameters = tuple(choice(name, *(2**e for e in range(10))) for name in names)
    constraints = (
        Constraint("threads fit", lambda c, _p, _d: 32 <= c.P0 * c.P1 <= 1024),
        Constraint("either is small", lambda c, _p, _d: c.P2 <= 16 or min(c.P3, c.P4) < 8),
        Constraint("tiles divide", lambda c, _p, _d: math.gcd(c.P2 * c.P3, 48) % 2 == 0),
        Constraint("all fits", lambda c, _p, d: d.max_shared_bytes >= 4 * (c.P0 + c.P1) * c.P2 * (c.P3 + c.P4 + c.P5)),
    )
    space = SearchSpace((VariantSpace("v", parameters, constraints),), PROBLEM, LIMITS)
    started = time.process_time()
    assert 0 < len(space) < 1_000_000
    assert time.process_time() - started < 1.0


def test_positions_ranks_and_slices_agree_with_the_order():
    space = space_of((8, 2, 4), lambda c, _p, _d: c.PA * c.PB >= c.PC)
    listed = tuple(space.feasible)
    assert space.feasible[-3:] == listed[-3:]
    assert space.feasible[-1] == listed[-1]
    assert [space.positions[c] for c in listed] == list(range(len(space)))
    assert [tuple((8, 2, 4)[rank] for rank in row) for row in space.ranks["v"]] == [
        tuple(c.values[name] for name in NAMES) for c in listed
    ]
    with pytest.raises(IndexError):
        space.feasible[len(space)]


def test_what_is_not_feasible_has_no_position():
    space = space_of((8, 2, 4), lambda c, _p, _d: c.PA != c.PB)
    outside = [
        Configuration.of("v", {"PA": 8, "PB": 8, "PC": 2, "PD": 2}),
        Configuration.of("v", {"PA": 8, "PB": 3, "PC": 2, "PD": 2}),
        Configuration.of("w", {"PA": 8, "PB": 2, "PC": 2, "PD": 2}),
        Configuration.of("v", {"PA": 8, "PB": 2, "PC": 2}),
        Configuration.of("v", {"PA": 8, "PB": 2, "PC": 2, "PX": 2}),
    ]
    assert not any(c in space for c in [*outside, "v", None])
    assert [space.positions.get(c) for c in outside] == [None] * 5
    with pytest.raises(KeyError):
        space.positions[outside[0]]


def test_the_feasible_set_survives_pickling_and_compares_by_value():
    space = space_of((8, 2, 4), lambda c, _p, _d: c.PA != c.PB)
    copy = pickle.loads(pickle.dumps(space.feasible))  # noqa: S301 - our own bytes
    assert copy == space.feasible == tuple(space.feasible)
    assert hash(copy) == hash(space.feasible)
    assert copy != space_of((8, 2, 4)).feasible
    assert copy.position(space.feasible[5]) == 5


def test_a_variant_without_parameters_is_one_configuration():
    spaces = tuple(
        VariantSpace(name, (), (Constraint("c", lambda _c, _p, _d, ok=ok: ok),))
        for name, ok in [("a", True), ("b", False)]
    )
    assert list(SearchSpace(spaces, PROBLEM, LIMITS).feasible) == [Configuration("a", ())]


def test_a_product_of_more_than_2_to_the_64_points_is_enumerated_by_its_constraints():
    names = [f"P{i:02}" for i in range(20)]

    def ascends(left, right):
        return Constraint(f"{left} and {right} are neighbours", lambda c, _p, _d: c[right] == c[left] + 1)

    chain = tuple(ascends(left, right) for left, right in itertools.pairwise(names))
    parameters = tuple(choice(name, *range(24, 0, -1)) for name in names)
    space = SearchSpace((VariantSpace("v", parameters, chain),), PROBLEM, LIMITS)
    assert space.spaces[0].product_size() > 2**63
    assert [c.values["P00"] for c in space.feasible] == [5, 4, 3, 2, 1]
    assert [space.positions[c] for c in space.feasible] == [0, 1, 2, 3, 4]


ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.truediv)
BITWISE = (operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift)
COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)

whole = st.integers(-70, 70) | st.builds(
    lambda sign, power, more: sign * 2**power + more, st.sampled_from((-1, 1)), st.integers(5, 62), st.integers(-2, 2)
)
eighths = whole.map(lambda number: number / 8)
of_several_points = st.lists(whole, min_size=2, max_size=4) | st.lists(eighths, min_size=2, max_size=4)


@settings(max_examples=200, deadline=None)
@given(
    of_points=of_several_points,
    other=whole | eighths,
    compute=st.sampled_from(ARITHMETIC + BITWISE + COMPARISONS),
    is_reflected=st.booleans(),
)
@example(of_points=[2**53 + 1, 3], other=2**53 + 3, compute=operator.truediv, is_reflected=False)
@example(of_points=[2**53 + 1, 2], other=float(2**53), compute=operator.eq, is_reflected=False)
def test_they_are_what_python_computes_of_each_or_refused(of_points, other, compute, is_reflected):
    def of(number):
        return compute(other, number) if is_reflected else compute(number, other)

    try:
        together = of(lanes(np.array(of_points), max(map(abs, of_points))))
    except (Unsuitable, Split, TypeError, ValueError, ArithmeticError):
        return
    each = [of(number) for number in of_points]
    found = together.numbers.tolist() if isinstance(together, Lanes) else [together] * len(each)
    assert found == each
    assert all(
        type(one) is type(expected) or isinstance(expected, bool) for one, expected in zip(found, each, strict=True)
    )
    if isinstance(together, Lanes):
        assert max(map(abs, found)) <= math.nextafter(together.bound, math.inf)  # a bound is a rounded number


@pytest.mark.parametrize(
    ("number", "compute", "other", "fits"),
    [
        (LARGEST - 1, operator.add, 1, True),
        (LARGEST - 1, operator.add, 2**20, False),
        (LARGEST // 8, operator.mul, 8, True),
        (LARGEST // 8, operator.mul, 9, False),
        (2**53, operator.truediv, 2, True),
        (2**53 + 1, operator.truediv, 2, False),
        (2**53, operator.eq, 0.5, True),
        (2**53 + 1, operator.eq, 0.5, False),
        (1, operator.lshift, 62, True),
        (1, operator.lshift, 63, False),
        (1, operator.lshift, -1, False),
    ],
)
def test_numbers_are_refused_from_where_arrays_would_differ(number, compute, other, fits):
    points = lanes(np.array([number, 0]), number)
    if not fits:
        with pytest.raises(Unsuitable):
            compute(points, other)
        return
    found = compute(points, other)
    assert isinstance(found, bool) or found.numbers.tolist() == [compute(number, other), compute(0, other)]
