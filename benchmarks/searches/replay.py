"""Searches on a recorded space: best-so-far after each evaluation, ours and Kernel Tuner's on the same numbers."""

from __future__ import annotations

import random
import time
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.outcome import Evaluation, Outcome, Timing
from tilewright.tuner.recorded.recordings import read_recording
from tilewright.tuner.recorded.replay import replay
from tilewright.tuner.search import SAMPLERS, Evaluated, Prior, make_searcher

KERNEL_TUNER = "kernel_tuner:"
"""Begins the name of a strategy of Kernel Tuner's."""

PRIOR_SEED = 1_000_000
"""Added to the seed of a repeat for the search that makes its prior."""


@dataclass(frozen=True, eq=False)  # compared as the object that it is: one a file
class Recorded:
    """A recorded space: each configuration's evaluation, and the best time."""

    name: str
    space: SearchSpace
    evaluations: dict[Configuration, Evaluation]
    optimum_ms: float


@dataclass(frozen=True)
class Run:
    """One search: the best time after each evaluation, in ms, and what proposing cost in CPU time."""

    best_ms: list[float]
    evaluated: list[Evaluated]
    proposer_ms: float


@lru_cache(maxsize=3)
def recorded(path: Path) -> Recorded:
    """The recording in a file. Its objective is the mean of the samples, as in Kernel Tuner's simulation."""
    recording = read_recording(path)
    device, kernel, problem = replay(recording)
    evaluations = {}
    for configuration, entry in recording.entries.items():
        if entry.outcome is Outcome.MEASURED:
            samples_ms = next(iter(entry.samples_ms.values()))
            warm = Timing(float(np.mean(samples_ms)), 0.0, samples_ms, "warm")
            evaluations[configuration] = Evaluation(Outcome.MEASURED, warm=warm)
        else:
            evaluations[configuration] = Evaluation(entry.outcome)
    name = path.name.removesuffix(".gz").removesuffix(".json")
    optimum_ms = min(e.time_ms for e in evaluations.values() if e.time_ms is not None)
    return Recorded(name, kernel.space(problem, device.model.limits), evaluations, optimum_ms)


def search(on: Recorded, sampler: str, seed: int, trials: int, prior: Recorded | None = None) -> Run:
    """One search of ours; its prior is the record of a cold search by our default on another space."""
    priors = []
    if prior is not None:
        priors = [Prior.of(prior.name, search(prior, SAMPLERS[0], seed + PRIOR_SEED, trials).evaluated)]
    best, best_ms, evaluated = float("inf"), [], []
    begun = time.process_time()
    searcher = make_searcher(sampler, on.space, [], seed, priors=priors)
    for _ in range(trials):
        configuration = searcher.propose()
        if configuration is None:
            break
        evaluation = on.evaluations[configuration]
        searcher.tell(configuration, evaluation)
        best = min(best, evaluation.time_ms or best)
        best_ms.append(best)
        evaluated.append((configuration, evaluation))
    return Run(best_ms, evaluated, 1e3 * (time.process_time() - begun) / len(evaluated))


def search_kernel_tuner(on: Recorded, strategy: str, seed: int, trials: int) -> Run:
    """One search by a strategy of Kernel Tuner 1.5 in its simulation mode; evaluations are of distinct configurations.

    Its space is built from the cache, once, so that constructing it does not count as the strategy's time.
    """
    from kernel_tuner import util  # noqa: PLC0415 - a development dependency: only these rows need it
    from kernel_tuner.interface import Options, strategy_map  # noqa: PLC0415
    from kernel_tuner.runners.simulation import SimulationRunner  # noqa: PLC0415

    space, cache = _kernel_tuner_space(on)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the strategies draw from the global generators
    options = Options(
        tune_params=space.tune_params,
        cache=cache,
        restrictions=[],
        strategy_options=Options(max_fevals=trials),
        objective=["time"],
        objective_higher_is_better=[False],
        metrics=None,
        verbose=False,
        budget=util.TuningBudget(None, min(trials, len(cache))),
    )
    named = Options(kernel_name=on.name)
    runner = SimulationRunner(named, named, Options(quiet=True), 7, None)
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = strategy_map[strategy].tune(space, runner, options)
    spent_ms = 1e3 * (time.process_time() - begun)
    times = {tuple(row[name] for name in space.tune_params): row.get("time") for row in reversed(results)}
    order = dict.fromkeys(tuple(row[name] for name in space.tune_params) for row in results)
    best, best_ms = float("inf"), []
    for key in order:
        best = min(best, times[key]) if isinstance(times[key], float) else best
        best_ms.append(best)
    return Run(best_ms, [], spent_ms / len(best_ms))


@lru_cache(maxsize=1)
def _kernel_tuner_space(on: Recorded) -> tuple[Any, dict[str, dict[str, Any]]]:
    from kernel_tuner import util  # noqa: PLC0415
    from kernel_tuner.searchspace import Searchspace  # noqa: PLC0415

    parameters = {p.name: list(p.values) for p in on.space.spaces[0].parameters if len(p.values) > 1}
    cache = {}
    for configuration, evaluation in on.evaluations.items():
        row: dict[str, Any] = {name: configuration.values[name] for name in parameters}
        row |= {"time": evaluation.time_ms, "compile_time": 0, "verification_time": 0, "benchmark_time": 0}
        if evaluation.time_ms is None:
            row["time"] = row["__error__"] = util.RuntimeFailedConfig()
        cache[",".join(str(configuration.values[name]) for name in parameters)] = row
    return Searchspace(None, None, None, from_cache={"tune_params": parameters, "cache": cache}), cache
