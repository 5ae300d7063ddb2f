"""Triton programs: captured, adopted and tuned here, beside what `triton.autotune` chooses in them; a row for each.

    python benchmarks/triton_programs.py [--seconds 60] [--out FILE] [PROGRAM.py …]

Needs a GPU, PyTorch and Triton; without programs, those of benchmarks/triton_apps. Rows go to
benchmarks/results/<device>/triton_programs.json, of each program's autotuned launch that takes the most time: same_ms,
wide_ms, triton_ms (chosen here from the program's configurations, from the proposed space, and by Triton; launched by
Triton in interleaved rounds), same_s, wide_s (seconds of tuning, caches empty), first_tuned_s, first_untuned_s (that
launch in a second process, on what is tuned and with Triton's choice alone), outcomes by word.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.own import own_kernel
from tilewright.kernels.space import Configuration, Constraint
from tilewright.tuner.autotune.program import start
from tilewright.tuner.capture.adopt import adopt_launch
from tilewright.tuner.capture.capture import capture
from tilewright.tuner.devices.cuda import nvml
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.loop.study import Knowledge
from tilewright.tuner.loop.tune import Budget, Hooks, tune
from tilewright.tuner.runtime.answers import AnswerCache
from tilewright.tuner.runtime.launcher import place_of, resolved
from tilewright.tuner.triton.module import compiler_options, constexprs

ROOT = Path(__file__).parents[1]
Row = dict[str, Any]


def tuned(kernel: Kernel, starts: list[Configuration], seconds: float | None) -> Row:
    """What is best for the captured launch, of the starts alone or in `seconds`; how long it took; outcomes by word."""
    [variant] = kernel.variants
    if seconds is None:
        names, listed = [p.name for p in variant.parameters], {one.items for one in starts}
        own = lambda c, _p, _d: tuple(sorted((n, int(getattr(c, n))) for n in names)) in listed  # noqa: E731
        kernel = replace(kernel, variants=(replace(variant, constraints=(Constraint("of the program", own),)),))
    budget = Budget(trials=len(starts)) if seconds is None else Budget(seconds=seconds)
    problem, device, outcomes = kernel.problem(kernel.example_shape), open_device("cuda:0"), Counter[str]()
    begun = time.monotonic()
    bench = device.bench(kernel, problem, 0)
    try:
        hooks = Hooks(on_trial=lambda progress: outcomes.update([progress.trial.evaluation.outcome.value]))
        space = kernel.space(problem, device.model.limits)
        result = tune(bench, kernel, space, budget, seed=0, hooks=hooks, knowledge=Knowledge(asked=starts))
    finally:
        bench.close()
        device.close()
    return {"best": result.best.configuration, "seconds": time.monotonic() - begun, "outcomes": dict(outcomes)}


def launched(program: Path, row: Row, sides: dict[str, Row], is_tuned: str) -> dict[str, float]:
    """Medians of interleaved rounds of the call that the row is of, each side with its values; its seconds at first."""
    import triton  # noqa: PLC0415 - in a process of its own

    tuner, calls = triton.runtime.autotuner.Autotuner, []
    if is_tuned:
        start()
    run = tuner.run

    def noted(this: Any, *args: Any, **kwargs: Any) -> Any:
        shapes = [list(one.shape) for one in (*args, *kwargs.values()) if hasattr(one, "data_ptr")]
        is_meant = this.base_fn.__name__ == row["entry"] and shapes == row["shapes"] and not calls
        if is_meant and not is_tuned:
            this.configs = [c for c in this.configs if c.all_kwargs().items() >= sides["triton"].items()]
        begun = time.perf_counter()
        result = run(this, *args, **kwargs)
        if is_meant:
            calls.append((this, args, kwargs, time.perf_counter() - begun))
        return result

    tuner.run = noted
    runpy.run_path(str(program), run_name="__main__")
    this, args, kwargs, first_s = calls[0]
    rounds = {side: [] for side in sides}
    for side in [*sides] * 9:
        call = partial(this.fn.run, *args, **kwargs, **sides[side])
        rounds[side].append(triton.testing.do_bench(call, warmup=10, rep=50))
    return {side: statistics.median(times) for side, times in rounds.items()} | {"first_s": first_s}


def row_of(program: Path, seconds: float) -> Row:
    """The program's row."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ |= {"TILEWRIGHT_CACHE_DIR": f"{folder}/cache", "TILEWRIGHT_DATA_DIR": str(folder)}
        seen = capture([sys.executable, str(program)], folder / "seen")
        first = next(row for row in seen.launches if row.get("triton", {}).get("configs"))
        kernel = own_kernel(adopt_launch(seen, first["name"], target=folder / "made").folder)
        shapes = [one["shape"] for one in first["arguments"] if one["kind"] == "tensor"]
        rows = json.loads((kernel.folder / "starts.json").read_text())
        starts = [Configuration.of(one["variant"], one["configuration"]) for one in rows]
        same, wide = tuned(kernel, starts, None), tuned(kernel, starts, seconds)
        names = list({name for one in first["triton"]["configs"] for name in one["values"]})
        problem, best = kernel.problem(kernel.example_shape), wide["best"]
        sides = {"same": same["best"], "wide": best, "triton": starts[0]}
        defined = {side: kernel.definitions(problem, one) for side, one in sides.items()}
        values = {side: constexprs(names, one) | compiler_options(one) for side, one in defined.items()}
        known = {"configuration": dict(best.items), "match": "exact", "source_hash": kernel.source_hash(best.variant)}
        known["variant"] = best.variant
        AnswerCache(folder / "cache" / "answers").put(problem, place_of(resolved("cuda:0")), known)
        os.environ["TILEWRIGHT_KERNEL_FOLDERS"] = str(kernel.folder)
        meant = json.dumps({"entry": first["entry"], "shapes": shapes})
        told = [sys.executable, __file__, "--launch", str(program), meant, json.dumps(values)]
        found: dict[str, Row] = {}
        for is_tuned in ("", "tuned", "", "tuned"):  # the second of each finds Triton's cache full
            ran = subprocess.run([*told, is_tuned], stdout=subprocess.PIPE, text=True, check=True)
            found[is_tuned] = json.loads(ran.stdout.splitlines()[-1])
        ms = {f"{side}_ms": found["tuned"][side] for side in sides}
        ms |= {"first_tuned_s": found["tuned"]["first_s"], "first_untuned_s": found[""]["first_s"]}
        ms |= {"same_s": same["seconds"], "wide_s": wide["seconds"], "outcomes": wide["outcomes"], "chosen": values}
        row = {"program": program.stem, "kernel": first["entry"], "shape": dict(kernel.example_shape)}
        return row | {"configurations": len(starts)} | ms


def main() -> None:
    """Reads the command line and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--launch", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.launch:
        program, row, sides, is_tuned = arguments.launch
        print(json.dumps(launched(Path(program), json.loads(row), json.loads(sides), is_tuned)))
        return
    gpu = nvml.gpus()[0]
    head = {"command": " ".join(["python benchmarks/triton_programs.py", *sys.argv[1:]]), "device": gpu.name}
    head |= {"driver": nvml.driver_version(), "written_at": datetime.now(UTC).isoformat(timespec="seconds")}
    place = gpu.name.lower().removeprefix("nvidia ").replace(" ", "-")
    out = arguments.out or ROOT / "benchmarks" / "results" / place / "triton_programs.json"
    rows: list[Row] = []
    for program in arguments.programs or sorted((ROOT / "benchmarks" / "triton_apps").glob("*.py")):
        rows.append(row_of(program.resolve(), arguments.seconds))
        print(json.dumps(rows[-1]), flush=True)
        out.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
