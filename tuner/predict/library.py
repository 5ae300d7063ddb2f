"""The library's time for a problem on which it was never timed, from its times at tuned shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.kernels.problem import Problem
from tilewright.tuner.predict.model import Smooth

LITTLE_WORK = 1e7
"""Operations or bytes below which a launch on a GPU lasts about as long as an empty one; a feature begins there."""


@dataclass(frozen=True)
class LibraryTime:
    """The library's name and time in ms at one problem. `error`: standard deviation of the time's logarithm."""

    name: str
    time_ms: float
    error: float = 0.0


@dataclass(frozen=True)
class LibraryFit:
    """A smooth function through the logarithms of the library's times; its error is that of leaving one shape out."""

    function: Smooth
    error: float


@dataclass(frozen=True)
class LibraryTimes:
    """The library's expected times by shape."""

    shape_row: Callable[[Problem], list[float]]  # the shape as numbers, its work as well
    work: Callable[[Problem], int]
    fitted: LibraryFit

    @classmethod
    def fit(
        cls,
        shape_row: Callable[[Problem], list[float]],
        work: Callable[[Problem], int],
        timed: Sequence[tuple[Problem, float]],
    ) -> LibraryTimes:
        """The function through these times in ms."""
        rows = np.array([_row(shape_row, work, problem) for problem, _ in timed])
        values = np.log([time_ms for _, time_ms in timed])
        function = Smooth.fit(rows, values)
        left_out = [function.without(rows[i : i + 1], values[i : i + 1])[0][0] for i in range(len(rows))]
        error = float(np.sqrt(np.mean((np.array(left_out) - values) ** 2)))
        return cls(shape_row, work, LibraryFit(function, error))

    def expected(self, problem: Problem, name: str) -> LibraryTime:
        """The time to expect of the library of this name."""
        values, _ = self.fitted.function(np.array([_row(self.shape_row, self.work, problem)]))
        return LibraryTime(name, math.exp(float(values[0])), self.fitted.error)


def _row(shape_row: Callable[[Problem], list[float]], work: Callable[[Problem], int], problem: Problem) -> list[float]:
    return [*shape_row(problem), max(0.0, math.log2(work(problem) / LITTLE_WORK))]
