"""Scripts of Kernel Tuner's, tuned by both: the adopted folders here, and the scripts' own calls by Kernel Tuner.

    python benchmarks/adoption/tuned.py SCRIPT.py|FOLDER … --adopted FOLDER --adopt       # a host without a GPU will do
    python benchmarks/adoption/tuned.py SCRIPT.py|FOLDER … --adopted FOLDER --out rows.json [--seconds 10]

The second needs a GPU, Kernel Tuner and what its scripts need. For each call the adopted kernel is tuned first, for
`--seconds` and its finals; `ours_s` counts from the kernel's own preparation to the settled winner. Kernel Tuner then
has as many seconds for all of its `tune_kernel`, with the script's own arguments beside what limited_calls.py names.
Of what it measured, the fastest that compiles, runs and is right by our verification is its winner; those before it are
in `kernel_tuner_skipped` with the reason. Both winners are then timed by one clock, ours, in rounds that take turns;
`ratio` is `kernel_tuner_ms` over `ours_ms`, with its 95 % interval.

A row is written as soon as it is there. Calls whose rows are in `--out` are not run again; with `--stop-after` no call
begins later, and the same command goes on where it stopped. `--merge` puts the rows of files into adoption.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts import CALLS, RESULTS
from tuned_script import Row, Script

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.own import own_kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.devices.device import Bench, Device
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.errors import TrialFailure, TunerError, first_error
from tilewright.tuner.loop import statistics
from tilewright.tuner.loop.measure import ContextLostError, checked_samples
from tilewright.tuner.loop.study import Budget, Hooks, Knowledge, Progress, Trial, TuneResult
from tilewright.tuner.loop.tune import tune
from tilewright.tuner.loop.verify import verify_configuration

ROUNDS, SAMPLES = 15, 3
SUMS = ("ours_ms", "ours_s", "kernel_tuner_ms", "kernel_tuner_s")
START_S = 120.0
"""How long a script may take to get to its first call: some draw gigabytes of random numbers."""
LATE_S = 30.0
"""How much later than its seconds Kernel Tuner may answer, and how long a script may take to get to a later call."""
MOST_SKIPPED = 10
"""How many of Kernel Tuner's fastest are tried for one that is right."""
PRECISIONS = {"float16": "half", "float32": "float", "float64": "double"}


class Gpu:
    """The device, opened when it is needed, and again after a configuration has broken its context."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._device: Device | None = None

    @property
    def device(self) -> Device:
        """The device, which may have to be opened."""
        self._device = self._device or open_device(self._name)
        return self._device

    def close(self) -> None:
        """The next use opens it anew."""
        device, self._device = self._device, None
        if device is not None:
            device.close()


class Ours:
    """An adopted kernel on the device: its search, and the time of any configuration."""

    def __init__(self, folder: Path, gpu: Gpu) -> None:
        self.kernel: Kernel = own_kernel(folder)
        self.problem: Problem = self.kernel.problem(self.kernel.example_shape)
        self._gpu = gpu
        self.space: SearchSpace = self.kernel.space(self.problem, gpu.device.model.limits)
        self.bench: Bench = gpu.device.bench(self.kernel, self.problem, 1)

    def renewed(self) -> Bench:
        """A bench in a new process of the device."""
        self._gpu.close()
        self.bench = self._gpu.device.bench(self.kernel, self.problem, 1)
        return self.bench

    def search(self, seconds: float) -> tuple[TuneResult, list[Trial]]:
        """The settled winner and all trials; goes on in a new process where a configuration has broken one."""
        trials: list[Trial] = []
        barred: set[Configuration] = set()
        begun = time.monotonic()

        def keep(progress: Progress) -> None:
            trials.append(progress.trial)

        while True:
            left = Budget(seconds=seconds, spent_trials=len(trials), spent_s=time.monotonic() - begun)
            knowledge = Knowledge(list(trials), frozenset(barred))
            try:
                result = tune(self.bench, self.kernel, self.space, left, seed=1, knowledge=knowledge, hooks=Hooks(keep))
            except ContextLostError as lost:
                if lost.evaluation is None:
                    barred.add(lost.configuration)
                self.renewed()
            else:
                return result, trials

    def why_not(self, configuration: Configuration) -> str | None:
        """What keeps a configuration of Kernel Tuner's from being its winner; None where nothing does."""
        try:
            verification = verify_configuration(self.bench, self.bench.compile(configuration))
        except ContextLostError:
            self.renewed()
            return "it breaks the device's context"
        except TrialFailure as failure:
            if failure.sticky:
                self.renewed()
            return f"{failure.outcome}: {failure.log}"[:300]
        except TunerError as failure:
            return f"{type(failure).__name__}: {failure}"[:300]
        return None if verification.is_right else verification.message()


