"""Kinds of numbers that programs bring: factors of products, and rows that are normalised."""

from __future__ import annotations

import math

import torch
from torch import Tensor

FACTORS = (
    *("normal", "uniform", "pixels", "integers", "ones", "zeros", "zero_lines", "sparse", "one_hot", "outliers"),
    *("decades", "cancelling", "lines_of_first", "lines_of_second", "lines_of_both", "large_and_small", "large"),
    *("small", "subnormal", "special"),
)
"""Of two factors, whose products are added up along an axis. Where a line has a power of two of its own, they span the
dtype's exponents; of both, half of them, so that products are finite."""

ROWS = (
    *("normal", "uniform", "pixels", "integers", "ones", "zeros", "zero_lines", "sparse", "one_hot", "outliers"),
    *("decades", "lines_of_first", "large", "small", "subnormal", "special", "mean", "constant", "masked", "below"),
)
"""Of matrices whose rows are normalised: far from zero, all alike, with -inf where a mask is, all far below zero."""

WHOLE = {"integers", "ones", "pixels", "zeros"}
"""Kinds of whole numbers: sums of them below 2^24 are exact in float32."""

REACH = {torch.float32: 110, torch.bfloat16: 110, torch.float64: 900, torch.float16: 12}
"""The largest exponent of a line."""

PIXELS = 256
SPECIAL_SHARE, SPARSE_SHARE, OUTLIER_SHARE, MASKED_SHARE = 0.06, 0.02, 0.001, 0.4


class Numbers:
    """Random tensors on a device, from a seed."""

    def __init__(self, device: str, seed: int) -> None:
        self.device = device
        self._generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, in float64."""
        return torch.randn(shape, generator=self._generator, device=self.device, dtype=torch.float64)

    def share(self, part: float, *shape: int) -> Tensor:
        """True for that part of the elements."""
        return self._uniform(*shape) < part

    def whole(self, low: int, high: int, *shape: int) -> Tensor:
        """Whole numbers from `low` to `high` - 1, in float64."""
        return torch.randint(low, high, shape, generator=self._generator, device=self.device).double()

    def factor(self, kind: str, shape: tuple[int, ...], axis: int, place: int, dtype: torch.dtype) -> Tensor:
        """A factor of products that are summed along `axis`: the first where `place` is 0, else the second."""
        along = self._along(kind, (*shape[:axis], *shape[axis + 1 :], shape[axis]), place, REACH[dtype])
        return along.movedim(-1, axis).to(dtype)

    def rows(self, kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A matrix whose rows are normalised; numbers are so small that their squares are finite in float32."""
        count = shape[0], 1
        if kind == "mean":
            return (self.normal(*shape) + self.whole(-1000, 1000, *count)).to(dtype)
        if kind == "constant":
            return (10 * self.normal(*count)).expand(shape).to(dtype)
        if kind == "below":
            return (self.normal(*shape) - 1e4).to(dtype)
        if kind == "masked":
            return self.normal(*shape).masked_fill(self.share(MASKED_SHARE, *shape), -math.inf).to(dtype)
        return self._along(kind, shape, 0, min(50, REACH[dtype])).to(dtype)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._generator, device=self.device, dtype=torch.float64)

    def _powers(self, reach: int, *shape: int) -> Tensor:
        return torch.exp2(self.whole(-reach, reach + 1, *shape))

    def _along(self, kind: str, shape: tuple[int, ...], place: int, reach: int) -> Tensor:
        """Lines along the last axis."""
        whole = self._of_whole_numbers(kind, shape, place)
        if whole is not None:
            return whole
        numbers, lines = self.normal(*shape), (*shape[:-1], 1)
        if kind == "uniform":
            numbers = self._uniform(*shape)
        elif kind == "sparse":
            numbers *= self.share(SPARSE_SHARE, *shape)
        elif kind == "zero_lines":
            numbers *= ~self.share(0.3, *lines)
        elif kind == "outliers":
            numbers = torch.where(self.share(OUTLIER_SHARE, *shape), numbers * 2.0 ** min(reach, 14), numbers)
        elif kind == "decades" and place == 0:
            numbers *= 10.0 ** ((8 if reach > 12 else 4) * (self._uniform(shape[-1]) - 0.5))
        elif kind == "cancelling":
            half = shape[-1] // 2
            sign = 1.0 if place else -1.0 + 1e-6 * self.normal(*shape[:-1], half)
            numbers[..., half : 2 * half] = numbers[..., :half] * sign
        elif kind == "special":
            numbers = self._special(numbers)
        return numbers * self._scales(kind, lines, place, reach)

    def _of_whole_numbers(self, kind: str, shape: tuple[int, ...], place: int) -> Tensor | None:
        if kind in {"ones", "zeros"}:
            is_zero = kind == "zeros" and place == 0
            return torch.full(shape, 0.0 if is_zero else 1.0, device=self.device, dtype=torch.float64)
        if kind == "integers":
            return self.whole(-8, 9, *shape)
        if kind == "pixels":
            return self.whole(0, PIXELS, *shape) if place == 0 else self.whole(-2, 3, *shape)
        if kind == "one_hot" and place == 0:
            hot = self.whole(0, shape[-1], *shape[:-1]).long()
            return torch.nn.functional.one_hot(hot, shape[-1]).double()
        return None

    def _scales(self, kind: str, lines: tuple[int, ...], place: int, reach: int) -> Tensor | float:
        """What a line, or all of a factor, is scaled by."""
        if kind == f"lines_of_{('first', 'second')[place]}":
            return self._powers(reach, *lines)
        if kind == "lines_of_both":
            return self._powers(reach // 2, *lines)
        exponent = {
            "large_and_small": (reach - 10, 10 - reach)[place] if reach > 20 else (6, -6)[place],
            "large": reach // 2 - 5 if reach > 20 else 5,
            "small": -reach // 2,
            "subnormal": (0 if place else {12: -20, 50: -132, 110: -132}.get(reach, -1030)),
        }.get(kind, 0)
        return 2.0**exponent if exponent > -1000 else 2.0**-1000 * 2.0 ** (exponent + 1000)

    def _special(self, numbers: Tensor) -> Tensor:
        """A few lines with infinities or NaN in them."""
        lines = numbers.shape[:-1]
        marked = self.share(SPECIAL_SHARE, *lines, 1) & self.share(2.0 / numbers.shape[-1], *numbers.shape)
        choice = self.whole(0, 3, *numbers.shape).long()
        odd = torch.tensor([math.inf, -math.inf, math.nan], device=self.device, dtype=torch.float64)[choice]
        return torch.where(marked, odd, numbers)
