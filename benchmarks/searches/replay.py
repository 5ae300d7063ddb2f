"""Searches on a recorded space: best-so-far after each evaluation, ours and Kernel Tuner's on the same numbers."""

from __future__ import annotations

import copy
import json
import random
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.outcome import Evaluation, Outcome, Timing
from tilewright.tuner.recorded.recordings import read_recording
from tilewright.tuner.recorded.replay import replay
from tilewright.tuner.search.samplers import make_searcher
from tilewright.tuner.search.searcher import SAMPLERS, Evaluated, Prior

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

    What `tune_kernel` gives the strategy is made once a recording, so that it does not count as the strategy's time.
    """
    from kernel_tuner import util  # noqa: PLC0415 - a development dependency: only these rows need it
    from kernel_tuner.interface import Options, strategy_map  # noqa: PLC0415

    prepared, runner, options = _prepared_by_kernel_tuner(on)
    space = copy.copy(prepared)
    # Strategies take neighbours out of what the space keeps of them: the next repeat must not see that.
    vars(space).update({name: copy.deepcopy(kept) for name, kept in vars(prepared).items() if "neighbor" in name})
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the strategies draw from the global generators
    runner.visited_results.clear()
    options.strategy_options = Options(max_fevals=trials)
    options.budget = util.TuningBudget(None, min(trials, space.size))
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = strategy_map[strategy].tune(space, runner, options)
    spent_ms = 1e3 * (time.process_time() - begun)
    return Run(best_so_far(results, list(space.tune_params)), [], spent_ms / len(runner.visited_results))


def best_so_far(results: Sequence[Mapping[str, Any]], parameters: Sequence[str]) -> list[float]:
    """The best time in ms after each distinct configuration of Kernel Tuner's results."""
    times: dict[tuple[int, ...], Any] = {}
    for row in results:
        times.setdefault(tuple(row[name] for name in parameters), row.get("time"))
    best, best_ms = float("inf"), []
    for time_ms in times.values():
        best = min(best, time_ms) if isinstance(time_ms, float) else best
        best_ms.append(best)
    return best_ms


@dataclass(frozen=True, eq=False)  # Kernel Tuner looks it up among its own strategies
class _Capture:
    """A strategy that evaluates nothing: it keeps what Kernel Tuner's `tune_kernel` gives to every strategy."""

    given: list[Any]

    def tune(self, space: Any, runner: Any, options: Any) -> list[Any]:
        """No results."""
        self.given.extend([space, runner, options])
        return []


@lru_cache(maxsize=1)
def _prepared_by_kernel_tuner(on: Recorded) -> tuple[Any, Any, Any]:
    """The space as Kernel Tuner's own constructor orders it, its simulated device, and its options."""
    capture = _Capture([])
    with TemporaryDirectory() as folder:
        tune_by_kernel_tuner(on, capture, Path(folder), {})
    space, runner, options = capture.given
    return space, runner, options


def tune_by_kernel_tuner(on: Recorded, strategy: Any, folder: Path, strategy_options: dict[str, int]) -> list[Any]:
    """The results of Kernel Tuner's public `tune_kernel` in simulation mode, on a cache file written to this folder.

    The only restriction is that a configuration was recorded. `tune_cache` would do the same but leave out those that
    failed, and a tuner does not know them beforehand.
    """
    import kernel_tuner  # noqa: PLC0415
    from constraint import FunctionConstraint  # noqa: PLC0415 - what Kernel Tuner builds its spaces with

    parameters = {p.name: list(p.values) for p in on.space.spaces[0].parameters if len(p.values) > 1}
    cache = {}
    for configuration, evaluation in on.evaluations.items():
        row: dict[str, Any] = {name: configuration.values[name] for name in parameters}
        failed = evaluation.time_ms is None
        row |= {"time": "RuntimeFailedConfig" if failed else float(evaluation.time_ms or 0)}
        row |= {"compile_time": 0, "verification_time": 0, "benchmark_time": 0}
        cache[tuple(configuration.values[name] for name in parameters)] = row
    named = {"device_name": on.name, "kernel_name": on.name, "problem_size": 1}
    named |= {"tune_params_keys": list(parameters), "tune_params": parameters}
    file = folder / "cache.json"
    file.write_text(json.dumps(named | {"cache": {",".join(map(str, key)): row for key, row in cache.items()}}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parameters whose names do not say "block size"
        results, _ = kernel_tuner.tune_kernel(
            on.name,
            "",
            1,
            [],
            parameters,
            restrictions=[FunctionConstraint(lambda *values: values in cache)],
            cache=str(file),
            simulation_mode=True,
            strategy=strategy,
            strategy_options=strategy_options,
            quiet=True,
        )
    return list(results)