def row_of(script: Script, call: Row, gpu: Gpu, options: argparse.Namespace, limit_s: float) -> Row:
    """A call's row; `reason` where a side has no time."""
    row: Row = {"source": script.title, "call": call["call"], "kernel": call["kernel_name"], "seconds": options.seconds}
    ready = script.heard(limit_s)
    if "failure" in ready or call["folder"] is None:
        script.tell({"skip": True})
        why = f"Kernel Tuner: {ready['failure']}" if call["folder"] else f"not adopted: {call['refused']}"
        return row | {"reason": why}
    begun = time.monotonic()
    ours = Ours(call["folder"], gpu)
    try:
        prepared_s = time.monotonic() - begun
        result, trials = ours.search(options.seconds)
        ours_s = time.monotonic() - begun
        row |= {"shape": ours.problem.stated_shape, "dtype": ours.problem.dtype, "space": len(ours.space)}
        row |= {"trials": len(trials), "stopped_by": result.stopped_by, "prepared_s": prepared_s, "ours_s": ours_s}
        row |= failures(trials)
        if result.best is not None:
            row |= {"ours": result.best.configuration.as_json(), "ours_in_finals_ms": result.best.time_ms}
        capability = "".join(map(str, gpu.device.model.limits.compute_capability))
        told = {"seconds": ours_s, "strategy": options.strategy, "langs": options.langs.split(","), "arch": capability}
        script.tell(told | {"fixed": fixed(ours, ready["values"])})
        theirs = script.heard(2 * ours_s + LATE_S)
        named = {"kernel_tuner_s": "seconds", "kernel_tuner_measured": "measured", "kernel_tuner_failed": "failed"}
        named |= {"lang": "lang", "flags": "flags", "left_out": "left_out"}
        row |= {name: theirs[key] for name, key in named.items() if key in theirs}
        if result.best is None:
            return row | {"reason": "no configuration of ours was measured and verified"}
        if "failure" in theirs:
            return row | {"reason": f"Kernel Tuner: {theirs['failure']}"}
        return row | beside(ours, result.best.configuration, theirs["fastest"])
    finally:
        ours.bench.close()


def failures(trials: Sequence[Trial]) -> Row:
    """How many of ours were not measured, by outcome, and why the first was not."""
    failed = [trial.evaluation for trial in trials if trial.evaluation.time_ms is None]
    counts = Counter(one.outcome.value for one in failed)
    return {"ours_failed": counts} | ({"ours_first_failure": first_error(failed[0].log)[:300]} if failed else {})


def fixed(ours: Ours, values: dict[str, list[Any]]) -> dict[str, Any]:
    """Kernel Tuner's parameters that have one value here: axes, and a precision that is the problem's dtype."""
    shape = {name: size for name, size in ours.problem.shape.items() if name in values}
    known = {one.name.removesuffix("_index") for variant in ours.kernel.variants for one in variant.parameters}
    dtype = PRECISIONS.get(ours.problem.dtype)
    precisions = {name: dtype for name, listed in values.items() if name not in known and dtype in listed}
    return precisions | shape


def beside(ours: Ours, best: Configuration, fastest: Sequence[Row]) -> Row:
    """Both winners and their times; Kernel Tuner's is the fastest of its own that is right."""
    skipped: list[Row] = []
    row: Row = {"kernel_tuner_skipped": skipped}
    for one in fastest[:MOST_SKIPPED]:
        found = configuration_of(ours.kernel, one)
        why = ours.why_not(found)
        if why is None:
            is_ours = found in ours.space
            row |= {"kernel_tuner": found.as_json(), "by_its_own_clock_ms": one["time_ms"], "is_in_our_space": is_ours}
            return row | compared(ours, best, found)
        skipped.append({"configuration": found.as_json(), "by_its_own_clock_ms": one["time_ms"], "why": why})
    return row | {"reason": f"Kernel Tuner: none of its {len(skipped)} fastest is right"}


def configuration_of(kernel: Kernel, found: Row) -> Configuration:
    """Kernel Tuner's winner by the adopted kernel's names; a parameter of no whole numbers is a place among them."""
    (variant,) = kernel.variants
    values = {
        one.name: found["best"][one.name]
        if one.name in found["best"]
        else found["places"][one.name.removesuffix("_index")]
        for one in variant.parameters
    }
    return Configuration.of(variant.name, values)


def compared(ours: Ours, best: Configuration, theirs: Configuration) -> Row:
    """Both times, in rounds that take turns."""
    bench, state = ours.bench, "cold" if ours.kernel.ranking_l2 == "cold" else "warm"
    sides = {"ours": bench.compile(best), "kernel_tuner": bench.compile(theirs)}
    rounds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(ROUNDS + 1):  # the first warms up
        for side in sorted(sides, reverse=number % 2 == 0):
            time_ms = statistics.median(checked_samples(bench, sides[side], state, SAMPLES))
            if number:
                rounds[side].append(time_ms)
    ratio, interval = statistics.ratio_interval(rounds["kernel_tuner"], rounds["ours"])
    row: Row = {f"{side}_ms": statistics.median(times) for side, times in rounds.items()}
    return row | {"ratio": ratio, "ratio_ci": [interval.low, interval.high], "l2": state}


