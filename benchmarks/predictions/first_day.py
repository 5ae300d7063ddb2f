"""A fresh installation's answers: predictions from several sets of records, timed beside a search's winners."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from documents.file import write
from predictions.rows import (
    Run,
    Shape,
    State,
    failures,
    geometric_mean,
    in_rounds,
    library_of,
    near,
    problem_of_row,
    record_of,
    winners,
    written,
)

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.compilation import Compilation, arch_of
from tilewright.tuner.devices.device import Bench
from tilewright.tuner.devices.isolated.device import IsolatedDevice
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.loop import statistics
from tilewright.tuner.loop.measure import ContextLostError
from tilewright.tuner.loop.tune import Budget
from tilewright.tuner.outcome import L2, Executable
from tilewright.tuner.predict.predictor import Predictor
from tilewright.tuner.predict.record import enough
from tilewright.tuner.predict.shipped import limits_from, shipped_series, undisplaced

OWN = (5, 20)
"""Numbers of own tuned shapes for which predictions are made beside those from all."""

SHIPPED = "as shipped"
"""The name of the predictions that use the package's shipped records alone, as on the first day."""

TIMED = 2
"""The fastest configurations of a search that are timed beside the predictions."""


def record_sets(records: Sequence[State]) -> dict[str, Sequence[State]]:
    """By name the records that an answer rests on: all; or the last third as own shapes and the others as shipped.

    `shipped + N`: N own shapes take the place of the shipped ones that are nearest to them. `own N`: those alone.
    """
    parted = 2 * len(records) // 3
    shipped, own = records[:parted], records[parted:]
    sets: dict[str, Sequence[State]] = {"all": records}
    for count in OWN:
        left = undisplaced(shipped, own[:count], lambda row: row["shape"])
        sets |= {f"shipped + {count}": [*own[:count], *left], f"own {count}": own[:count]}
    return {name: chosen for name, chosen in sets.items() if enough(len(chosen))}


def predicted(kernel_name: str, limits: Limits, rows: Sequence[State], shapes: Sequence[Shape]) -> list[State | None]:
    """For each shape what is predicted from these rows: configuration, expected time in ms, expected loss."""
    kernel, dtype = catalogue().get(kernel_name), rows[0].get("dtype", "float32")
    predictor = Predictor(kernel, limits, [record_of(kernel, row) for row in rows if row["tried"]])
    return _choices(predictor, kernel, [kernel.problem(shape, dtype) for shape in shapes], limits)


def predicted_from_shipped(
    kernel_name: str, dtype: str, limits: Limits, slug: str, shapes: Sequence[Shape]
) -> list[State | None]:
    """For each shape what `best` answers on that device model before anything is tuned: from its shipped records.

    Where it has none, from another model's, among what this one admits.
    """
    kernel = catalogue().get(kernel_name)
    problems = [kernel.problem(shape, dtype) for shape in shapes]
    ranked = sorted(shipped_series(kernel, problems[0]), key=lambda series: series.device_model != slug)
    if not ranked:
        return [None] * len(shapes)
    return _choices(Predictor(kernel, ranked[0].limits, ranked[0].records), kernel, problems, limits)


def _choices(predictor: Predictor, kernel: Kernel, problems: Sequence[Problem], limits: Limits) -> list[State | None]:
    found: list[State | None] = []
    for problem in problems:
        made = predictor.predict(problem, kernel.space(problem, limits).__contains__)
        facts = made and {"ms": made.time_ms, "loss": made.expected_loss, "use_library": made.is_library_faster}
        found.append(facts and {"configuration": made.configuration.as_json(), **facts})
    return found


