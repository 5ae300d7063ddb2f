"""Whole numbers of many points at once, so that one call of a constraint decides all of them.

A constraint is a plain function of one configuration. Handed `Lanes` where parameters differ between points, its
arithmetic and comparisons run over arrays. Where it needs one number, as `if`, `min`, `math.gcd` or a dictionary do,
`Split` says which points agree on it, and the function is called again for each group.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST = 2**62
"""The largest magnitude to which sums and products of int64 equal Python's."""

BITS = 63
"""The bits of a number beside its sign. NumPy and Python differ in a shift by as many bits or more."""

EXACT_AS_FLOAT = 2**53
"""The largest magnitude of whole numbers that NumPy divides, or compares with fractions, exactly: in floats."""


class Split(BaseException):
    """The points differ in a number that has to be one: `groups` are the places of those that agree.

    Not an Exception, so that a constraint's own `except` clauses let it through.
    """

    def __init__(self, numbers: NDArray[Any]) -> None:
        if numbers.dtype == bool:
            self.groups = [np.flatnonzero(~numbers), np.flatnonzero(numbers)]
            return
        order = np.argsort(numbers, kind="stable")
        ascending = numbers[order]
        self.groups = np.split(order, np.flatnonzero(ascending[1:] != ascending[:-1]) + 1)


class Unsuitable(BaseException):
    """Arrays cannot compute this as Python would: the points must be checked one by one."""


class Lanes:
    """A number that differs between points; one that does not is a plain int, float or bool (see `lanes`)."""

    __slots__ = ("bound", "numbers")

    def __init__(self, numbers: NDArray[Any], bound: float) -> None:
        self.numbers, self.bound = numbers, bound

    def _split(self, *_: object) -> Any:
        raise Split(self.numbers)

    __bool__ = __index__ = __int__ = __float__ = __hash__ = __str__ = __repr__ = __format__ = _split
    __round__ = __trunc__ = __divmod__ = __rdivmod__ = __pow__ = __rpow__ = __array__ = _split

    def __getattr__(self, name: str) -> Any:
        raise Split(self.numbers) if hasattr(int, name) else AttributeError(name)

    def __neg__(self) -> Any:
        return _SUBTRACT(0, self)

    def __pos__(self) -> Any:
        return _ADD(0, self)

    def __abs__(self) -> Any:
        return lanes(np.abs(_ADD(0, self).numbers), self.bound)

    def __ceil__(self) -> Any:
        return self._rounded(np.ceil)

    def __floor__(self) -> Any:
        return self._rounded(np.floor)

    def _rounded(self, way: np.ufunc) -> Any:
        if self.bound >= EXACT_AS_FLOAT:
            raise Unsuitable
        return lanes(way(self.numbers).astype(np.int64), self.bound + 1)


