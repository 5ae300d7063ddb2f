"""Chooses the configuration to answer with where every tuned shape is far from the requested one.

Candidates are the configurations of the nearest tuned shapes and the kernel's default, which each study times too. Each
measured time is scaled by the estimates of both launches (`tuner/predict/estimate.py`); the least wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.service.operations.best.answer import BestQuery, declared_default
from tilewright.service.operations.best.stored import StoredBest
from tilewright.tuner.predict.estimate import cycles
from tilewright.tuner.predict.tiles import Tiles

FARTHEST = 16
"""The product of the axes' ratios beyond which another shape is far: 4 powers of two, as for priors (`priors.py`)."""

COMPARED = 4
"""Tuned shapes, the nearest that fit, that are compared where all are far: each takes some 0.2 ms."""


def is_near(sizes: Sequence[int], others: Sequence[int]) -> bool:
    """Whether two shapes are so near that the best configuration of one may answer for the other."""
    # Whole numbers: each of the two ways to an answer sums up logarithms in an order of its own.
    larger = smaller = 1
    for size, other in zip(sizes, others, strict=True):
        larger, smaller = (larger * size, smaller * other) if size > other else (larger * other, smaller * size)
    return larger <= FARTHEST * smaller


def choose(asked: BestQuery, rows: Sequence[StoredBest]) -> StoredBest | None:
    """The row that should be fastest for the requested problem; None if the default should be.

    `rows`: the nearest first.
    """
    try:
        expected_ms = list(_expected_ms(asked, rows, Tiles(asked.kernel)))
    except (ArithmeticError, LookupError, ValueError):  # a user's kernel whose functions fail for other shapes
        return rows[0]
    place = min(range(len(expected_ms)), key=expected_ms.__getitem__)
    return rows[place] if place < len(rows) else None


def _expected_ms(asked: BestQuery, rows: Sequence[StoredBest], tiles: Tiles) -> Iterator[float]:
    """Expected times: of each row, then of the default, where a default of the same variant was timed."""
    kernel = asked.kernel

    def carried(time_ms: float, tuned: Problem, there: Configuration, here: Configuration) -> float:
        cost = cycles(tiles, asked.limits, asked.problem, here)
        return time_ms * cost / cycles(tiles, asked.limits, tuned, there)

    problems = [kernel.problem(kernel.ordered(row.shape), row.dtype, row.options) for row in rows]
    for row, tuned in zip(rows, problems, strict=True):
        yield carried(row.time_ms, tuned, row.configuration, row.configuration)
    default = declared_default(asked)
    for row, tuned in zip(rows, problems, strict=True):
        there = declared_default(BestQuery(kernel, tuned, asked.slug, asked.limits))
        if default is None or there is None or row.default_ms is None:
            continue
        if default.variant == there.variant:  # estimates leave out what one source does better than another
            yield carried(row.default_ms, tuned, there, default)
            return
