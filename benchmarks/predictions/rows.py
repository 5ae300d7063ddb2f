"""The two halves of benchmarks/predict.py: records of tuned shapes, and rows that compare predictions with tuning."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from documents.file import write
from documents.rounds import in_turns
from predictions.shapes import SEED, Shape

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import OptionValue, Problem, octaves
from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.devices.device import Bench, Device
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.loop import statistics
from tilewright.tuner.loop.measure import ContextLostError, checked_samples
from tilewright.tuner.loop.tune import MOST_STARTS, Budget, Hooks, Knowledge, Progress, tune
from tilewright.tuner.outcome import L2, Evaluation, Executable, Outcome
from tilewright.tuner.predict.library import LibraryTime
from tilewright.tuner.predict.predictor import Predictor
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

    def share(self) -> None:
        """Has each shape that has a record try the best of the nearest others, once."""
        records = self.records()
        for row in [row for row in self.state["records"] if "shared" not in row]:
            if time.monotonic() >= self.deadline or self.state["rows"]:
                return
            problem = self.problem(row["shape"])
            space = self.kernel.space(problem, self.device.model.limits)
            has = {Configuration.from_json(c) for c, *_ in row["tried"]}
            untried = [c for c in winners(records, problem) if c in space and c not in has][:MOST_STARTS]
            tried = self._evaluated(problem, untried)
            entries = written(tried)
            row["tried"] += entries
            row["failed"] += failures(tried)
            row["shared"] = len(entries)
            write(self.path, self.state)
            print(f"{problem}: {len(entries)} winners of other shapes measured", file=sys.stderr, flush=True)

    def compare(self, shapes: Sequence[Shape], trials: int) -> None:
        """Adds a row for each unseen shape that has none yet, with a job of so many trials to compare with."""
        if time.monotonic() >= self.deadline:
            return
        records, begun = self.records(), time.perf_counter()
        predictor = Predictor(self.kernel, self.device.model.limits, records)
        self.state["fit_s"] = round(time.perf_counter() - begun, 2)
        losses = predictor.losses.values()
        self.state["left_out"] = geometric_mean([1 / (1 + loss) for loss in losses])
        for shape in shapes[len(self.state["rows"]) :]:
            if time.monotonic() >= self.deadline:
                return
            problem = self.problem(shape)
            space = self.kernel.space(problem, self.device.model.limits)
            starts = [c for c in winners(records, problem) if c in space]
            row = self._compared(problem, space, predictor, starts, trials)
            self.state["rows"].append(row)
            write(self.path, self.state)
            print(f"{problem}: {row['ratio']:.3f}", file=sys.stderr, flush=True)

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

    def _evaluated(self, problem: Problem, configurations: Sequence[Configuration]) -> dict[Configuration, Evaluation]:
        bench = self.device.bench(self.kernel, problem, SEED)
        try:
            bench.compile_ahead(configurations)
            return {c: bench.evaluate(c, self.kernel.l2_of(problem)) for c in configurations}
        finally:
            bench.close()

    def _compared(
        self,
        problem: Problem,
        space: SearchSpace,
        predictor: Predictor,
        near_ones: Sequence[Configuration],
        trials: int,
    ) -> State:
        """`near_ones`: the bests of the nearest shapes that fit, the nearest first."""
        begun = time.perf_counter()
        prediction = predictor.predict(problem, space.__contains__)
        predict_ms = round(1e3 * (time.perf_counter() - begun), 1)
        chosen = {"nearest": near_ones[0] if near_ones else self.kernel.default_configuration(space)}
        chosen["predicted"] = chosen["nearest"] if prediction is None else prediction.configuration
        bench, l2 = self.device.bench(self.kernel, problem, SEED), self.kernel.l2_of(problem)
        try:
            bench.compile_ahead(list(chosen.values()))
            starts = [chosen["predicted"], *near_ones]
            chosen["tuned"] = self._tuned(bench, problem, space, trials, starts)
            outcomes = {name: bench.evaluate(c, l2).outcome for name, c in chosen.items()}
            if outcomes["tuned"] is not Outcome.MEASURED:
                raise SystemExit(f"{problem}: the job's winner now ends as {outcomes['tuned']}")
            right = {name: c for name, c in chosen.items() if outcomes[name] is Outcome.MEASURED}
            times_ms = by_turns(bench, l2, right)
        finally:
            bench.close()
        return {
            "shape": problem.stated_shape,
            "match": "nearest" if prediction is None else "predicted",
            "ratio": _ratio(times_ms, "predicted"),
            "nearest_ratio": _ratio(times_ms, "nearest"),
            "outcomes": outcomes,
            "expected_loss": None if prediction is None else prediction.expected_loss,
            "expected_ms": None if prediction is None else prediction.time_ms,
            "times_ms": {name: statistics.median(rounds) for name, rounds in times_ms.items()},
            "configurations": {name: configuration.as_json() for name, configuration in chosen.items()},
            "predict_ms": predict_ms,
        }

    def _tuned(
        self, bench: Bench, problem: Problem, space: SearchSpace, trials: int, starts: Sequence[Configuration]
    ) -> Configuration:
        knowledge = Knowledge(starts=list(dict.fromkeys(starts)))
        best = tune(bench, self.kernel, space, Budget(trials=trials), seed=SEED, knowledge=knowledge).best
        if best is None:
            raise SystemExit(f"{problem}: nothing was measured")
        return best.configuration


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


def _ratio(times_ms: Mapping[str, Sequence[float]], name: str) -> float:
    """The time of what the job found over this one's; 0 for one that was not measured, which is of no use."""
    return statistics.ratio_interval(times_ms["tuned"], times_ms[name])[0] if name in times_ms else 0.0


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


def by_turns(bench: Bench, l2: L2, configurations: dict[str, Configuration]) -> dict[str, list[float]]:
    """By name the medians of rounds in which each is timed."""
    return in_rounds(bench, l2, {name: bench.compile(c) for name, c in configurations.items()})


def in_rounds(bench: Bench, l2: L2, executables: Mapping[str, Executable]) -> dict[str, list[float]]:
    """By name the medians of rounds in which each executable is timed."""
    return in_turns(executables, ROUNDS, lambda one: statistics.median(checked_samples(bench, one, l2, SAMPLES)))


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of one number or more, none below 0."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if min(ratios) > 0 else 0.0
