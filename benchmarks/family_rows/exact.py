"""A size that tuning did not use: the table's configuration beside the best of a search for exactly that size."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.device import Bench, Device
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.loop.measure import ContextLostError
from tilewright.tuner.loop.study import Budget, Hooks, Knowledge, Progress
from tilewright.tuner.loop.tune import tune
from tilewright.tuner.runtime.any_size.ranges import Ranges

MOST_TRIALS = 200
ROUNDS, SAMPLES = 9, 3


def row(
    device: Device,
    kernel: Kernel,
    family: Family,
    size: int,
    *,
    found: Callable[[], Ranges | None],
    seconds: float,
    seed: int,
) -> dict[str, Any]:
    """Times in ms, all taken in turns; `exact_ms` is the lesser of the search's best and of the table's own, exact.

    `time_ms`: of the table's configuration; `launched_ms`: of the library's call where the range is the library's.
    """
    ranges = found()
    if ranges is None:
        raise ValueError(f"{family} has no table yet: measure the part `tables` first")
    number = ranges.number(size)
    own = ranges.ranges[number].choice.configuration
    searched, tried = _searched(device, kernel, family, size, seconds, seed)
    with ExitStack() as benches:
        at, exact = (
            benches.enter_context(closing(device.bench(kernel, problem, seed)))
            for problem in (family.at(size), family.exact(size))
        )
        asked: list[tuple[str, Bench, Configuration | None]] = [("table", at, own), ("own", exact, own)]
        asked += [("searched", exact, searched)] if searched is not None else []
        asked += [("own choice", exact, None)] if ranges.ranges[number].choice.library_name else []
        times = _in_turns(kernel.l2_of(family.exact(size)), [*asked, ("library", exact, None)])
    exact_ms = min(times[name] for name in ("own", "searched") if name in times)
    return {
        "time_ms": times["table"],
        "launched_ms": times.get("own choice", times["table"]),
        "exact_ms": exact_ms,
        "library_ms": times.get("library"),
        "ratio": exact_ms / times["table"],
        "range": [ranges.ranges[number - 1].high + 1 if number else 1, ranges.ranges[number].high],
        "configuration": str(own),
        "exact": str(searched if times.get("searched") == exact_ms else own),
        "tried": tried,
    }


def _searched(
    device: Device, kernel: Kernel, family: Family, size: int, seconds: float, seed: int
) -> tuple[Configuration | None, int]:
    """The best of a search that knows nothing of the table, and how many configurations it verified."""
    problem, tried, barred = family.exact(size), set[Configuration](), set[Configuration]()
    space, begun_s = kernel.space(problem, device.model.limits), time.monotonic()

    def heard(progress: Progress) -> None:
        if progress.trial.evaluation.time_ms is not None:
            tried.add(progress.trial.configuration)

    while True:
        budget = Budget(MOST_TRIALS, seconds, spent_trials=len(tried), spent_s=time.monotonic() - begun_s)
        with closing(device.bench(kernel, problem, seed)) as bench:
            try:
                known = Knowledge(barred=frozenset(barred))
                result = tune(bench, kernel, space, budget, seed=seed, knowledge=known, hooks=Hooks(on_trial=heard))
            except ContextLostError as lost:
                barred.add(lost.configuration)
                continue
        return (result.best.configuration if result.best else None), len(tried)


def _in_turns(l2: str, asked: Sequence[tuple[str, Bench, Configuration | None]]) -> dict[str, float]:
    """The median time of each, by name; without a configuration it is the library's. What does not run is left out."""
    programs: dict[str, tuple[Bench, Any]] = {}
    for name, bench, configuration in asked:
        try:
            is_library = configuration is None
            program = bench.library(at_any_size=name != "library") if is_library else bench.compile(configuration)
            if configuration is not None and not bench.verify(program).is_right:
                raise ValueError(f"{configuration} is wrong at {bench.problem}")
        except TrialFailure:
            program = None
        if program is not None:
            programs[name] = bench, program
    times: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(ROUNDS):
        for name in list(programs)[:: 1 if turn % 2 else -1]:
            bench, program = programs[name]
            times[name].append(statistics.median(bench.sample(program, l2, SAMPLES)))
    return {name: statistics.median(samples) for name, samples in times.items()}
