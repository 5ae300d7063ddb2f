"""The default search: expected improvement under a Gaussian process over the whole feasible set."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.search.features import Features
from tilewright.tuner.search.modelled import ModelSampler, log_expected_improvement
from tilewright.tuner.search.searcher import Prior
from tilewright.tuner.search.surrogate import (
    LENGTH,
    Array,
    Array32,
    Scales,
    Surrogate,
    Trends,
    fit,
    matern,
    scale_variance,
)

TRIALS = 300
"""Trials that the model keeps: all, or where there are more the better half of these and a draw from the others."""

CAPACITY = 400
"""Trials that fit between two fits of the length scales."""

GROWTH = 1.15
"""The length scales are fitted anew after this factor in trials."""

CONSTANT_PULL, TREND_PULL = 1e-3, 0.3
"""How strongly the mean is held at zero, and a prior's weight at its similarity: as that many trials' worth."""


DRAWS_WITH_PRIORS = 6
"""Draws among the trials of a search with priors, so that the model knows of more than they point to. With three, a
record that covers a poor corner only held the 2080 Ti's search back: 0.933 of the optimum after 50 trials instead of
0.946 without it; with six 0.946."""

TRUSTED, HEARD = 4, 20
"""With priors, so many trials beside the starts that were named are proposed with them, then every second one up to
so many, then none. A record that covers a poor corner of the space predicts well in that corner, and would keep the
search there."""

NARROW_HEARD, NARROW_DRAWS = 2, 4
"""The same where every record left some parameter as it was: so many trials are proposed with them, beside so many
draws. The A6000's, 16 rows a block throughout, held the 2080 Ti's search back by 0.03 after 25 trials, like this by
0.007 +- 0.018 (80 repeats)."""

NEAR_FROM, NEAR_EVERY = 24, 4
"""From so many trials on every fourth changes one parameter of the best so far. The model is smooth and the optimum
often is not: beside a trial at 0.9 the best one may be a step away and expected to be no better. On 16 recordings the
fraction of the optimum after 150 and 200 trials rose by 0.008 and 0.012 (docs/measuring/search.md)."""

NEAR_FROM_WITH_PRIORS = 100
"""The same with priors: the best of the first trials is where these point to, which may be the wrong hill. From 24 on,
the A4000's record held the A100's convolution back by 0.068 +- 0.039 after 100 trials; so +0.016 +- 0.037 (96 repeats).
"""


class GaussianSampler(ModelSampler):
    """Models the loss by a Gaussian process and takes the candidate with the highest expected improvement.

    Length scales are fitted to trials that have ended. A running trial counts with the loss that these predict for it.
    Each prior is a function of the configuration that may be part of the mean; its weight is estimated with everything
    else, and so decays where this study's times do not follow it.
    """

    def __init__(
        self, space: SearchSpace, seed: int, starts: Sequence[Configuration] = (), priors: Sequence[Prior] = ()
    ) -> None:
        super().__init__(space, seed, starts)
        trends = [PriorTrend(prior, self.features) for prior in priors]
        self._trends = [trend for trend in trends if trend.usable]
        # The first start is what gains are stated against. Of a variant in a record, that says more than its default.
        recorded = {variant for trend in self._trends for variant in trend.variants}
        defaults = set(space.defaults()) - {*starts[:1]}
        self._starts = [start for start in self._starts if start not in defaults or start.variant not in recorded]
        self._named = sum(start not in defaults for start in self._starts[1:])
        is_narrow = all(trend.is_narrow for trend in self._trends)
        self._trusted, self._heard = (NARROW_HEARD, NARROW_HEARD) if is_narrow else (TRUSTED, HEARD)
        self._draws = NARROW_DRAWS if is_narrow else DRAWS_WITH_PRIORS
        self._expected = np.full(len(self.features), LENGTH)
        if self._trends:
            self._expected = np.mean([self._expected, *(trend.lengths for trend in self._trends)], axis=0)
        shares = np.array([trend.similarity for trend in self._trends])
        self._toward = np.array([0.0, *(shares * shares.max(initial=0) / max(shares.sum(), 1e-9))])
        self._pull = np.array([CONSTANT_PULL, *(TREND_PULL for _ in self._trends)])
        self._scales = Scales(self._expected)
        self._next_fit = self._counted = 0
        self._taken: list[int] = []
        self._model: tuple[Surrogate, Trends] | None = None

    @property
    def draws_apart(self) -> bool:
        """Whether the next proposal is one of the first draws; with priors, these replace proposals without them."""
        if not self._trends:
            return super().draws_apart
        return not self._hears_priors() and self.drawn < self._draws

    def _hears_priors(self) -> bool:
        count = len(self.seen) - self._named
        return count < self._trusted or (count < self._heard and count % 2 == 0)

    def scores(self) -> tuple[NDArray[np.intp], Array32, Array32]:
        """The candidates, the logarithm of their expected improvement, and their predicted loss."""
        surrogate, trends = self._up_to_date()
        if not self._hears_priors():
            trends = trends.without_priors()
        values = surrogate.filled_in(self.losses(self._taken), self._are_known(), trends)
        mean, deviation = surrogate.predict(values, trends)
        improvement = log_expected_improvement(mean, deviation)
        since = NEAR_FROM_WITH_PRIORS if self._trends else NEAR_FROM
        if len(self.seen) >= since and len(self.seen) % NEAR_EVERY == NEAR_EVERY - 1:
            near = self._free_beside_best()
            improvement = np.where(near, improvement, -np.inf) if near.any() else improvement
        return self.candidates, improvement, mean

    def _free_beside_best(self) -> NDArray[np.bool_]:
        """Whether each candidate is free and differs from the best trial in one parameter."""
        timed = (seen for seen in self.seen.values() if seen.time_ms is not None)
        best = min(timed, key=lambda seen: (seen.time_ms, seen.configuration))
        is_near = self.space.feasible.changes(best.configuration) == 1
        found: NDArray[np.bool_] = (is_near & self.unseen.free)[self.candidates]
        return found

    def _are_known(self) -> NDArray[np.bool_]:
        """Whether each of the modelled trials has ended."""
        return np.array([self.seen[n].time_ms is not None for n in self._taken], dtype=bool)

    def _up_to_date(self) -> tuple[Surrogate, Trends]:
        count = len(self.seen)
        if self._model is None or count >= self._next_fit:
            self._model = self._refitted()
            return self._model
        surrogate, trends = self._model
        for number in list(self.seen)[self._counted :]:
            point = self.features.of(self.seen[number].configuration)
            surrogate.add(point)
            self._taken.append(number)
            trends.observed = np.vstack([trends.observed, self._basis(point[None])])
        self._counted = count
        return self._model

    def _refitted(self) -> tuple[Surrogate, Trends]:
        before, count = self.candidates, len(self.seen)
        self.choose_candidates()
        self._taken, self._counted = self.kept(TRIALS), count
        self._next_fit = min(max(count + 2, int(count * GROWTH)) if count > 2 else count + 1, count + CAPACITY - TRIALS)
        points = np.array([self.features.of(self.seen[n].configuration) for n in self._taken])
        points = points.reshape(-1, len(self.features))
        observed = self._basis(points)
        known = self._are_known()
        if known.sum() > 2:
            expected = self._expected if count < self._heard else np.full(len(self.features), LENGTH)
            self._scales = fit(points[known], self.losses(self._taken)[known], self._scales, expected)
        if self._model is None or before is not self.candidates:
            here = self.points[self.candidates]
            variances = [np.zeros(len(here)), *(trend.variance_at(here) for trend in self._trends)]
            self._model = (
                Surrogate(here, CAPACITY),
                Trends(
                    observed,
                    self._basis(here).astype(np.float32),
                    np.column_stack(variances).astype(np.float32),
                    self._pull,
                    self._toward,
                ),
            )
        surrogate, trends = self._model
        surrogate.rebuild(points, self._scales)
        trends.observed = observed
        return surrogate, trends

    def _basis(self, points: NDArray[np.floating]) -> Array:
        return np.column_stack([np.ones(len(points)), *(trend.at(points) for trend in self._trends)])


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
        """The variance of that prediction: large where the record has no entries near."""
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
