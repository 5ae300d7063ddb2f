"""Records of tuned shapes, as searches on a device make them, and times by turns."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from documents.file import in_turns, write
from predictions.shapes import SEED, Shape

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import OptionValue, Problem, octaves
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.device import Bench, Device
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.loop import statistics
from tilewright.tuner.loop.measure import ContextLostError, checked_samples
from tilewright.tuner.loop.tune import Budget, Hooks, Knowledge, Progress, tune
from tilewright.tuner.outcome import L2, Evaluation, Executable, Outcome
from tilewright.tuner.predict.library import LibraryTime
from tilewright.tuner.predict.record import Record

ROUNDS = 11
SAMPLES = 2
LIBRARY_SAMPLES = 5

State = dict[str, Any]


@dataclass
class Run:
    """A device, a kernel and what was found so far, which is written to `path` after every shape."""

    device: Device
    kernel: Kernel
    state: State
    path: Path
    deadline: float  # on the monotonic clock: no shape is begun after it
    dtype: str = "float32"
    options: Mapping[str, OptionValue] = field(default_factory=dict)  # the others are as they are by default

    def problem(self, shape: Shape) -> Problem:
        """The problem of this shape in the run's dtype, with its options."""
        return self.kernel.problem(shape, self.dtype, self.options)

    def survey(self, shapes: Sequence[Shape], budget: Budget) -> None:
        """Adds a record of each shape that has none yet, by a search within the budget."""
        known = [row["shape"] for row in self.state["records"]]
        for shape in (one for one in shapes if one not in known):
            if time.monotonic() >= self.deadline or self.state["rows"]:
                return
            problem, begun = self.problem(shape), time.monotonic()
            bench = self.device.bench(self.kernel, problem, SEED)
            try:
                tried = self.searched(bench, problem, budget, winners(self.records(), problem))
                library = library_of(bench, self.kernel.l2_of(problem))
            finally:
                bench.close()
            entries = written(tried)
            wall_s = round(time.monotonic() - begun, 2)
            record = {
                "shape": shape,
                "dtype": self.dtype,
                "options": dict(self.options),
                "tried": entries,
                "failed": failures(tried),
                "wall_s": wall_s,
            }
            self.state["records"].append(record | {"library": library})
            write(self.path, self.state)
            print(f"{problem}: {len(entries)} of {len(tried)} measured, {wall_s} s", file=sys.stderr, flush=True)

    def records(self) -> list[Record]:
        """The measurements as the predictor's records."""
        return [record_of(self.kernel, row) for row in self.state["records"] if row["tried"]]

    def searched(
        self, bench: Bench, problem: Problem, budget: Budget, starts: Sequence[Configuration]
    ) -> dict[Configuration, Evaluation]:
        """The evaluations of a search within the budget that begins with these."""
        space = self.kernel.space(problem, self.device.model.limits)
        tried: dict[Configuration, Evaluation] = {}

        def on_trial(progress: Progress) -> None:
            tried[progress.trial.configuration] = progress.trial.evaluation

        until = time.monotonic() + (budget.seconds or float("inf"))

        def is_over() -> bool:  # a search that is cancelled has no finals: a record needs none
            return time.monotonic() >= until or len(tried) >= (budget.trials or float("inf"))

        try:
            knowledge, hooks = Knowledge(starts=starts), Hooks(on_trial, is_over)
            tune(bench, self.kernel, space, budget, seed=SEED, knowledge=knowledge, hooks=hooks)
        except ContextLostError as error:
            print(f"{problem}: {error.configuration} broke the context", file=sys.stderr)
        return tried


def library_of(bench: Bench, l2: L2) -> State | None:
    """The name and the time in ms of the library's call; None where the device has none or it failed."""
    try:
        executable = bench.library()
        if executable is None:
            return None
        _, *times_ms = checked_samples(bench, executable, l2, 1 + LIBRARY_SAMPLES)
    except TrialFailure as failure:
        print(f"the library failed: {failure}", file=sys.stderr)
        return None
    return {"name": bench.library_name(), "time_ms": statistics.median(times_ms)}


def written(tried: Mapping[Configuration, Evaluation]) -> list[Any]:
    """The measured ones as a record has them: configuration, time in ms, registers."""
    return [[c.as_json(), e.time_ms, e.resources.registers] for c, e in tried.items() if e.time_ms is not None]


def failures(tried: Mapping[Configuration, Evaluation]) -> list[Any]:
    """The others as a record has them, but for those that the problem has no room for."""
    not_failures = (Outcome.MEASURED, Outcome.CONSTRAINT_VIOLATED)
    return [c.as_json() for c, e in tried.items() if e.outcome not in not_failures]


def winners(records: Sequence[Record], problem: Problem) -> list[Configuration]:
    """The best of each record, the nearest first, each once."""
    return list(dict.fromkeys(record.ranked[0] for record in near(records, problem)))


def problem_of_row(kernel: Kernel, row: State) -> Problem:
    """The problem of a record or row as it was written; those from before there was a choice are in float32."""
    return kernel.problem(row["shape"], row.get("dtype", "float32"), row.get("options", {}))


def record_of(kernel: Kernel, row: State) -> Record:
    """The record that a predictor takes, from one written."""
    tried = [(Configuration.from_json(c), time_ms, registers) for c, time_ms, registers in row["tried"]]
    registers = {c: count for c, _, count in tried if count}
    failed = frozenset(Configuration.from_json(c) for c in row["failed"])
    timed = row.get("library")
    library = timed and LibraryTime(timed["name"].partition(" (")[0], timed["time_ms"])
    times_ms = {c: time_ms for c, time_ms, _ in tried}
    return Record(problem_of_row(kernel, row), times_ms, registers, failed, library=library)


def near(records: Sequence[Record], problem: Problem) -> list[Record]:
    """The records by how far their shapes are from the problem's, the nearest first."""
    return sorted(records, key=lambda record: octaves(dict(problem.sizes), record.problem.shape))


def in_rounds(bench: Bench, l2: L2, executables: Mapping[str, Executable]) -> dict[str, list[float]]:
    """By name the medians of rounds in which each executable is timed."""
    return in_turns(executables, ROUNDS, lambda one: statistics.median(checked_samples(bench, one, l2, SAMPLES)))


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of one number or more, none below 0."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if min(ratios) > 0 else 0.0
