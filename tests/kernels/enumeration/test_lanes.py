"""Numbers of many points at once are what Python computes one by one, or are refused."""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tilewright.kernels.enumeration.lanes import LARGEST, Lanes, Split, Unsuitable, lanes

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
