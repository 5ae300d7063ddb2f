"""Configurations as points with a distance, the input of the surrogate models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.space import Configuration, SearchSpace

ABSENT = 0.5
"""The place of a parameter that the variant does not have: the middle, equally far from both ends."""

WARP_BITS = 5
"""Divisibility counts up to 2**5, the threads of a warp: beyond, a multiple is like another."""


@dataclass(frozen=True)
class Column:
    """One feature: a function of one parameter's value, scaled so that the space's values fill 0 to 1."""

    parameter: str
    scale: str  # "linear", "log" or "divisibility"
    low: float
    high: float

    def __call__(self, value: int) -> float:
        """The feature of a value; one from outside the space stays near its edge."""
        return min(max((_scaled(self.scale, value) - self.low) / (self.high - self.low), -0.25), 1.25)


class Features:
    """The features of one space: each varying parameter by logarithm or value, divisibility by two, the variant.

    Parameters of the same name are the same feature in every variant, so that variants share what was learnt.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.variants = [s.variant for s in space.spaces] if len(space.spaces) > 1 else []
        values: dict[str, set[int]] = {}
        for variant in space.spaces:
            for parameter in variant.parameters:
                values.setdefault(parameter.name, set()).update(parameter.values)
        self.columns = [column for name, found in values.items() for column in _columns(name, sorted(found))]

    def __len__(self) -> int:
        return len(self.columns) + len(self.variants)

    def covers(self, configuration: Configuration) -> bool:
        """Whether the space has this variant, and the configuration most of that variant's varying parameters."""
        for variant in self.space.spaces:
            if variant.variant == configuration.variant:
                varying = [p.name for p in variant.parameters if len(p.values) > 1]
                return 2 * sum(name in configuration.values for name in varying) > len(varying)
        return False

    def of(self, configuration: Configuration) -> NDArray[np.float64]:
        """The point of any configuration, even one that is not in the space."""
        values = configuration.values
        row = [column(values[column.parameter]) if column.parameter in values else ABSENT for column in self.columns]
        return np.array([*row, *(float(configuration.variant == variant) for variant in self.variants)])

    def of_all(self) -> NDArray[np.float32]:
        """The points of the space's configurations, in its order."""
        blocks = [self._block(s.variant) for s in self.space.spaces]
        return np.concatenate([np.zeros((0, len(self)), dtype=np.float32), *blocks])

    def _block(self, variant: str) -> NDArray[np.float32]:
        ranks, parameters = self.space.ranks[variant], self.space.variant(variant).parameters
        place = {p.name: j for j, p in enumerate(parameters)}
        block = np.full((len(ranks), len(self)), ABSENT, dtype=np.float32)
        for j, column in enumerate(self.columns):
            if column.parameter in place:
                of_rank = np.array([column(v) for v in parameters[place[column.parameter]].values], dtype=np.float32)
                block[:, j] = of_rank[ranks[:, place[column.parameter]]]
        for j, other in enumerate(self.variants, len(self.columns)):
            block[:, j] = float(other == variant)
        return block


def _columns(name: str, values: Sequence[int]) -> list[Column]:
    if len(values) < 2:
        return []
    scales = ["log" if values[0] > 0 and values[-1] >= 4 * values[0] else "linear"]
    bits = [_scaled("divisibility", value) for value in values]
    # Of powers of two the logarithm says the same; of 0 and 1, or of three values, there is nothing more to learn.
    if len(values) > 4 and values[0] > 0 and bits != sorted(bits):
        scales.append("divisibility")
    columns = [(scale, [_scaled(scale, value) for value in values]) for scale in scales]
    return [Column(name, scale, min(points), max(points)) for scale, points in columns]


def _scaled(scale: str, value: int) -> float:
    if scale == "log":
        return math.log2(max(value, 0.5))
    if scale == "divisibility":
        return float(min((value & -value).bit_length() - 1, WARP_BITS)) if value else float(WARP_BITS)
    return float(value)
