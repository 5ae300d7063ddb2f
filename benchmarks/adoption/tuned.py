"""Scripts of Kernel Tuner's, tuned by both: the adopted folder here, and the script's own call by Kernel Tuner.

    python benchmarks/adoption/tuned.py NAME=SCRIPT.py … [--seconds 4] [--strategy adaptive_tabu_greywolf]

Needs a GPU, Kernel Tuner and what its scripts need. For each call the adopted kernel is tuned first, for `--seconds`
and its finals; `ours_s` counts from opening the device to the settled winner, `prepared_s` to the beginning of the
search. Kernel Tuner then has as many seconds for
all of its `tune_kernel`, with the script's own arguments beside the strategy. `ours_ms` and `kernel_tuner_ms` are both
winners' times by one clock, ours, in rounds that take turns; `ratio` is the second over the first, with its 95 %
interval. A winner of Kernel Tuner's that our verification finds wrong says so in `kernel_tuner_is_wrong`.

The rows of these scripts in benchmarks/results/adoption.json, which scripts.py has written, get a `tuned`, or with
`--lang` one that is named by it (`tuned_cupy`), and the sums over the script's kernels in `ours_ms`, `ours_s`,
`kernel_tuner_ms` and `kernel_tuner_s`. Those are null where a kernel has none, or nothing was tuned.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts import RESULTS, TILEWRIGHT

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.own import own_kernel
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.device import Bench
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.loop import statistics
from tilewright.tuner.loop.measure import checked_samples
from tilewright.tuner.loop.tune import Budget, Hooks, tune
from tilewright.tuner.loop.verify import verify_configuration

LIMITED_CALLS = Path(__file__).with_name("limited_calls.py")
ROUNDS, SAMPLES = 15, 3
SUMS = ("ours_ms", "ours_s", "kernel_tuner_ms", "kernel_tuner_s")
LATE_S = 30.0
"""How much later than its seconds Kernel Tuner may answer, and how long a script may take to get to a call."""

Row = dict[str, Any]


class Script:
    """A script that is adopted, and that waits with Kernel Tuner at its first call."""

    def __init__(self, named: str, folder: Path) -> None:
        self.title, _, path = named.partition("=")
        self.log = folder / f"{len(list(folder.iterdir()))}.log"
        self._folder = self.log.with_suffix("")
        self._path = path
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(LIMITED_CALLS), path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
            )
        self._lines: queue.Queue[str] = queue.Queue()  # an empty one at the end
        threading.Thread(target=self._listen, daemon=True).start()

    def adopted(self) -> list[Row]:
        """Its calls, as `kernels adopt` says them."""
        command = [*TILEWRIGHT, "kernels", "adopt", self._path, "--folder", str(self._folder), "--json"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        calls: list[Row] = json.loads(ran.stdout)["calls"] if ran.stdout else []
        return calls or [{"folder": None, "kernel_name": "", "refused": ran.stderr.strip()}]

    def heard(self, limit_s: float) -> Row:
        """The next line of the script's process, or a failure."""
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            self._process.kill()
            return {"failure": f"nothing was heard of it for {limit_s:.0f} s"}
        answer: Row = json.loads(line) if line else {"failure": f"the script ended: {self._last_line()}"}
        return answer

    def tell(self, what: Mapping[str, Any] | None) -> None:
        """Lets the call go that waits."""
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        self._process.stdin.write(json.dumps(what) + "\n")

    def end(self) -> None:
        """Ends its process."""
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _last_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def row_of(script: Script, call: Row, options: argparse.Namespace) -> Row:
    """A call's row; `reason` where a side has no time."""
    row: Row = {"kernel": call["kernel_name"]}
    ready = script.heard(LATE_S)
    if call["folder"] is None:
        script.tell(None)
        return row | {"reason": call["refused"]}
    if "failure" in ready:
        return row | {"reason": f"Kernel Tuner: {ready['failure']}"}
    kernel = own_kernel(Path(call["folder"]))
    problem = kernel.problem(kernel.example_shape)
    trials = 0

    def count(_progress: Any) -> None:
        nonlocal trials
        trials += 1

    begun = time.monotonic()
    device = open_device(options.device)
    try:
        bench = device.bench(kernel, problem, 1)
        space = kernel.space(problem, device.model.limits)
        prepared_s = time.monotonic() - begun
        result = tune(bench, kernel, space, Budget(seconds=options.seconds), seed=1, hooks=Hooks(count))
        row |= {
            "shape": problem.stated_shape,
            "space": len(space),
            "trials": trials,
            "prepared_s": prepared_s,
            "ours_s": time.monotonic() - begun,
        }
        fixed = {name: size for name, size in problem.shape.items() if name in ready["names"]}
        limits = {"seconds": row["ours_s"], "strategy": options.strategy, "lang": options.lang}
        script.tell(limits | {"fixed": fixed})
        theirs = script.heard(row["ours_s"] + LATE_S)
        row |= {"kernel_tuner_s": theirs.get("seconds"), "kernel_tuner_evaluated": theirs.get("evaluated")}
        row["by_its_own_clock_ms"] = theirs.get("time_ms")
        if result.best is None:
            return row | {"reason": "no configuration of ours was measured and verified"}
        row["ours"] = result.best.configuration.as_json()
        if "failure" in theirs:
            return row | {"reason": f"Kernel Tuner: {theirs['failure']}"}
        found = configuration_of(kernel, theirs)
        row["kernel_tuner"] = found.as_json()
        if found not in space:
            return row | {"reason": "Kernel Tuner's winner is not in the space of the adopted kernel"}
        return row | compared(bench, kernel, result.best.configuration, found)
    finally:
        device.close()


