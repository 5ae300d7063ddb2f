"""Kinds of inputs that are made of one normal draw, line by line: scales of whole lines, and lines unlike others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Kernel, Tensor
from tilewright.kernels.problem import Problem

Lines = NDArray[Any]
"""A view of a factor with the axis that is summed over first: (length, ...); the others number the lines."""

Change = Callable[[Lines, "np.random.Generator", "Reach", bool], None]
"""Changes the lines in place, those of a first factor or of its partner."""

LINES, MIXED, SPECIAL, SPECIAL_2, PIXELS, LARGE, LARGE_BY_SMALL, SMALL_BY_LARGE, SMALL, ONES, ZEROS = FACTOR_KINDS = (
    *("lines", "mixed", "special", "special-2", "pixels", "large"),
    *("large-by-small", "small-by-large", "small", "ones", "zeros"),
)
"""Each line times a power of two of its own; lines of all sorts (see MIXTURE); infinities, NaN and zeros that meet, and
others that do, for factors of few lines; whole numbers of 8 bits by such of 16; all large; the first factor's lines by
large powers of two and the second's by small ones, and the other way round; all small; ones, whose sums are exact; a
first factor of zeros. Where there is no room for all, the last are left out."""

SHARED = "one-array"
"""Two factors that are one array, where their sizes are equal."""

MIXED_2, MIXED_3 = ROW_KINDS = "mixed-2", "mixed-3"
"""For rows that are normalised: mixtures that go on where the one before ended, so that few rows see all sorts."""

MIXED_WIDTH = 4.0

_SHORT_REACH = {"float32": 16, "float64": 16, "bfloat16": 16, "float16": 3}
_LARGEST_EXPONENT = {"float32": 120, "float64": 1000, "bfloat16": 120}


class Reach:
    """How far powers of two of lines go: `exponent` applies to two factors at once, so that products stay finite.

    All of the dtype where nothing but a sum is computed. float16 ends early. An activation or a product of sums takes a
    part of the range, and its products are not below 1 (`is_plain` is false): of those that a bias outweighs, one by
    one, a kernel that begins with the bias may lose all.
    """

    def __init__(self, kernel: Kernel, problem: Problem, terms: int) -> None:
        self.is_float16 = problem.dtype == "float16"
        self.is_plain = _is_plain(kernel)
        self.exponent = _SHORT_REACH[problem.dtype]
        if self.is_plain and not self.is_float16:
            self.exponent = (_LARGEST_EXPONENT[problem.dtype] - math.ceil(math.log2(terms + 1))) // 2


def _is_plain(kernel: Kernel) -> bool:
    return kernel.product is not None and kernel.product.finish is None


def factor_kinds(kernel: Kernel, problem: Problem) -> tuple[str, ...]:
    """The kinds of FACTOR_KINDS that apply; with a single factor, none that needs a large one beside a small one.

    Where a bias outweighs all products, each rounding of a sum that begins with it is of one size, and sqrt(terms)
    bounds do not cover their extremes among millions: only plain sums have factors that are all small.
    """
    factors = sum(tensor.summed(problem) is not None for tensor in kernel.tensors)
    out = {LARGE_BY_SMALL, SMALL_BY_LARGE} if factors == 1 else set()
    out |= set() if _is_plain(kernel) else {SMALL}
    kinds = (kind for kind in FACTOR_KINDS if kind not in out)
    return *kinds, *([SHARED] if shared_pair(kernel, problem) else [])


def bound_width(kernel: Kernel, problem: Problem, kind: str) -> float:
    """The factor by which a bound is wider with this kind of inputs.

    Where an early term outweighs the others, or terms are alike, the roundings of a sum go one way, and sqrt(terms)
    bounds do not cover them: conv2d's FMA variants reached 2.89 of them with MIXED lines (H200, 2026-11-28). In
    float64 the reference rounds as often as the kernel, so both errors have room: among 10 million outputs of a
    depthwise conv2d the two differed by 2.05 bounds (H200, 2026-11-30).
    """
    if all(tensor.summed(problem) is None for tensor in kernel.tensors):
        return 1.0
    return (MIXED_WIDTH if kind == MIXED else 1.0) * (2.0 if problem.dtype == "float64" else 1.0)


def shared_pair(kernel: Kernel, problem: Problem) -> tuple[Tensor, Tensor] | None:
    """The two factors that may be one array: dense inputs in ordinary memory, of one size and dtype."""
    factors = [tensor for tensor in kernel.tensors if tensor.summed(problem) is not None]
    if len(factors) != 2 or any(t.role != "input" or t.symbol or t.texture for t in factors):
        return None
    first, second = factors
    sizes = {(t.size_bytes(problem), t.dtype_for(problem), t.layout(problem).is_dense) for t in factors}
    return (first, second) if len(sizes) == 1 and first.layout(problem).is_dense else None


def change_factor(
    kernel: Kernel, problem: Problem, array: Lines, axis: int, kind: str, seed: tuple[int, ...], *, is_partner: bool
) -> None:
    """Makes a factor of this kind of the normal numbers that it holds, in place."""
    along = np.moveaxis(array, axis, 0)
    generator = np.random.default_rng((*seed, int(is_partner)))
    _CHANGES[kind](along, generator, Reach(kernel, problem, along.shape[0]), is_partner)


def change_rows(tensor: Tensor, problem: Problem, array: Lines, kind: str, seed: int) -> Lines:
    """Rows that are normalised, of this kind, of the numbers that the array holds."""
    rows = array.astype(np.float64, copy=True)
    dtype, count = tensor.dtype_for(problem), rows.shape[0]
    first = seed + count * {MIXED: 0, MIXED_2: 1, MIXED_3: 2, SPECIAL: 0}[kind]
    sorts = _SPECIAL_ROWS if kind == SPECIAL else _ROWS
    with np.errstate(over="ignore"):
        for row in range(count):
            sorts[(first + row) % len(sorts)](rows[row], dtype)
    most = float(np.finfo(np.float16 if dtype == "float16" else np.float32).max)
    if kind != SPECIAL and dtype != "float64":
        np.clip(rows, -most, most, out=rows)
    return rows.astype(array.dtype)


def _exponents(generator: np.random.Generator, along: Lines, least: int, most: int) -> NDArray[np.int32]:
    return generator.integers(least, most, along.shape[1:], np.int32, endpoint=True)


def _scale_lines(least: int, most: int) -> Change:
    """Scales each line by a power of two between these times the reach; for the partner, of the opposite sign."""

    def change(along: Lines, generator: np.random.Generator, reach: Reach, is_partner: bool) -> None:
        low, high = (-most, -least) if is_partner else (least, most)
        if is_partner and not reach.is_plain:
            low, high = -least, -least + 1
        exponents = _exponents(generator, along, low * reach.exponent, high * reach.exponent)
        np.ldexp(along, exponents, out=along)

    return change


def _scale_all(share: int) -> Change:
    def change(along: Lines, _generator: np.random.Generator, reach: Reach, _is_partner: bool) -> None:
        np.ldexp(along, share * reach.exponent, out=along)

    return change


def _ones(along: Lines, _generator: np.random.Generator, _reach: Reach, _is_partner: bool) -> None:
    along[...] = 1


def _pixels(along: Lines, _generator: np.random.Generator, reach: Reach, is_partner: bool) -> None:
    levels = (4, 256)[is_partner] if reach.is_float16 else (256, 65536)[is_partner]
    np.floor(np.mod(np.abs(along) * levels, levels), out=along)


def _zeros(along: Lines, _generator: np.random.Generator, _reach: Reach, is_partner: bool) -> None:
    if not is_partner:
        along[...] = 0


def _special(*, is_first_zero: bool) -> Change:
    """Puts zeros and non-numbers, or zeros opposite these, into half of the lines; the rest keep to numbers.

    A factor that is one line gets a zero there, or infinity.
    """

    def change(along: Lines, generator: np.random.Generator, _reach: Reach, is_partner: bool) -> None:
        length = along.shape[0]
        lines = along.reshape(length, 1) if along.ndim == 1 else along
        places = _places(length, np.random.default_rng(length))
        has_zeros = is_first_zero != is_partner
        if lines[0].size == 1:
            lines[places[0]] = 0 if is_first_zero else np.inf
            return
        order = generator.permutation(lines[0].size)
        numbers = (0.0, np.inf, None, 0.0, np.nan, -np.inf) if has_zeros else (np.inf, 0.0, None, np.nan, 0.0, -np.inf)
        for turn, line in enumerate(order[: max(1, len(order) // 2)]):
            where = np.unravel_index(line, lines.shape[1:])
            number = numbers[turn % len(numbers)]
            if number is None:
                lines[(slice(None), *where)] = 0
            else:
                lines[(places[turn // len(numbers) % len(places)], *where)] = number

    return change


def _places(length: int, generator: np.random.Generator) -> tuple[int, ...]:
    """Places along a line that both factors have in common: ends, middle, and some of what a last tile reads."""
    last = (length - 1 - generator.integers(0, min(length, 32), 4)).tolist()
    return 0, *last, length // 2, length - 1


def _one_hot(part: Lines) -> None:
    kept = part[part.shape[0] // 3].copy()
    part[...] = 0
    part[part.shape[0] // 3] = kept


def _sparse(part: Lines) -> None:
    part[np.abs(part) < 2.33] = 0  # 2 % of normal numbers are larger


def _constant(part: Lines) -> None:
    """A constant of three bits, so that equal terms add up exactly; others would round alike, without cancelling."""
    fraction, exponent = np.frexp(part[:1])
    part[...] = np.ldexp(np.rint(fraction * 8) / 8, exponent)


def _unity(part: Lines) -> None:
    part[...] = 1


def _nothing(part: Lines) -> None:
    part[...] = 0


def _whole(part: Lines) -> None:
    np.floor(np.abs(part) * 64, out=part)


def _outliers(part: Lines) -> None:
    part[np.abs(part) > 2.33] *= 128


def _decades(part: Lines) -> None:
    steps = -(np.arange(part.shape[0]) * 12 // part.shape[0])
    np.ldexp(part, steps.reshape(-1, *[1] * (part.ndim - 1)), out=part)


def _alternating(part: Lines) -> None:
    np.abs(part, out=part)
    part[1::2] *= -1


def _usual(_part: Lines) -> None:
    """The numbers as they were drawn."""


MIXTURE: tuple[Callable[[Lines], None], ...] = (
    *(_usual, _nothing, _unity, _constant, _one_hot),
    *(_sparse, _whole, _outliers, _decades, _alternating),
)
"""Normal, zeros, ones, one number, one number among zeros, 2 % numbers, whole numbers, a few large ones, twelve powers
of two along the sum, signs in turn."""


def _mixed(along: Lines, generator: np.random.Generator, _reach: Reach, _is_partner: bool) -> None:
    if along.ndim == 1:
        return
    sorts = generator.permutation(along[0].size).reshape(along.shape[1:]) % len(MIXTURE)
    for number, change in enumerate(MIXTURE):
        part = along[:, sorts == number]
        if part.size:
            change(part)
            along[:, sorts == number] = part


_CHANGES: dict[str, Change] = {
    LINES: _scale_lines(-1, 1),
    LARGE_BY_SMALL: _scale_lines(1, 2),
    SMALL_BY_LARGE: _scale_lines(-2, -1),
    LARGE: _scale_all(1),
    SMALL: _scale_all(-1),
    MIXED: _mixed,
    ONES: _ones,
    PIXELS: _pixels,
    ZEROS: _zeros,
    SPECIAL: _special(is_first_zero=True),
    SPECIAL_2: _special(is_first_zero=False),
    SHARED: lambda _along, _generator, _reach, _is_partner: None,
}

Row = Callable[[Lines, str], None]
_TOP = {"float32": 55, "float64": 500, "bfloat16": 55, "float16": 13}
"""Powers of two of large rows: the squares of millions of such numbers have a sum in the dtype of sums."""


def _assigned(row: Lines, numbers: Any) -> None:
    row[...] = numbers


_ROWS: tuple[Row, ...] = (
    lambda row, _: _assigned(row, row + 1000),  # a large mean
    lambda row, _: _assigned(row, row[:1].copy()),  # one number
    lambda row, _: _assigned(row, row - 1000),  # far below zero
    lambda row, _: _assigned(row, row * 30),  # tiny probabilities
    lambda row, dtype: _assigned(row, row * 2.0 ** _TOP[dtype]),
    lambda row, _: _assigned(row, 0),
    lambda row, _: _assigned(row, row * 300),
    lambda row, _: _assigned(row[row.size // 2 :], -100),  # beside numbers near 0
    lambda row, _: _assigned(row, row * 2.0**-20),
    lambda row, _: _assigned(row[row.size // 3 : row.size // 3 + 1], 1e4),  # one outlier
    lambda row, _: _assigned(row, np.sort(row)),  # the largest last
    lambda row, dtype: _assigned(row, row * 2.0 ** (_TOP[dtype] // 3)),
    lambda row, _: _assigned(row[-1:], 40),
    lambda row, _: _assigned(row[-1:], math.log(row.size) + 10.5),  # nearly all of a row's probability
    lambda row, _: _assigned(row, -np.sort(-row)),  # the largest first
    lambda row, dtype: _assigned(row, -np.abs(row) * 2.0 ** _TOP[dtype]),  # where a maximum must not begin
    lambda row, _: _assigned(row, np.abs(row) * (1 - 2 * (np.arange(row.size) % 2))),
)

_SPECIAL_ROWS: tuple[Row, ...] = (
    lambda row, _: _assigned(row[: row.size // 2], -np.inf),  # a mask
    lambda row, _: _assigned(row[row.size // 2 :], -np.inf),
    lambda row, _: _assigned(row[: row.size - 1], -np.inf),
    lambda row, _: _assigned(row[1::2], -np.inf),
    lambda row, _: _assigned(row[row.size // 2 :][:1], np.nan),
    lambda row, _: _assigned(row[:1], np.inf),
    lambda row, _: _assigned(row, row),
    lambda row, _: _assigned(row, -np.inf),
    lambda row, _: _assigned(row[-1:], np.nan),
)
