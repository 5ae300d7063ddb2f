"""A smooth function through noisy rows of numbers, and what it would say of a group of rows had it not seen them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CENTRES = 768
"""Rows whose neighbourhoods the function is made of: fitting 9,000 rows takes 0.4 s of one core with so many."""

NOISE = 0.1
"""Variance of a row's value about the function, as a share of the function's own."""

STRAIGHT = 1.0
"""Weight that a straight line in each feature may have for nothing, against the smooth part's 1."""


UNCHANGED = 1e-9
"""A standard deviation below which a feature is the same in every row, and tells nothing."""

LEAST = 0.25
"""A feature whose deviation is less is not stretched to 1: it would lead where it varied by chance among few rows."""

JITTER = 1e-4
"""Added to the prior of each weight: centres that lie together would else make the equations singular."""


@dataclass(frozen=True)
class Smooth:
    """A Gaussian process by a subset of regressors: straight lines and kinks in each feature plus Gaussian bumps.

    Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), sections 2.7 and 8.3.1.
    """

    level: float  # what it falls back to where there are no rows
    mean: Array
    scale: Array
    centres: Array
    weights: Array
    inverse: Array  # of the normal equations' matrix

    @classmethod
    def fit(cls, rows: Array, values: Array, seed: int = 0, *, most_centres: int = CENTRES) -> Smooth:
        """The function through these values, one a row; features are scaled to a standard deviation of at most 1."""
        mean, deviation = rows.mean(axis=0), rows.std(axis=0)
        scale = np.where(deviation < UNCHANGED, np.inf, np.maximum(deviation, LEAST))
        chosen = np.random.default_rng(seed).permutation(len(rows))[:most_centres]
        centres = (rows[chosen] - mean) / scale
        return cls._through(float(values.mean()), mean, scale, centres, rows, values)

    def refitted(self, rows: Array, values: Array) -> Smooth:
        """A function of the same make through other values."""
        return self._through(self.level, self.mean, self.scale, self.centres, rows, values)

    @classmethod
    def _through(cls, level: float, mean: Array, scale: Array, centres: Array, rows: Array, values: Array) -> Smooth:
        basis = _basis((rows - mean) / scale, centres)
        prior = np.diag(np.full(basis.shape[1], 1 / STRAIGHT**2))
        prior[-len(centres) :, -len(centres) :] = _bumps(centres, centres)
        system = basis.T @ basis + NOISE * (prior + JITTER * np.eye(len(prior)))
        inverse = np.asarray(np.linalg.inv(system), dtype=np.float64)
        return cls(level, mean, scale, centres, inverse @ (basis.T @ (values - level)), inverse)

    def basis(self, rows: Array) -> Array:
        """What the function is a weighted sum of, for each row."""
        return _basis((rows - self.mean) / self.scale, self.centres)

    def __call__(self, rows: Array) -> tuple[Array, Array]:
        """Its values on these rows, and the standard deviation of each."""
        basis = self.basis(rows)
        variance = ((basis @ self.inverse) * basis).sum(axis=1)
        return self.level + basis @ self.weights, np.sqrt(NOISE * np.maximum(variance, 0.0))

    def without(self, rows: Array, values: Array) -> tuple[Array, Array]:
        """The same on rows that are among those it was fitted to, had they been left out."""
        basis = self.basis(rows)
        left_out = np.linalg.inv(np.eye(len(rows)) - basis @ self.inverse @ basis.T)
        variance = np.diag(left_out) - 1.0
        return values - left_out @ (values - self.level - basis @ self.weights), np.sqrt(
            NOISE * np.maximum(variance, 0.0)
        )


def _basis(scaled: Array, centres: Array) -> Array:
    return np.hstack([np.ones((len(scaled), 1)), scaled, np.maximum(scaled, 0.0), _bumps(scaled, centres)])


def _bumps(rows: Array, centres: Array) -> Array:
    """1 at a centre, falling off as a Gaussian as wide as two random rows lie apart."""
    squares = (rows**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1)[None, :] - 2 * rows @ centres.T
    used = max(1, int((np.ptp(centres, axis=0) > 0).sum()))
    return np.asarray(np.exp(-np.maximum(squares, 0.0) / (2 * used)))
