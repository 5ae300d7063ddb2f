"""The library's time for a problem on which it was never timed, from its times at tuned shapes.

Two estimates are weighed by how far off each is at tuned shapes that are left out. One is the difference of two
functions, of the library's times and of ours. It is off where both go on beyond the shapes that they were fitted to:
of 21 layers above 4096, from shapes below, the library was expected at 0.1 to 0.8 of its time. The other is how far
ours was ahead at the nearest shapes, which changes little from one to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.problem import Problem
from tilewright.tuner.predict.model import Smooth

Array = NDArray[np.float64]

LEAST_ERROR = 0.01
"""Times of one launch differ by this part from run to run: no expectation is nearer."""

DOUBT = 0.5
"""Standard deviations that the library is expected to be faster by, so that who relies on ours is seldom let down."""

LITTLE_WORK = 1e7
"""Operations or bytes below which a launch on a GPU lasts about as long as an empty one; a feature begins there."""


@dataclass(frozen=True)
class LibraryTime:
    """The library's name and time in ms at one problem."""

    name: str
    time_ms: float


@dataclass(frozen=True)
class LibraryFit:
    """A smooth function through the logarithms of the library's times, and the errors of both estimates.

    Errors are standard deviations of the logarithm of its time over ours, each shape left out. `deviation`: the usual
    one of our expected time at these; where it is larger, the functions know less.
    """

    function: Smooth
    error: float
    near_error: float
    deviation: float


@dataclass(frozen=True)
class Left:
    """Errors of predictions at tuned shapes, each left out, as logarithms: predicted over measured time, deviation.

    `leads`: the library's time over ours, as chosen then; `near_leads`: the same, expected from the other shapes.
    """

    off: Array
    deviations: Array
    leads: Array
    near_leads: Array


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
        left: Left,
    ) -> LibraryTimes:
        """The function through these times in ms; `left` has a member for each."""
        rows = np.array([_row(shape_row, work, problem) for problem, _ in timed])
        values = np.log([time_ms for _, time_ms in timed])
        function = Smooth.fit(rows, values)
        left_out = [function.without(rows[i : i + 1], values[i : i + 1])[0][0] for i in range(len(rows))]
        fitted = LibraryFit(
            function,
            _error(np.array(left_out) - values - left.off),
            _error(left.near_leads - left.leads),
            float(np.median(left.deviations)),
        )
        return cls(shape_row, work, fitted)

    def expected(self, problem: Problem, name: str, ours_ms: float, deviation: float, near_lead: float) -> LibraryTime:
        """The time to expect of the library with this name, if ours is expected to take so long.

        `deviation`: the standard deviation of our time's logarithm; `near_lead`: the logarithm of how many times as
        fast ours was at the shapes near.
        """
        fitted, ours = self.fitted, math.log(ours_ms)
        values, _ = fitted.function(np.array([_row(self.shape_row, self.work, problem)]))
        farther = max(1.0, deviation / max(fitted.deviation, LEAST_ERROR))
        error, near_error = fitted.error * farther, fitted.near_error
        share = near_error**2 / (near_error**2 + error**2)
        value = share * float(values[0]) + (1 - share) * (ours + near_lead)
        doubt = DOUBT * farther * error * near_error / math.hypot(error, near_error)
        return LibraryTime(name, math.exp(value - doubt))


def _error(differences: Array) -> float:
    return max(LEAST_ERROR, float(np.sqrt(np.mean(differences**2))))


def _row(shape_row: Callable[[Problem], list[float]], work: Callable[[Problem], int], problem: Problem) -> list[float]:
    return [*shape_row(problem), max(0.0, math.log2(work(problem) / LITTLE_WORK))]