def lanes(numbers: NDArray[Any], bound: float) -> Any:
    """The numbers as Lanes, or as one plain number where they are all equal; `bound` is at least each one's size."""
    first, count = numbers.item(0), len(numbers)
    # Most that differ differ in one of three: comparing all takes as long as the arithmetic.
    if first == numbers.item(-1) == numbers.item(count // 3) and np.count_nonzero(numbers == first) == count:
        return first
    if numbers.dtype.kind == "f":  # the size of a quotient by less than 1 is not what the operands' say
        bound = float(np.abs(numbers).max())
    return Lanes(numbers, bound)


def _plain(value: Any) -> tuple[Any, float, bool] | None:
    """The NumPy array, its largest magnitude, and whether it holds integers; None for a value that is no number."""
    if type(value) is Lanes:
        kind = value.numbers.dtype.kind
        return (value.numbers.astype(np.int64) if kind == "b" else value.numbers), value.bound, kind != "f"
    if isinstance(value, int):  # a bool is one
        return int(value), abs(value), True
    return (value, abs(value), False) if isinstance(value, float) and math.isfinite(value) else None


Operation = Callable[[Any, Any], Any]


def _install(name: str, operation: Operation) -> None:
    def forward(self: Lanes, other: object) -> Any:
        return operation(self, other)

    def reflected(self: Lanes, other: object) -> Any:
        return operation(other, self)

    setattr(Lanes, f"__{name}__", forward)
    setattr(Lanes, f"__r{name}__", reflected)


def _arithmetic(compute: Operation, bound_of: Callable[[float, float], float]) -> Operation:
    def operation(a: object, b: object) -> Any:
        left, right = _plain(a), _plain(b)
        if left is None or right is None:
            return NotImplemented
        (x, x_bound, _), (y, y_bound, _) = left, right
        largest = EXACT_AS_FLOAT if compute is operator.truediv else LARGEST
        bound = bound_of(x_bound, y_bound)
        if largest < bound:  # by the operands' largest, which need not meet
            bound = float(np.abs(compute(np.asarray(x, dtype=float), np.asarray(y, dtype=float))).max())
        if largest < bound or largest < x_bound or largest < y_bound:
            raise Unsuitable
        return lanes(compute(x, y), bound)

    return operation


def _dividing(compute: Operation, bound_of: Callable[[float, float], float]) -> Operation:
    checked = _arithmetic(compute, bound_of)

    def operation(a: object, b: object) -> Any:
        if isinstance(b, Lanes):
            if np.count_nonzero(b.numbers) < len(b.numbers):
                raise Split(b.numbers == 0)  # it is not zero for all of them: Lanes differ
        elif not b:
            raise ZeroDivisionError
        return checked(a, b)

    return operation


def _bitwise(compute: Operation) -> Operation:
    checked = _arithmetic(compute, lambda x, y: 2 * max(x, y) + 1)

    def operation(a: object, b: object) -> Any:
        return NotImplemented if isinstance(a, float) or isinstance(b, float) else checked(a, b)

    return operation


def _shift(compute: Operation, factor: Callable[[float], float]) -> Operation:
    def operation(a: object, b: object) -> Any:
        left, right = _plain(a), _plain(b)
        if left is None or right is None or not (left[2] and right[2]):
            return NotImplemented
        bound = left[1] * factor(min(right[1], BITS))
        if np.min(right[0]) < 0 or right[1] >= BITS or bound > LARGEST:
            raise Unsuitable
        return lanes(compute(left[0], right[0]), bound)

    return operation


def _comparison(compute: Operation) -> Callable[[Lanes, object], Any]:
    def operation(self: Lanes, other: object) -> Any:
        right = _plain(other)
        if right is None:
            return NotImplemented
        largest = LARGEST if right[2] == (self.numbers.dtype.kind != "f") else EXACT_AS_FLOAT
        if largest < self.bound or largest < right[1]:
            raise Unsuitable
        true = compute(self.numbers, right[0])
        count = np.count_nonzero(true)
        # A plain bool: NumPy's own adds and divides in other ways than Python's.
        return Lanes(true, 1) if 0 < count < len(true) else bool(count)

    return operation


_ADD = _arithmetic(operator.add, lambda x, y: x + y)
_SUBTRACT = _arithmetic(operator.sub, lambda x, y: x + y)
_install("add", _ADD)
_install("sub", _SUBTRACT)
_install("mul", _arithmetic(operator.mul, lambda x, y: x * y))
_install("floordiv", _dividing(operator.floordiv, lambda x, _y: x + 1))
_install("mod", _dividing(operator.mod, lambda _x, y: y))
_install("truediv", _dividing(operator.truediv, lambda x, _y: x))
_install("and", _bitwise(operator.and_))
_install("or", _bitwise(operator.or_))
_install("xor", _bitwise(operator.xor))
_install("lshift", _shift(operator.lshift, lambda places: 2**places))
_install("rshift", _shift(operator.rshift, lambda _places: 1))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Lanes, f"__{_name}__", _comparison(getattr(operator, _name)))