@dataclass
class FirstDay:
    """A run whose records exist, and what is predicted for some shapes from several sets of them."""

    run: Run
    shapes: Sequence[Shape]
    chosen: Sequence[Mapping[str, State]] = ()  # by shape and set

    def _compile(self, shape: Shape, configurations: Iterable[Configuration]) -> None:
        """Begins to compile them, where a pool does that."""
        pool = self.run.device.pool if isinstance(self.run.device, IsolatedDevice) else None
        if pool is not None and self.run.device.model.kind == "cuda":
            arch, problem = arch_of(self.run.device.model.limits.compute_capability), self.run.problem(shape)
            for configuration in configurations:
                pool.submit(Compilation.of(self.run.kernel, problem, configuration, arch, "nvrtc"))

    def predict(self, executor: Executor) -> None:
        """Fits to each set of records in a process of its own; what is predicted is compiled at once."""
        limits = self.run.device.model.limits
        kernel_name, slug = self.run.kernel.name, self.run.device.model.slug
        shipped = executor.submit(predicted_from_shipped, kernel_name, self.run.dtype, limits, slug, self.shapes)
        sets = record_sets(self.run.state["records"])
        work = partial(predicted, kernel_name, limits, shapes=self.shapes)
        columns = {SHIPPED: shipped.result(), **dict(zip(sets, executor.map(work, sets.values()), strict=True))}
        self.chosen = [
            {name: column[place] for name, column in columns.items() if column[place]}
            for place in range(len(self.shapes))
        ]
        for shape, by_set in zip(self.shapes, self.chosen, strict=True):
            self._compile(shape, [Configuration.from_json(one["configuration"]) for one in by_set.values()])

    def compare(self, budget: Budget, deadline: float) -> None:
        """Adds a row of each shape, after a search within the budget; stops at the deadline."""
        for shape, by_set in zip(self.shapes, self.chosen, strict=True):
            if time.monotonic() >= deadline:
                return
            self.run.state["rows"].append(self._compared(shape, by_set, budget))
            write(self.run.path, self.run.state)

    def _compared(self, shape: Shape, by_set: Mapping[str, State], budget: Budget) -> State:
        begun, kernel = time.monotonic(), self.run.kernel
        problem = self.run.problem(shape)
        space = kernel.space(problem, self.run.device.model.limits)
        records = self.run.records()
        nearest = next((r.ranked[0] for r in near(records, problem) if r.ranked[0] in space), None)
        beside = {"default": kernel.default_configuration(space)} | ({"nearest": nearest} if nearest else {})
        chosen = {name: one["configuration"] for name, one in by_set.items()}
        chosen |= {name: configuration.as_json() for name, configuration in beside.items()}
        starts = [Configuration.from_json(one) for one in chosen.values()]
        bench, l2 = self.run.device.bench(kernel, problem, 1), kernel.l2_of(problem)
        try:
            tried = self.run.searched(bench, problem, budget, [*starts, *winners(records, problem)])
            row: State = {"shape": shape, "dtype": self.run.dtype, "tried": written(tried), "failed": failures(tried)}
            ranked = [Configuration.from_json(c) for c, *_ in sorted(row["tried"], key=lambda one: one[1])]
            timed = self._timed(bench, l2, list(dict.fromkeys([*ranked[:TIMED], *(c for c in starts if c in ranked)])))
            row["library"] = library_of(bench, l2)
        finally:
            bench.close()
        expected = {name: {k: v for k, v in one.items() if k != "configuration"} for name, one in by_set.items()}
        row |= {"chosen": chosen, "expected": expected, "timed": timed, "wall_s": round(time.monotonic() - begun, 2)}
        print(f"{problem}: {len(ranked)} measured, {row['wall_s']} s", file=sys.stderr, flush=True)
        return row

    @staticmethod
    def _timed(bench: Bench, l2: L2, configurations: Sequence[Configuration]) -> State:
        """Times in rounds by turns, of the configurations in this order and of the library."""
        named = {f"{place}": configuration for place, configuration in enumerate(configurations)}
        try:
            executables: dict[str, Executable] = {name: bench.compile(c) for name, c in named.items()}
            library = bench.library()
            executables |= {} if library is None else {"library": library}
            rounds = in_rounds(bench, l2, executables)
        except (TrialFailure, ContextLostError) as failure:
            print(f"not timed: {failure}", file=sys.stderr)
            return {"configurations": [], "library_ms": None}
        medians = {name: statistics.median(times_ms) for name, times_ms in rounds.items()}
        timed = [[configuration.as_json(), medians[name]] for name, configuration in named.items()]
        return {"configurations": timed, "library_ms": medians.get("library")}


Times = Mapping[Configuration, float]


