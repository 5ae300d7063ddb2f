"""Optuna's tree-structured Parzen estimator over a feasible set, by ask and tell."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import cast

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, IntDistribution

from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.outcome import Evaluation
from tilewright.tuner.search.searcher import RandomSearcher, Told

# Optuna writes to stderr by itself; its logger is the only one that this touches.
optuna.logging.set_verbosity(optuna.logging.WARNING)

FAILED_VALUE = math.log(1e9)
"""What a failed trial is told as: the logarithm of a billion ms, slower than anything measured. A failure that is told
as failed would teach the sampler nothing, and it would ask for the same corner again."""

RANDOM_STARTS = 10
"""Trials before TPE has a say, the starts among them."""

CURIOSITY = 0.1
"""How often the variant of a proposal is that of any free configuration, whatever its times were."""

SLOWER_BY_E = 0.3
"""Else a variant is chosen with weight (its best time over the best time) ** (-1 / 0.3): at 1.3 times the best it gets
0.42 of the best one's turns, at twice the time 0.1, at 20 times none."""


class TpeSearcher(RandomSearcher):
    """The starts, then random draws, then TPE; each proposal is snapped to the nearest free configuration.

    Every variant has a study of its own, in memory; its parameters hold the place in the list of values. The variant is
    not left to TPE: it went on spending a sixth of 40 trials on each variant that was 20 times slower.
    """

    def __init__(
        self,
        space: SearchSpace,
        starts: Sequence[Configuration],
        seed: int,
        prior: Sequence[Told] = (),
        *,
        multivariate: bool = False,
        random_starts: int = RANDOM_STARTS,
    ) -> None:
        super().__init__(space, starts, seed, prior)
        self._space, self._random_left = space, random_starts - len(prior)
        self._rng = np.random.default_rng([seed, len(prior), 1])
        self._studies = {
            s.variant: optuna.create_study(sampler=tpe_sampler(seed + len(prior), multivariate=multivariate))
            for s in space.spaces
        }
        self._distributions: dict[str, dict[str, BaseDistribution]] = {
            s.variant: {p.name: IntDistribution(0, len(p.values) - 1) for p in s.parameters} for s in space.spaces
        }
        self._asked: dict[Configuration, optuna.Trial] = {}
        self._best: dict[str, float] = {}  # by variant: logarithm of the best time
        self._drawn: set[str] = set()
        for configuration, evaluation in prior:
            if configuration in space:
                self.tell(configuration, evaluation)

    def propose(self) -> Configuration | None:
        """The next start or random draw, then what TPE asks for, snapped."""
        self._random_left -= 1
        if self._starts:
            return super().propose()
        proposal = self._draw() if self._random_left >= 0 else self._ask()
        if proposal is not None:
            self.unseen.take(proposal)
        return proposal

    def tell(self, configuration: Configuration, evaluation: Evaluation) -> None:
        """Adds the logarithm of the time, or the failure, to the variant's study."""
        variant, value = configuration.variant, FAILED_VALUE
        if evaluation.time_ms is not None:
            value = math.log(evaluation.time_ms)
            self._best[variant] = min(value, self._best.get(variant, math.inf))
        trial = self._asked.pop(configuration, None)
        if trial is not None:
            self._studies[variant].tell(trial, value)
            return
        self._studies[variant].add_trial(
            optuna.trial.create_trial(
                params=cast("dict[str, object]", self._ranks(configuration)),
                distributions=self._distributions[variant],
                value=value,
            )
        )

    def _draw(self) -> Configuration | None:
        """A random configuration: one of each variant first, since chance would leave small variants out."""
        waiting = [s.variant for s in self._space.spaces if s.variant not in self._drawn]
        proposal = self.unseen.draw(waiting[0] if waiting else None)
        self._drawn.update(waiting[:1])
        return proposal or self.unseen.draw()

    def _ask(self) -> Configuration | None:
        variant = self._choose_variant()
        if variant is None:
            return None
        study, parameters = self._studies[variant], self._space.variant(variant).parameters
        trial = study.ask()
        ranks = {p.name: trial.suggest_int(p.name, 0, len(p.values) - 1) for p in parameters}
        proposal = self.unseen.nearest(variant, ranks)
        if proposal is not None and proposal.variant == variant and self._ranks(proposal) == ranks:
            self._asked[proposal] = trial
        else:  # what will be evaluated is not what was asked
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return proposal

    def _choose_variant(self) -> str | None:
        any_free = self.unseen.draw()
        if any_free is None:
            return None
        if not self._best or self._rng.random() < CURIOSITY:
            return any_free.variant
        variants = list(self._best)
        behind = np.array([self._best[variant] for variant in variants]) - min(self._best.values())
        weights = np.exp(-behind / SLOWER_BY_E)
        return variants[int(self._rng.choice(len(variants), p=weights / weights.sum()))]

    def _ranks(self, configuration: Configuration) -> dict[str, int]:
        parameters = self._space.variant(configuration.variant).parameters
        return {p.name: p.values.index(configuration.values[p.name]) for p in parameters}


def tpe_sampler(seed: int, *, multivariate: bool = False) -> optuna.samplers.TPESampler:
    """Optuna's TPE as we use it; the random start is ours, since it must draw from the feasible set.

    One parameter at a time is the default: replaying the four recorded spaces of docs/measuring.md, the multivariate
    form was never ahead of it after 100 and 200 trials.
    """
    with warnings.catch_warnings():
        # These options have been marked experimental since Optuna 2.8, and say so at each construction.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(
            seed=seed % 2**32,
            n_startup_trials=0,
            multivariate=multivariate,
            constant_liar=True,  # proposals made ahead of their evaluation must not pile up in one place
        )
