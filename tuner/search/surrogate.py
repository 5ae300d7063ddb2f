"""A Gaussian process over a fixed set of candidates, kept up to date trial by trial.

The covariance is Matérn 5/2 with one length scale a feature (Rasmussen and Williams, Gaussian Processes for Machine
Learning, sections 4.2 and 5.4). A new trial costs one product with what is kept; only new length scales cost more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Array32 = NDArray[np.float32]

LENGTH = 0.25
"""Logarithm of the length scale expected of a feature that spans 0 to 1, with a standard deviation of 1."""

NOISE = float(np.log(0.01))
"""Logarithm of the noise expected, as a fraction of the variance; it covers what no feature explains."""

FIT_STEPS = 25
"""Steps of one fit: the next one starts where it ended."""


@dataclass(frozen=True)
class Scales:
    """Logarithms of the length scales and of the noise."""

    lengths: Array
    noise: float = NOISE


def matern(squared: NDArray[Any]) -> NDArray[Any]:
    """The covariance at these squared distances; in place where it can, since there are millions of them."""
    r: NDArray[Any] = np.sqrt(5 * squared)
    covariance = r / 3
    covariance += 1
    covariance *= r
    covariance += 1
    np.negative(r, out=r)
    covariance *= np.exp(r, out=r)
    return covariance


def matern_slope(squared: Array) -> Array:
    """The derivative of the covariance with respect to the squared distance."""
    r = np.sqrt(5 * squared)
    slope: Array = -5 / 6 * (1 + r) * np.exp(-r)
    return slope


def fit(points: Array, values: Array, start: Scales, expected: Array) -> Scales:
    """The most likely scales given the values, from `start` by resilient steps; `expected` are the lengths' priors."""
    dimensions = points.shape[1]
    squares = ((points[:, None] - points[None]) ** 2).reshape(-1, dimensions)
    theta, best, lowest = np.append(start.lengths, start.noise), start, np.inf
    step, before = np.full(dimensions + 1, 0.15), np.zeros(dimensions + 1)
    for _ in range(FIT_STEPS):
        try:
            loss, gradient = _loss(theta, squares, values, expected)
        except np.linalg.LinAlgError:  # scales at which the covariance is singular are no candidates
            break
        if loss < lowest:
            lowest, best = loss, Scales(theta[:-1].copy(), float(theta[-1]))
        agrees = np.sign(gradient * before)
        step = np.clip(step * np.where(agrees > 0, 1.4, np.where(agrees < 0, 0.5, 1.0)), 1e-3, 0.7)
        theta = np.clip(theta - np.sign(gradient) * step, -3.5, 4.0)
        theta[-1] = np.clip(theta[-1], np.log(1e-4), 0.0)
        before = gradient
    return best


def _loss(theta: Array, squares: Array, values: Array, expected: Array) -> tuple[float, Array]:
    """The negative logarithm of the posterior of the scales, up to a constant, and its gradient."""
    count, lengths, noise = len(values), theta[:-1], np.exp(theta[-1])
    weights = np.exp(-2 * lengths)
    distances = (squares @ weights).reshape(count, count)
    covariance, slope = matern(distances), matern_slope(distances)
    factor = np.linalg.cholesky(covariance + noise * np.eye(count))
    inverse_factor = np.linalg.inv(factor)
    inverse = inverse_factor.T @ inverse_factor
    ones = inverse.sum(axis=1)
    centred = values - ones @ values / ones.sum()
    alpha = inverse @ centred
    variance = scale_variance(centred @ alpha, count)
    from_expected, from_noise = lengths - expected, (theta[-1] - NOISE) / 1.5
    loss = 0.5 * (count + PRIOR_COUNT) * np.log(variance) + np.log(np.diag(factor)).sum()
    loss += 0.5 * (from_expected @ from_expected + from_noise**2)
    inner = inverse - np.outer(alpha, alpha) / variance
    gradient = np.empty(len(theta))
    gradient[:-1] = -weights * ((inner * slope).reshape(-1) @ squares) + from_expected
    gradient[-1] = 0.5 * np.trace(inner) * noise + from_noise / 1.5
    return float(loss), gradient


PRIOR_VARIANCE, PRIOR_COUNT = 0.05, 1.0
"""The variance before any trial, and the number of trials that it counts for: values lie within 0 and 1."""


def scale_variance(squared: float, count: int) -> float:
    """The variance of the process: of `count` whitened residuals whose squares sum to `squared`."""
    return float((squared + PRIOR_COUNT * PRIOR_VARIANCE) / (count + PRIOR_COUNT))


@dataclass
class Trends:
    """Functions that the mean is made of, a column each, with weights that are estimated.

    `observed`: at the observed points, `here`: at the candidates, with the variance of what they say there. `pull` is
    how strongly each weight is held at `toward`.
    """

    observed: Array
    here: Array32
    variance_here: Array32
    pull: Array
    toward: Array

    def without_priors(self) -> Trends:
        """A mean without priors: one constant."""
        return Trends(self.observed[:, :1], self.here[:, :1], self.variance_here[:, :1], self.pull[:1], self.toward[:1])