def summary(result: State) -> State:
    """For each set of records how good the choices of this result are."""
    kernel, limits = catalogue().get(result["kernel"]), limits_from(result["limits"])
    times = [_times(row) for row in result["rows"]]
    sets = {name: _as_answered(name, result["rows"], times) for name in (SHIPPED, "default")}
    sets = {name: judged for name, judged in sets.items() if judged["rows"]}
    for name, records in record_sets(result["records"]).items():
        rows = _rows(kernel, limits, records, result["rows"], times)
        sets[name] = {"records": len(records), **_totals(rows), "rows": rows}
    kept = ("written_at", "device_model", "environment", "kernel", "seed", "sizes", "tuned", "trials")
    commands = result.get("commands") or [result["command"]]
    trials = sum(len(row["tried"]) for row in result["records"])
    return {name: result[name] for name in kept} | {"commands": commands, "record_trials": trials, "sets": sets}


def _as_answered(name: str, unseen: Sequence[State], times: Sequence[Times]) -> State:
    """The same of choices as they were made in that run; some failed, or a search ended before their turn."""
    rows: list[State] = []
    for row, measured in zip(unseen, times, strict=True):
        if name in row["chosen"]:
            time_ms = measured.get(Configuration.from_json(row["chosen"][name]))
            best_ms, library_ms = min(measured.values()), row["timed"]["library_ms"] or row["library"]["time_ms"]
            made = {"shape": row["shape"], "measured": len(measured), "best_ms": best_ms, "library_ms": library_ms}
            use_library = row["expected"].get(name, {}).get("use_library", False)
            answer = {"time_ms": time_ms, "ratio": best_ms / time_ms, "use_library": use_library} if time_ms else None
            rows.append(made | ({"predicted": answer} if answer else {"not_measured": row["chosen"][name]}))
    return {**_totals(rows), "not_measured": sum("predicted" not in row for row in rows), "rows": rows}


def _times(row: State) -> Times:
    """Of each configuration that was measured at an unseen shape its time in ms; those timed in rounds count so."""
    times = {Configuration.from_json(configuration): time_ms for configuration, time_ms, _ in row["tried"]}
    return times | {Configuration.from_json(chosen): time_ms for chosen, time_ms in row["timed"]["configurations"]}


def _rows(
    kernel: Kernel, limits: Limits, records: Sequence[State], unseen: Sequence[State], times: Sequence[Times]
) -> list[State]:
    predictor = Predictor(kernel, limits, [record_of(kernel, row) for row in records if row["tried"]])
    rows = []
    for row, measured in zip(unseen, times, strict=True):
        problem = problem_of_row(kernel, row)
        free = predictor.predict(problem, kernel.space(problem, limits).__contains__)
        among = predictor.predict(problem, measured.__contains__)
        best_ms, library_ms = min(measured.values()), row["timed"]["library_ms"] or row["library"]["time_ms"]
        made: State = {"shape": row["shape"], "measured": len(measured), "best_ms": best_ms, "library_ms": library_ms}
        for name, one in (("predicted", free), ("among_measured", among)):
            if one is not None and one.configuration in measured:
                time_ms = measured[one.configuration]
                expected = {"expected_ms": one.time_ms, "library_expected_ms": one.library and one.library.time_ms}
                made[name] = {
                    "time_ms": time_ms,
                    "ratio": best_ms / time_ms,
                    **expected,
                    "use_library": one.is_library_faster,
                }
        rows.append(made)
    return rows


def _totals(rows: Sequence[State]) -> State:
    totals: State = {}
    for name in ("predicted", "among_measured"):
        chosen = [(row, row[name]) for row in rows if name in row]
        ratios = [one["ratio"] for _, one in chosen]
        slower = [one["use_library"] for row, one in chosen if one["time_ms"] > row["library_ms"]]
        totals[name] = {
            "shapes": len(ratios),
            "geometric_mean": round(geometric_mean(ratios), 3) if ratios else None,
            "minimum": round(min(ratios), 3) if ratios else None,
            "use_library": sum(one["use_library"] for _, one in chosen),
            "slower_than_library": len(slower),
            "slower_and_not_said": slower.count(False),
        }
    return totals