class Rows:
    """The rows of `--out`."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._out: Path = options.out
        words = f"--seconds {options.seconds:g} --strategy {options.strategy} --langs {options.langs}"
        self._facts: Row = {"command": f"python benchmarks/adoption/tuned.py FOLDER … {words}"}
        self.rows: list[Row] = json.loads(self._out.read_text())["rows"] if self._out.exists() else []

    def know(self, device: Device) -> None:
        """What the rows were measured on."""
        self._facts |= {"device": device.model.name, "driver": device.environment.driver}
        self._facts["date"] = datetime.now(UTC).date().isoformat()

    def has(self, script: Script, call: Row) -> bool:
        """Whether the call was run before."""
        return any((row["source"], row["call"]) == (script.title, call["call"]) for row in self.rows)

    def add(self, row: Row) -> None:
        """Writes the file anew, whole."""
        self.rows.append(row)
        self._out.parent.mkdir(parents=True, exist_ok=True)
        beside = self._out.with_suffix(".part")
        beside.write_text(json.dumps(self._facts | {"rows": self.rows}, indent=1) + "\n")
        beside.replace(self._out)


def run(scripts: Sequence[Script], options: argparse.Namespace) -> None:
    """All scripts are adopted, and wait at their first call, before anything is timed."""
    begun, rows, gpu = time.monotonic(), Rows(options), Gpu(options.device)
    left = [one for one in scripts if not all(rows.has(one, call) for call in one.adopted())]
    try:
        for script in left:
            script.start()
        rows.know(gpu.device)
        for script in left:
            script_rows(script, gpu, rows, options, begun)
    finally:
        for script in left:
            script.end()
        gpu.close()


def script_rows(script: Script, gpu: Gpu, rows: Rows, options: argparse.Namespace, begun: float) -> None:
    """The rows of one script's calls, in their order; those that are there already are let go as they were adopted."""
    calls = script.adopted()
    for number, call in enumerate(calls):
        limit_s = LATE_S if number else START_S
        if all(rows.has(script, one) for one in calls[number:]):
            break
        if rows.has(script, call):
            script.heard(limit_s)
            script.tell({"skip": True})
            continue
        if time.monotonic() - begun > options.stop_after:
            print(f"{script.title} {call['kernel_name']}: no time left", flush=True)
            break
        try:
            row = row_of(script, call, gpu, options, limit_s)
        except Exception as error:  # noqa: BLE001 - somebody's script: it costs its own row
            row = {"source": script.title, "call": call["call"], "kernel": call["kernel_name"]}
            row["reason"] = f"{type(error).__name__}: {error}"[:500]
            script.tell({"skip": True})  # where it waits
            gpu.close()
        rows.add(row)
        print(f"{time.monotonic() - begun:.0f} s", json.dumps(row), flush=True)
    script.end()


def merge(files: Sequence[Path], into: Path) -> None:
    """Puts the rows of files into those of adoption.json, whose `source` ends with theirs."""
    document = json.loads(into.read_text())
    for file in files:
        told = json.loads(file.read_text())
        facts = {name: value for name, value in told.items() if name != "rows"}
        for row in document["rows"]:
            kernels = [one for one in told["rows"] if row["source"] == f"kernel_tuner/examples/cuda/{one['source']}"]
            if kernels:
                before = row.get("tuned", {})
                others = before.get("kernels", []) if before.get("command") == facts["command"] else []
                row["tuned"] = {**facts, "kernels": sorted([*others, *kernels], key=lambda one: one["call"])}
                row |= {name: total(name, row["tuned"]["kernels"]) for name in SUMS}
    into.write_text(json.dumps(document, indent=1) + "\n")


def total(name: str, kernels: list[Row]) -> float | None:
    """The sum over the kernels; None where one has none."""
    values = [kernel.get(name) for kernel in kernels]
    return sum(value for value in values if value) if all(values) else None


def main() -> None:
    """Adopts, compares or merges."""
    options = parse()
    if options.merge:
        merge(options.merge, RESULTS)
        return
    paths = [one for given in options.scripts for one in (sorted(given.glob("*.py")) if given.is_dir() else [given])]
    paths = [path for path in paths if any(call in path.read_text(errors="replace") for call in CALLS[:-1])]
    scripts = [Script(path, options.adopted / path.stem) for path in paths]
    if options.adopt:
        for script in scripts:
            print(script.title, json.dumps([call["refused"] or call["kernel_name"] for call in script.adopted()]))
    else:
        run(scripts, options)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", type=Path, help="scripts, and folders of them")
    parser.add_argument("--adopted", type=Path, default=Path("adopted"), help="where adopted folders are, or appear")
    parser.add_argument("--adopt", action="store_true", help="adopts only")
    parser.add_argument("--out", type=Path, default=Path("tuned.json"), help="the rows")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="ROWS", help="files of rows for adoption.json")
    parser.add_argument("--seconds", type=float, default=10.0, help="of our search; its finals come on top")
    parser.add_argument("--strategy", default="adaptive_tabu_greywolf", help="of Kernel Tuner's")
    parser.add_argument("--langs", default="CUPY,NVCUDA", help="Kernel Tuner's back ends for CUDA, tried in this order")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--stop-after", type=float, default=3600.0, help="no call begins later than so many seconds")
    return parser.parse_args()


if __name__ == "__main__":
    main()