def _weights(basis: Array, values: Array, trends: Trends) -> Array:
    """The weight of each trend; never below zero for a prior, which would recommend what was slow elsewhere."""
    pull, kept, weights = np.diag(trends.pull), np.arange(basis.shape[1]), np.zeros(basis.shape[1])
    while True:
        inner, held = basis[:, kept], pull[np.ix_(kept, kept)]
        solved = np.linalg.solve(inner.T @ inner + held, inner.T @ values + held @ trends.toward[kept])
        if len(kept) == 1 or solved[1:].min() >= 0:
            weights[kept] = solved
            return weights
        kept = np.delete(kept, 1 + int(np.argmin(solved[1:])))


class Surrogate:
    """Mean and deviation at every candidate, given values at the observed points; `capacity` of them at most."""

    def __init__(self, candidates: Array32, capacity: int) -> None:
        self.candidates, self.capacity = candidates, capacity
        self._whitened = np.empty((capacity, len(candidates)), dtype=np.float32)  # inverse factor @ covariances
        self._unfactor = np.zeros((capacity, capacity))  # the inverse of the covariance's Cholesky factor
        self.count = 0

    def rebuild(self, points: Array, scales: Scales) -> None:
        """Starts again from these points and scales."""
        self._inverse_lengths, self._noise = np.exp(-scales.lengths), float(np.exp(scales.noise))
        self._scaled = self.candidates * self._inverse_lengths.astype(np.float32)
        self._norms = np.einsum("ij,ij->i", self._scaled, self._scaled)
        self._points = points * self._inverse_lengths
        self.count = count = len(points)
        squared = ((self._points[:, None] - self._points[None]) ** 2).sum(axis=2)
        unfactor = np.linalg.inv(np.linalg.cholesky(matern(squared) + self._noise * np.eye(count)))
        self._unfactor[:count, :count] = unfactor
        rows = self._whitened[:count]
        np.matmul(unfactor.astype(np.float32), self._covariances(self._points), out=rows)
        self._explained = np.einsum("ij,ij->j", rows, rows)

    def add(self, point: Array) -> None:
        """Takes one more observed point in."""
        scaled, count = point * self._inverse_lengths, self.count
        near = matern(((self._points - scaled) ** 2).sum(axis=1))
        row = self._unfactor[:count, :count] @ near
        corner = float(np.sqrt(max(1 + self._noise - row @ row, 1e-6)))
        self._unfactor[count, :count] = -(row @ self._unfactor[:count, :count]) / corner
        self._unfactor[count, count] = 1 / corner
        fresh = self._whitened[count]
        np.matmul(row.astype(np.float32), self._whitened[:count], out=fresh)
        np.subtract(self._covariances(scaled[None])[0], fresh, out=fresh)
        fresh /= np.float32(corner)
        self._explained += fresh * fresh
        self._points = np.vstack([self._points, scaled])
        self.count += 1

    def filled_in(self, values: Array, is_known: NDArray[np.bool_], trends: Trends) -> Array:
        """The values at the observed points, the unknown ones replaced by predictions from the others.

        So unknown values change no mean, only deviations (Desautels, Krause and Burdick, Parallelizing
        Exploration-Exploitation Tradeoffs in Gaussian Process Bandit Optimization, 2014).
        """
        if is_known.all() or not is_known.any():
            return values
        unfactor, columns = self._unfactor[: self.count, : self.count], np.column_stack([values, trends.observed])
        of_known, of_others = unfactor[:, is_known] @ columns[is_known], unfactor[:, ~is_known]
        # The least squares that are left are those of the known points alone.
        shifts = np.linalg.lstsq(of_others, of_known, rcond=None)[0]
        white = of_known - of_others @ shifts
        weights = _weights(white[:, 1:], white[:, 0], trends)
        filled = values.copy()
        filled[~is_known] = trends.observed[~is_known] @ weights - shifts[:, 0] + shifts[:, 1:] @ weights
        return filled

    def predict(self, values: Array, trends: Trends) -> tuple[Array32, Array32]:
        """Mean and deviation at the candidates: the trends, and the process on what they leave."""
        count = self.count
        white = self._unfactor[:count, :count] @ np.column_stack([values, trends.observed])
        basis = white[:, 1:]
        weights = _weights(basis, white[:, 0], trends)
        residual = white[:, 0] - basis @ weights
        variance = scale_variance(float(residual @ residual), count)
        mean = trends.here @ weights.astype(np.float32) + residual.astype(np.float32) @ self._whitened[:count]
        doubt = variance + trends.variance_here @ (weights**2).astype(np.float32)
        return mean, np.sqrt(np.maximum(1 - self._explained, 1e-6) * doubt)

    def _covariances(self, scaled: Array) -> Array32:
        points = scaled.astype(np.float32)
        norms = np.einsum("ij,ij->i", points, points)
        squared = norms[:, None] + self._norms[None] - 2 * points @ self._scaled.T
        return matern(np.maximum(squared, np.float32(0)))