def total(name: str, kernels: list[Row]) -> float | None:
    """The sum over the kernels; None where one has none."""
    values = [kernel.get(name) for kernel in kernels]
    return sum(value for value in values if value) if all(values) else None


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


def compared(bench: Bench, kernel: Kernel, ours: Configuration, theirs: Configuration) -> Row:
    """Both times, in rounds that take turns, and whether the second is right."""
    state = "cold" if kernel.ranking_l2 == "cold" else "warm"
    sides = {"ours": bench.compile(ours), "kernel_tuner": bench.compile(theirs)}
    verification = verify_configuration(bench, sides["kernel_tuner"])
    rounds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(ROUNDS + 1):  # the first warms up
        for side in sorted(sides, reverse=number % 2 == 0):
            time_ms = statistics.median(checked_samples(bench, sides[side], state, SAMPLES))
            if number:
                rounds[side].append(time_ms)
    ratio, interval = statistics.ratio_interval(rounds["kernel_tuner"], rounds["ours"])
    row: Row = {f"{side}_ms": statistics.median(times) for side, times in rounds.items()}
    row |= {"ratio": ratio, "ratio_ci": [interval.low, interval.high], "l2": state}
    return row if verification.is_right else row | {"kernel_tuner_is_wrong": verification.message()}


def main() -> None:
    """All scripts are adopted, and wait, before anything is timed."""
    options = parse()
    begun = time.monotonic()
    document = json.loads(options.output.read_text())
    rows = {row["source"]: row for row in document["rows"]}
    for row in document["rows"]:
        row.update({one: row.get(one) for one in SUMS})
    name = "tuned" if options.lang is None else f"tuned_{options.lang}".lower()
    device = open_device(options.device)
    words = f"--seconds {options.seconds:g} --strategy {options.strategy}"
    words += "" if options.lang is None else f" --lang {options.lang}"
    facts = {
        "command": f"python benchmarks/adoption/tuned.py NAME=SCRIPT.py … {words}",
        "device": device.model.name,
        "driver": device.environment.driver,
        "date": datetime.now(UTC).date().isoformat(),
    }
    device.close()
    unknown = {named.partition("=")[0] for named in options.scripts} - rows.keys()
    if unknown:
        raise SystemExit(f"{options.output} has no row of {', '.join(sorted(unknown))}: run scripts.py first")
    with tempfile.TemporaryDirectory() as folder:
        scripts = [Script(named, Path(folder)) for named in options.scripts]
        with ThreadPoolExecutor(len(scripts)) as pool:
            calls = list(pool.map(Script.adopted, scripts))
        print(f"adopted after {time.monotonic() - begun:.1f} s", flush=True)
        for script, own_calls in zip(scripts, calls, strict=True):
            if time.monotonic() - begun > options.stop_after:
                print(f"{script.title}: no time left", flush=True)
                script.end()
                continue
            kernels = []
            for call in own_calls:
                try:
                    kernels.append(row_of(script, call, options))
                except Exception as error:  # noqa: BLE001 - somebody's script: it costs its own row
                    kernels.append({"kernel": call["kernel_name"], "reason": f"{type(error).__name__}: {error}"})
                print(script.title, json.dumps(kernels[-1]), flush=True)
            script.end()
            rows[script.title][name] = {**facts, "kernels": kernels}
            rows[script.title] |= {one: total(one, kernels) for one in SUMS}
            options.output.write_text(json.dumps(document, indent=1) + "\n")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="+", metavar="NAME=SCRIPT.py", help="a row's `source`, and its script")
    parser.add_argument("--seconds", type=float, default=4.0, help="of our search; its finals come on top")
    parser.add_argument("--strategy", default="adaptive_tabu_greywolf", help="of Kernel Tuner's")
    parser.add_argument("--lang", help="Kernel Tuner's `lang` instead of the script's own, such as CUPY")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--stop-after", type=float, default=3600.0, help="no script begins later than so many seconds")
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
