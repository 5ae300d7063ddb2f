"""A search by extremely randomised regression trees (Geurts, Ernst and Wehenkel, Machine Learning 63, 2006).

All trees grow together, level by level, in arrays: a recursive one a node at a time would take a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.search.modelled import Array, Array32, ModelSampler, log_expected_improvement

Places = NDArray[np.intp]

TREES, SPLITS_TRIED = 40, 6
"""Trees, and random splits of a node of which the best is taken."""

TRIALS = 600
"""Trials that the model keeps."""

GROWTH = 1.05
"""The trees are grown anew after this factor in trials."""

SMALLEST_DEVIATION = 0.01
"""Where all trees agree, chance still remains: without it, nothing but the mean would count there."""


@dataclass(frozen=True)
class Level:
    """One level of all trees: what each node asks, and its first child; a leaf (feature -1) keeps its value."""

    feature: Places
    threshold: Array
    child: Places
    value: Array


def grow(points: Array, values: Array, rng: np.random.Generator) -> list[Level]:
    """The levels of TREES trees, each grown on all points; the first TREES nodes are the roots."""
    sample = np.tile(np.arange(len(points)), TREES)
    node = np.repeat(np.arange(TREES), len(points))
    count, levels = TREES, []
    while len(node):
        feature, threshold = _splits(points[sample], values[sample], node, count, rng)
        members = np.maximum(np.bincount(node, minlength=count), 1)
        value = np.bincount(node, values[sample], count) / members
        inner = feature >= 0
        child = np.where(inner, 2 * (np.cumsum(inner) - 1), -1)
        levels.append(Level(feature, threshold, child, value))
        goes_on = inner[node]
        sample, node = sample[goes_on], node[goes_on]
        node = child[node] + (points[sample, feature[node]] > threshold[node])
        count = 2 * int(np.count_nonzero(inner))
    return levels


def _splits(points: Array, values: Array, node: Places, count: int, rng: np.random.Generator) -> tuple[Places, Array]:
    """For each node the best of some random splits, by the variance that it removes; -1 where none separates."""
    best, chosen, at = np.full(count, -np.inf), np.full(count, -1), np.zeros(count)
    order = np.argsort(node, kind="stable")
    starts = np.searchsorted(node[order], np.arange(count))
    total, sums = np.bincount(node, minlength=count), np.bincount(node, values, count)
    for _ in range(SPLITS_TRIED):
        feature = rng.integers(points.shape[1], size=count)
        x = points[np.arange(len(node)), feature[node]]
        low, high = np.minimum.reduceat(x[order], starts), np.maximum.reduceat(x[order], starts)
        threshold = low + (high - low) * rng.random(count)
        left = x <= threshold[node]
        left_count, left_sum = np.bincount(node, left, count), np.bincount(node, values * left, count)
        right_count = total - left_count
        separates = (left_count > 0) & (right_count > 0)
        score = left_sum**2 / np.maximum(left_count, 1) + (sums - left_sum) ** 2 / np.maximum(right_count, 1)
        better = separates & (score > best)
        best, chosen, at = (
            np.where(better, score, best),
            np.where(better, feature, chosen),
            np.where(better, threshold, at),
        )
    return chosen, at


def predict(levels: Sequence[Level], points: Array32) -> tuple[Array, Array]:
    """Mean and standard deviation over the trees at each point."""
    values = np.empty((TREES, len(points)))
    for tree in range(TREES):
        node, here = np.full(len(points), tree), np.arange(len(points))
        for level in levels:
            leaf = level.feature[node] < 0
            values[tree, here[leaf]] = level.value[node[leaf]]
            node, here = node[~leaf], here[~leaf]
            if not len(node):
                break
            node = level.child[node] + (points[here, level.feature[node]] > level.threshold[node])
    return values.mean(axis=0), values.std(axis=0)


class ForestSampler(ModelSampler):
    """Models the loss by the trees and takes the candidate with the highest expected improvement."""

    def __init__(self, space: SearchSpace, seed: int, starts: Sequence[Configuration] = ()) -> None:
        super().__init__(space, seed, starts)
        self._next_growth = 0
        self._scores: tuple[Array32, Array32] = (np.zeros(0, np.float32), np.zeros(0, np.float32))

    def scores(self) -> tuple[Places, Array32, Array32]:
        """The candidates, the logarithm of their expected improvement, and their predicted loss."""
        count = len(self.seen)
        if count >= self._next_growth:
            self._next_growth = max(count + 1, int(count * GROWTH))
            self.choose_candidates()
            kept = self.kept(TRIALS)
            points = np.array([self.features.of(self.seen[n].configuration) for n in kept])
            mean, deviation = predict(grow(points, self.losses(kept), self.rng), self.points[self.candidates])
            mean32 = mean.astype(np.float32)
            improvement = log_expected_improvement(mean32, np.maximum(deviation, SMALLEST_DEVIATION).astype(np.float32))
            self._scores = improvement, mean32
        return self.candidates, *self._scores
