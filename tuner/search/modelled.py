"""The common part of searches with a model: candidates, losses, and the first draws."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.search.feasible import FeasibleSampler
from tilewright.tuner.search.features import Features

FIRST, FEWEST_DRAWS = 5, 2
"""Trials before the model has a say, the starts among them, and how many of these are draws however many starts."""

SPREAD = 3
"""The first trials are each the one of so many draws that is farthest from the trials so far."""

CANDIDATES = 20_000
"""Configurations that are predicted: all, or where there are more a changing draw and the neighbours of the best."""

BEST = 10
"""The best so many trials, whose neighbours are always candidates."""

PENDING_LOSS_FLOOR = 0.1
"""A running trial's predicted loss is raised to at least this, so that proposals spread. Without it a proposal expected
to beat the best drew the next ones to its side: nine ahead on the 2080 Ti's space, 0.93 instead of 0.98 of the optimum
after 100 trials."""

Array = NDArray[np.float64]
Array32 = NDArray[np.float32]


class ModelSampler(FeasibleSampler):
    """Models the loss 1 - best / time: 0 for the best trial, 1 for a failed one.

    A running trial counts with the loss that the model predicts for it, so that proposals made ahead do not pile up in
    one place.
    """

    def __init__(self, space: SearchSpace, seed: int, starts: Sequence[Configuration] = ()) -> None:
        super().__init__(space, seed, starts)
        self.features = Features(space)
        self.points = self.features.of_all()
        self.candidates = np.arange(len(space))
        self._predicted: dict[int, float] = {}
        self.drawn = 0

    @abc.abstractmethod
    def scores(self) -> tuple[NDArray[np.intp], Array32, Array32]:
        """Places of candidates, their scores, and their predicted losses."""

    def choose(self) -> Configuration | None:
        """One of the first draws, else the candidate with the highest score."""
        if self.draws_apart:
            return self._draw_apart()
        places, improvement, predicted = self.scores()
        improvement = np.where(self.unseen.free[places], improvement, -np.inf)
        if not len(places) or improvement.max() == -np.inf:
            return self.unseen.draw()
        best = int(np.argmax(improvement))
        self._predicted[self.asking] = max(float(predicted[best]), PENDING_LOSS_FLOOR)
        return self.space.feasible[int(places[best])]

    def losses(self, numbers: Sequence[int]) -> Array:
        """The losses of these trials; of those without a time the losses predicted when they were proposed."""
        times = np.array([np.nan if (t := self.seen[n].time_ms) is None else t for n in numbers], dtype=float)
        best_ms = min((s.time_ms for s in self.seen.values() if s.time_ms is not None), default=np.inf)
        losses = 1 - best_ms / times if np.isfinite(best_ms) else np.where(np.isnan(times), np.nan, 1.0)
        predicted = np.array([self._predicted.get(n, 0.5) for n in numbers], dtype=float)
        return np.where(np.isnan(losses), predicted, losses)

    def kept(self, most: int) -> list[int]:
        """The trials to model, in order: all, or the better half of `most` and a draw from the others."""
        numbers = list(self.seen)
        if len(numbers) <= most:
            return numbers
        ranked = np.argsort(self.losses(numbers), kind="stable")
        drawn = self.rng.choice(ranked[most // 2 :], most - most // 2, replace=False)
        return [numbers[i] for i in sorted([*ranked[: most // 2].tolist(), *drawn.tolist()])]

    def choose_candidates(self) -> None:
        """Draws the candidates anew where the space has more than are predicted."""
        if len(self.space) <= CANDIDATES:
            return
        numbers = list(self.seen)
        best = [numbers[i] for i in np.argsort(self.losses(numbers), kind="stable")[:BEST]]
        near = [self._neighbours(self.seen[n].configuration) for n in best]
        self.candidates = np.unique(np.concatenate([self.unseen.draws(CANDIDATES // 2), *near]))[:CANDIDATES]

    def _neighbours(self, configuration: Configuration) -> NDArray[np.intp]:
        """The places of configurations that differ in at most two parameters, the nearest if there are many."""
        steps = self.space.feasible.distances(configuration)
        near = np.flatnonzero(self.unseen.free & (steps <= 2))
        return near[: CANDIDATES // 2 // BEST]

    @property
    def draws_apart(self) -> bool:
        """Whether the next proposal is one of the first draws: also while no time is known."""
        few = len(self.seen) < FIRST or self.drawn < FEWEST_DRAWS
        return few or all(seen.time_ms is None for seen in self.seen.values())

    def _draw_apart(self) -> Configuration | None:
        self.drawn += 1
        tried = {seen.configuration.variant for seen in self.seen.values()}
        waiting = [variant for variant in self.space.start_variants if variant not in tried]
        drawn = self.unseen.draws(SPREAD, waiting[0] if waiting else None)
        if not len(drawn):
            return self.unseen.draw()
        if not self.seen:
            return self.space.feasible[int(drawn[0])]
        taken = np.array([self.features.of(seen.configuration) for seen in self.seen.values()])
        apart = ((self.points[drawn][:, None] - taken[None]) ** 2).sum(axis=2).min(axis=1)
        return self.space.feasible[int(drawn[np.argmax(apart)])]


def log_expected_improvement(mean: Array32, deviation: Array32) -> Array32:
    """The logarithm of the expected improvement on a loss of zero, up to a constant.

    The normal distribution by Abramowitz and Stegun, 7.1.26; in its far tail, where that has no digits left, the ratio
    to the density by the start of its continued fraction.
    """
    u = -mean / deviation
    bell = np.exp(-0.5 * u * u)
    t = 1 / (1 + np.float32(0.3275911 * 0.70710678) * np.abs(u))
    tail: Array32 = np.zeros_like(u)
    for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = (tail + np.float32(coefficient)) * t
    tail = np.float32(0.5) * tail * bell
    improvement = np.float32(0.39894228) * bell + u * np.where(u < 0, tail, 1 - tail)
    far = np.float32(-0.91893853) - 0.5 * u * u - np.log(u * u + 3)
    scores: Array32 = np.log(deviation) + np.where(u > -3, np.log(np.maximum(improvement, 1e-9)), far)
    return scores
