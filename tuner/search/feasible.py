"""Optuna samplers whose every proposal is feasible and new, and the search that asks them."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.errors import TunerError
from tilewright.tuner.outcome import Evaluation
from tilewright.tuner.search.searcher import Evaluated

# Optuna writes to stderr by itself; its logger is the only one that this touches.
optuna.logging.set_verbosity(optuna.logging.WARNING)

VARIANT = "variant"


class ExhaustedError(TunerError):
    """Every feasible configuration has been proposed."""


@dataclass
class ProposedTrial:
    """A configuration that a trial took: its time, infinite where it failed, None while it runs."""

    configuration: Configuration
    time_ms: float | None = None


class FeasibleSampler(optuna.samplers.BaseSampler, abc.ABC):
    """A sampler over the enumerated space: first the starts, then the choices of `choose`.

    The study's parameters are `variant` and one `VARIANT.PARAMETER` for each parameter of that variant (`suggest`), its
    value the time in ms. `seen` follows the study's trials, running ones included.
    """

    def __init__(self, space: SearchSpace, seed: int, starts: Sequence[Configuration] = ()) -> None:
        self.space, self.rng = space, np.random.default_rng(seed)
        self.unseen = Unseen(space, self.rng)
        self.seen: dict[int, ProposedTrial] = {}
        self._starts = list(dict.fromkeys(starts))
        self._read, self._running, self.asking = 0, set[int](), 0
        self._distributions = distributions(space)

    @abc.abstractmethod
    def choose(self) -> Configuration | None:
        """A free configuration; None when there is none."""

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        """Everything: all parameters of a trial are chosen together."""
        return self._distributions

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        """The parameters of the next configuration; raises ExhaustedError when all were proposed."""
        self.asking = trial.number
        self._follow(study, trial.number)
        while self._starts and self._starts[0] not in self.unseen:
            del self._starts[0]
        chosen = self._starts.pop(0) if self._starts else self.choose()
        if chosen is None:
            raise ExhaustedError(f"all {len(self.space)} configurations were proposed")
        self.unseen.take(chosen)
        self.seen[trial.number] = ProposedTrial(chosen)
        return parameters_of(chosen)

    def sample_independent(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
        param_name: str,
        param_distribution: BaseDistribution,  # noqa: ARG002
    ) -> Any:
        """Always raises ValueError: a parameter chosen by itself could leave the feasible set."""
        raise ValueError(f"{param_name} is not a parameter of this space or of the chosen variant")

    def _follow(self, study: optuna.Study, asking: int) -> None:
        trials = study.get_trials(deepcopy=False)
        changed = [n for n in self._running if trials[n].state.is_finished()]
        self._running.difference_update(changed)
        for number in (*changed, *range(self._read, len(trials))):
            if number == asking:
                continue
            trial = trials[number]
            if number not in self.seen and VARIANT in trial.params:
                self.seen[number] = ProposedTrial(configuration_of(trial.params))
                self.unseen.take(self.seen[number].configuration)
            if trial.state.is_finished() and number in self.seen:
                self.seen[number].time_ms = trial.value if trial.state is TrialState.COMPLETE else float("inf")
            elif not trial.state.is_finished():
                self._running.add(number)
        self._read = len(trials)
        self._running.add(asking)


class RandomSampler(FeasibleSampler):
    """Uniform draws without repetition: the yardstick for every other search."""

    def choose(self) -> Configuration | None:
        """A random configuration that has not been tried."""
        return self.unseen.draw()


class StudySearcher:
    """A search backed by an in-memory Optuna study with one of these samplers."""

    def __init__(self, space: SearchSpace, evaluated: Sequence[Evaluated], sampler: FeasibleSampler) -> None:
        self.sampler = sampler
        self.study = optuna.create_study(sampler=sampler)
        self._space, self._asked = space, dict[Configuration, optuna.Trial]()
        for configuration, evaluation in evaluated:
            sampler.unseen.take(configuration)
            if configuration in space:
                self.tell(configuration, evaluation)

    def propose(self) -> Configuration | None:
        """The study's next configuration; None when all were proposed."""
        if not len(self.sampler.unseen):
            return None
        trial = self.study.ask()
        configuration = suggest(trial, self._space)
        self._asked[configuration] = trial
        return configuration

    def tell(self, configuration: Configuration, evaluation: Evaluation) -> None:
        """Completes the trial with its time, or fails it."""
        state = TrialState.FAIL if evaluation.time_ms is None else TrialState.COMPLETE
        trial = self._asked.pop(configuration, None)
        if trial is not None:
            self.study.tell(trial, evaluation.time_ms, state)
            return
        parameters = parameters_of(configuration)
        known = {name: self.sampler.infer_relative_search_space(self.study, _NO_TRIAL)[name] for name in parameters}
        self.study.add_trial(
            optuna.trial.create_trial(state=state, params=parameters, distributions=known, value=evaluation.time_ms)
        )


