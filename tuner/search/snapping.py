"""Optuna's TPE over a feasible set: what it asks for is snapped to the nearest free configuration."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import optuna
from optuna.trial import TrialState

from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.search.feasible import FeasibleSampler

FAILED_MS = 1e9
"""What a failed trial is told as, slower than anything measured. A failure that is told as failed would teach the
sampler nothing, and it would ask for the same corner again."""

RANDOM_STARTS = 10
"""Trials before TPE has a say, the starts among them."""

CURIOSITY = 0.1
"""How often the variant of a proposal is that of any free configuration, whatever its times were."""

SLOWER_BY_E = 0.3
"""Else a variant is chosen with weight (its best time over the best time) ** (-1 / 0.3): at 1.3 times the best it gets
0.42 of the best one's turns, at twice the time 0.1, at 20 times none."""


class SnappingSampler(FeasibleSampler):
    """The starts, then random draws, then TPE's choices, snapped.

    Every variant has an inner study, of the places in the lists of values. The variant is not left to TPE, which
    went on spending a sixth of 40 trials on each variant that was 20 times slower.
    """

    def __init__(self, space: SearchSpace, seed: int, starts: Sequence[Configuration] = ()) -> None:
        super().__init__(space, seed, starts)
        self._studies = {s.variant: optuna.create_study(sampler=_tpe(seed % 2**32)) for s in space.spaces}
        self._asked: dict[int, optuna.Trial] = {}
        self._taught: set[int] = set()
        self._drawn: set[str] = set()

    def choose(self) -> Configuration | None:
        """A random draw at first, then TPE's choice, snapped."""
        for number, seen in self.seen.items():
            if seen.time_ms is not None and number not in self._taught:
                self._teach(number, seen.configuration, min(seen.time_ms, FAILED_MS))
        return self._draw() if len(self.seen) < RANDOM_STARTS else self._ask()

    def _teach(self, number: int, configuration: Configuration, time_ms: float) -> None:
        self._taught.add(number)
        value = float(np.log(time_ms))
        study, trial = self._studies[configuration.variant], self._asked.pop(number, None)
        if trial is not None:
            study.tell(trial, value)
            return
        parameters = self.space.variant(configuration.variant).parameters
        scales = {p.name: optuna.distributions.IntDistribution(0, len(p.values) - 1) for p in parameters}
        params: dict[str, object] = dict(self._ranks(configuration))
        study.add_trial(optuna.trial.create_trial(params=params, distributions=dict(scales), value=value))

    def _draw(self) -> Configuration | None:
        """A random configuration: one of each variant first, since chance would leave small variants out."""
        waiting = [s.variant for s in self.space.spaces if s.variant not in self._drawn]
        proposal = self.unseen.draw(waiting[0] if waiting else None)
        self._drawn.update(waiting[:1])
        return proposal or self.unseen.draw()

    def _ask(self) -> Configuration | None:
        variant = self._choose_variant()
        if variant is None:
            return None
        study, parameters = self._studies[variant], self.space.variant(variant).parameters
        trial = study.ask()
        ranks = {p.name: trial.suggest_int(p.name, 0, len(p.values) - 1) for p in parameters}
        proposal = self.unseen.nearest(variant, ranks)
        if proposal is not None and proposal.variant == variant and self._ranks(proposal) == ranks:
            self._asked[self.asking] = trial
        else:  # what will be evaluated is not what was asked
            study.tell(trial, state=TrialState.FAIL)
        return proposal

    def _choose_variant(self) -> str | None:
        any_free = self.unseen.draw()
        best: dict[str, float] = {}
        for seen in self.seen.values():
            if seen.time_ms is not None and np.isfinite(seen.time_ms):
                variant = seen.configuration.variant
                best[variant] = min(seen.time_ms, best.get(variant, np.inf))
        if any_free is None or not best or self.rng.random() < CURIOSITY:
            return any_free.variant if any_free else None
        behind = np.log(np.array(list(best.values())) / min(best.values()))
        weights = np.exp(-behind / SLOWER_BY_E)
        return list(best)[int(self.rng.choice(len(best), p=weights / weights.sum()))]

    def _ranks(self, configuration: Configuration) -> dict[str, int]:
        parameters = self.space.variant(configuration.variant).parameters
        return {p.name: p.values.index(configuration.values[p.name]) for p in parameters}


def _tpe(seed: int) -> optuna.samplers.BaseSampler:
    """Optuna's TPE, one parameter at a time; the random start is ours, since it must draw from the feasible set."""
    with warnings.catch_warnings():
        # constant_liar has been marked experimental since Optuna 2.8, and says so at each construction.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # With it, proposals made ahead of their evaluation do not pile up in one place.
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, constant_liar=True)
