"""Predictions for this search space's configurations from the trials of another study (a prior)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.space import Configuration
from tilewright.tuner.search.features import Features
from tilewright.tuner.search.searcher import Prior
from tilewright.tuner.search.surrogate import LENGTH, Array, Scales, fit, matern, scale_variance

FEWEST = 5
"""Measured entries below which a record predicts nothing."""

ENTRIES = 300
"""Entries that are used: the fastest half of these, and others evenly from the rest, by time."""


class PriorTrend:
    """The loss 1 - best / time that a record predicts, by a Gaussian process on its entries."""

    def __init__(self, prior: Prior, features: Features) -> None:
        known = [(c, slowdown) for c, slowdown in prior.entries if features.covers(c)]
        known = _thinned(sorted(known, key=lambda entry: entry[1]))
        self.similarity = prior.similarity
        self.variants = {c.variant for c, slowdown in known if np.isfinite(slowdown)}
        self.usable = sum(np.isfinite(slowdown) for _, slowdown in known) >= FEWEST
        if not self.usable:
            return
        points = np.array([features.of(c) for c, _ in known])
        # Of what is the same throughout a record it says nothing: here the loss is then taken not to depend on it.
        self._varies = np.ptp(points, axis=0) > 0
        self.is_narrow = self._left_something_out(features)
        points = points[:, self._varies]
        losses = np.array([1 - 1 / slowdown for _, slowdown in known])
        expected = np.full(points.shape[1], LENGTH)
        scales = fit(points, losses, Scales(expected), expected)
        self.lengths = np.full(len(features), LENGTH)
        self.lengths[self._varies] = scales.lengths
        self._scaled = self._scaled_by_lengths(points)
        self._mean = float(losses.mean())
        covariance = self._covariance(self._scaled) + np.exp(scales.noise) * np.eye(len(points))
        self._unfactor = np.linalg.inv(np.linalg.cholesky(covariance))
        whitened = self._unfactor @ (losses - self._mean)
        self._weights = self._unfactor.T @ whitened
        self._variance = scale_variance(float(whitened @ whitened), len(points))

    def _left_something_out(self, features: Features) -> bool:
        """Whether a parameter of a recorded variant, of several values in this space, was the same in every entry."""
        recorded = {p.name for variant in self.variants for p in features.space.variant(variant).parameters}
        varied = zip(features.columns, self._varies, strict=False)  # after the columns come the variants
        return not all(varies for column, varies in varied if column.parameter in recorded)

    def at(self, points: NDArray[np.floating]) -> Array:
        """The predicted loss at these points."""
        return self._in_pieces(points, lambda near: self._mean + near @ self._weights)

    def variance_at(self, points: NDArray[np.floating]) -> Array:
        """The variance of that prediction; it is large where the record has no entries near."""
        return self._in_pieces(
            points, lambda near: self._variance * np.maximum(1 - ((self._unfactor @ near.T) ** 2).sum(axis=0), 0.0)
        )

    def _in_pieces(self, points: NDArray[np.floating], of: Callable[[Array], Array]) -> Array:
        scaled = self._scaled_by_lengths(points[:, self._varies])
        pieces = [of(self._covariance(scaled[i : i + 4096])) for i in range(0, len(scaled), 4096)]
        return np.concatenate([np.zeros(0), *pieces])

    def _scaled_by_lengths(self, points: NDArray[np.floating]) -> Array:
        scaled: Array = points * np.exp(-self.lengths[self._varies])
        return scaled

    def _covariance(self, scaled: Array) -> Array:
        squared = (scaled**2).sum(axis=1)[:, None] + (self._scaled**2).sum(axis=1) - 2 * scaled @ self._scaled.T
        covariance: Array = matern(np.maximum(squared, 0.0))
        return covariance


def _thinned(ranked: list[tuple[Configuration, float]]) -> list[tuple[Configuration, float]]:
    if len(ranked) <= ENTRIES:
        return ranked
    half = ENTRIES // 2
    return ranked[:half] + [ranked[int(i)] for i in np.linspace(half, len(ranked) - 1, half)]