_NO_TRIAL = optuna.trial.create_trial(state=TrialState.FAIL)


def suggest(trial: optuna.Trial, space: SearchSpace) -> Configuration:
    """The configuration of an Optuna trial: the body of an objective over this space."""
    _ = trial.relative_params  # Optuna skips a sampler where a parameter has one value; ours must hear of each trial
    variant = trial.suggest_categorical(VARIANT, [s.variant for s in space.spaces])
    values = {
        p.name: trial.suggest_categorical(f"{variant}.{p.name}", p.values) for p in space.variant(variant).parameters
    }
    return Configuration.of(variant, values)


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Every parameter that `suggest` may ask for."""
    by_name: dict[str, BaseDistribution] = {VARIANT: CategoricalDistribution([s.variant for s in space.spaces])}
    for variant in space.spaces:
        by_name |= {f"{variant.variant}.{p.name}": CategoricalDistribution(p.values) for p in variant.parameters}
    return by_name


def parameters_of(configuration: Configuration) -> dict[str, Any]:
    """The study's parameters for a configuration."""
    values = {f"{configuration.variant}.{name}": value for name, value in configuration.items}
    return {VARIANT: configuration.variant, **values}


def configuration_of(parameters: dict[str, Any]) -> Configuration:
    """The configuration that these parameters of a study stand for."""
    variant = parameters[VARIANT]
    start = f"{variant}."
    values = {name.removeprefix(start): value for name, value in parameters.items() if name.startswith(start)}
    return Configuration.of(variant, values)


class Unseen:
    """The feasible configurations that are still free. `take` removes one for good."""

    def __init__(self, space: SearchSpace, rng: np.random.Generator) -> None:
        self._space, self._rng = space, rng
        self.free = np.ones(len(space), dtype=bool)
        self._left = len(space)
        self._slices: dict[str, slice] = {}
        start = 0
        for variant, ranks in space.ranks.items():  # `feasible` lists one variant after the other, in this order
            self._slices[variant] = slice(start, start + len(ranks))
            start += len(ranks)

    def __len__(self) -> int:
        return self._left

    def __contains__(self, configuration: object) -> bool:
        position = self._position(configuration)
        return position is not None and bool(self.free[position])

    def take(self, configuration: Configuration) -> None:
        """Removes the configuration; one outside the space is ignored."""
        position = self._position(configuration)
        if position is not None and self.free[position]:
            self.free[position] = False
            self._left -= 1

    def draw(self, variant: str | None = None) -> Configuration | None:
        """A free configuration (of this variant) at random, each equally likely; None when all are taken."""
        drawn = self.draws(1, variant)
        return self._space.feasible[int(drawn[0])] if len(drawn) else None

    def draws(self, count: int, variant: str | None = None) -> NDArray[np.intp]:
        """The places of at most `count` different free configurations at random, each equally likely."""
        place = slice(0, len(self.free)) if variant is None else self._slices[variant]
        free = place.start + np.flatnonzero(self.free[place])
        return (
            free if len(free) <= count and count > 1 else self._rng.choice(free, min(count, len(free)), replace=False)
        )

    def nearest(self, variant: str, ranks: Mapping[str, int]) -> Configuration | None:
        """The free configuration of this variant with the fewest steps from `ranks`, by chance among equals.

        `ranks` are places in each parameter's list of values. Falls back to any other variant's free configuration
        when this one has none left; None when all are taken.
        """
        place = self._slices[variant]
        free = np.flatnonzero(self.free[place])
        if not len(free):
            return self.draw()
        target = np.array([ranks[p.name] for p in self._space.variant(variant).parameters], dtype=np.int16)
        steps = np.abs(self._space.ranks[variant][free] - target).sum(axis=1)
        closest = free[steps == steps.min()]
        position: int = place.start + int(self._rng.choice(closest))
        return self._space.feasible[position]

    def _position(self, configuration: object) -> int | None:
        return self._space.feasible.position(configuration) if isinstance(configuration, Configuration) else None
