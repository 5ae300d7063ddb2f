"""Programs with Triton kernels, captured, adopted and tuned, beside what `triton.autotune` chooses in them; a row each.

    python benchmarks/adoption/triton_programs.py [--seconds 20] [--limit 600] [--out FILE] PROGRAM.py …

Needs a GPU, PyTorch and Triton. A row is of the program's autotuned launch that takes the most time: same_ms, wide_ms
and triton_ms (chosen here from the program's configurations, from the proposed space in `--seconds`, and by Triton;
launched by Triton in interleaved rounds), same_s and wide_s (seconds of tuning), first_tuned_s and first_untuned_s
(that launch in a second process by `tilewright run`, and with Triton's choice alone), searched (configurations that the
second process measured), outcomes by word. A row of a program that fails says where. `--limit` is for all programs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import runpy
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.own import own_kernel
from tilewright.kernels.space import Configuration, Constraint
from tilewright.tuner.autotune.program import start
from tilewright.tuner.capture.adopt import adopt_launch
from tilewright.tuner.capture.capture import Capture
from tilewright.tuner.compile.cache import CubinCache
from tilewright.tuner.compile.compiler import default_compiler
from tilewright.tuner.compile.pool import CompilePool
from tilewright.tuner.devices.cuda import nvml
from tilewright.tuner.devices.isolated.device import IsolatedDevice
from tilewright.tuner.devices.local import DeviceSpec, find_device
from tilewright.tuner.loop.study import Knowledge
from tilewright.tuner.loop.tune import Budget, Hooks, tune
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches.devices import place_of, resolved
from tilewright.tuner.triton.module import compiler_options, constexprs

ROUNDS, SECOND_PROCESSES = 9, 8
CAPTURE_S, COMPILE_S, LAUNCH_S = 150, 20, 90
Row = dict[str, Any]


@dataclass
class Program:
    """A program on its way; `row` is what is known of it, `sides` the values of each choice, as Triton takes them."""

    path: Path
    folder: Path
    row: Row = field(default_factory=dict)
    sides: dict[str, Row] = field(default_factory=dict)
    kernel: Kernel | None = None
    starts: list[Configuration] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    meant: Row = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its file's, or its folder's where that says nothing."""
        return self.path.parent.name if self.path.stem == "app" else self.path.stem

    @property
    def environment(self) -> dict[str, str]:
        """Its processes' variables: caches that are empty at first, and the adopted kernel."""
        return os.environ | {
            "TRITON_CACHE_DIR": str(self.folder / "triton"),
            "TILEWRIGHT_CACHE_DIR": str(self.folder / "cache"),
            "TILEWRIGHT_DATA_DIR": str(self.folder / "data"),
            "TILEWRIGHT_KERNEL_FOLDERS": str(self.kernel.folder) if self.kernel else "",
        }

    def adopt(self) -> None:
        """Runs it under the capture and adopts the launch."""
        begun, seen = time.monotonic(), self.folder / "seen"
        command = [sys.executable, "-m", "tilewright.service.cli", "capture", "--out", str(seen), "--"]
        _run([*command, sys.executable, str(self.path)], self.environment, CAPTURE_S)
        capture = Capture.load(seen)
        first = next(row for row in capture.launches if row.get("triton", {}).get("configs"))
        kernel = self.kernel = own_kernel(adopt_launch(capture, first["name"], target=self.folder / "made").folder)
        starts = json.loads((kernel.folder / "starts.json").read_text())
        self.starts = [Configuration.of(one["variant"], one["configuration"]) for one in starts]
        self.names = list({name for one in first["triton"]["configs"] for name in one["values"]})
        shapes = [one["shape"] for one in first["arguments"] if one["kind"] == "tensor"]
        self.meant = {"entry": first["entry"], "shapes": shapes}
        self.row |= {"kernel": first["entry"], "shape": dict(kernel.example_shape)}
        self.row |= {"configurations": len(starts), "capture_s": time.monotonic() - begun}

    def tune(self, device: Any, seconds: float) -> None:
        """Chooses from the program's configurations, and from the proposed space."""
        kernel = self.kernel
        assert kernel is not None  # noqa: S101 - it was adopted
        for side, limit_s in (("same", None), ("wide", seconds)):
            found = tuned(device, kernel, self.starts, limit_s)
            self.row |= {f"{side}_s": found["seconds"], f"{side}_outcomes": found["outcomes"]}
            problem, best = kernel.problem(kernel.example_shape), found["best"]
            defined = kernel.definitions(problem, best)
            self.sides[side] = constexprs(self.names, defined) | compiler_options(defined)
        known = {"variant": best.variant, "configuration": dict(best.items), "match": "exact"}
        known["source_hash"] = kernel.source_hash(best.variant)
        AnswerCache(self.folder / "cache" / "answers").put(problem, place_of(resolved("cuda:0")), known)

    def launching(self, how: str) -> list[str]:
        """The command of a process that launches it: `compare`, `tuned` or `untuned`."""
        return [sys.executable, __file__, "--launch", how, json.dumps(self.meant), str(self.path)]


def _run(command: list[str], environment: dict[str, str], limit_s: float, told: str = "") -> str:
    """What the command writes; raises RuntimeError with its last words."""
    ran = subprocess.run(
        command, env=environment, input=told, capture_output=True, text=True, check=False, timeout=limit_s
    )
    if ran.returncode:
        raise RuntimeError((ran.stderr or ran.stdout)[-800:])
    return ran.stdout


def adopted(program: Program) -> bool:
    """Whether it could be captured and adopted."""
    program.folder.mkdir()
    try:
        program.adopt()
    except Exception as error:  # noqa: BLE001 - whatever it is, the next program is tried
        program.row["error"] = f"capture: {type(error).__name__}: {error}"
        print(json.dumps({"program": program.name} | program.row), flush=True)
    return "error" not in program.row


def tuned(device: Any, kernel: Kernel, starts: list[Configuration], limit_s: float | None) -> Row:
    """The best for the captured launch, of the starts alone or in `limit_s`; how long it took; outcomes by word."""
    [variant] = kernel.variants
    if limit_s is None:
        names, listed = [p.name for p in variant.parameters], {one.items for one in starts}
        own = lambda c, _p, _d: tuple(sorted((n, int(getattr(c, n))) for n in names)) in listed  # noqa: E731
        kernel = replace(kernel, variants=(replace(variant, constraints=(Constraint("of the program", own),)),))
    budget = Budget(trials=len(starts)) if limit_s is None else Budget(seconds=limit_s)
    problem, outcomes, begun = kernel.problem(kernel.example_shape), Counter[str](), time.monotonic()
    bench = device.bench(kernel, problem, 0)
    try:
        hooks = Hooks(on_trial=lambda progress: outcomes.update([progress.trial.evaluation.outcome.value]))
        space = kernel.space(problem, device.model.limits)
        result = tune(bench, kernel, space, budget, seed=0, hooks=hooks, knowledge=Knowledge(asked=starts))
    finally:
        bench.close()
    if result.best is None:
        raise RuntimeError(f"no configuration is right: {dict(outcomes)}")
    return {"best": result.best.configuration, "seconds": time.monotonic() - begun, "outcomes": dict(outcomes)}


def launch(how: str, meant: Row, program: str) -> Row:
    """In a process of its own: times of the meant call, the first one's seconds, and what Triton chose or measured.

    To `compare`, Triton's own search is among the sides that standard input tells once they are known; `tuned` asks
    what is known first, `untuned` launches what standard input tells.
    """
    import torch  # noqa: PLC0415 - in a process of its own
    import triton  # noqa: PLC0415

    torch.cuda.init()
    tuner, calls, searched = triton.runtime.autotuner.Autotuner, [], []
    sides = json.loads(sys.stdin.readline())
    if how == "tuned":
        start()
    run, bench = tuner.run, tuner._bench  # noqa: SLF001 - what Triton searches by

    def noted(this: Any, *args: Any, **kwargs: Any) -> Any:
        shapes = [list(one.shape) for one in (*args, *kwargs.values()) if hasattr(one, "data_ptr")]
        if calls or this.base_fn.__name__ != meant["entry"] or shapes != meant["shapes"]:
            return of_any(this, args, kwargs)
        if how == "untuned":
            options = sides.pop("options")
            this.configs = [triton.Config(sides, **options)]
        torch.cuda.synchronize()
        begun = time.perf_counter()
        result = run(this, *args, **kwargs)
        calls.append((this, args, kwargs, time.perf_counter() - begun))
        return result

    def benched(this: Any, *args: Any, config: Any, **kwargs: Any) -> Any:
        searched.append(config)
        return bench(this, *args, config=config, **kwargs)

    tuner.run, tuner._bench = noted, benched  # noqa: SLF001
    runpy.run_path(program, run_name="__main__")
    this, args, kwargs, first_s = calls[0]
    found = {"first_s": first_s, "searched": len(searched)}
    if how != "compare":
        return found
    sides["triton"] = this.best_config.all_kwargs()
    rounds: dict[str, list[float]] = {json.dumps(_bare(one), sort_keys=True): [] for one in sides.values()}
    for values in [*rounds] * ROUNDS:
        call = partial(this.fn.run, *args, **kwargs, **json.loads(values))
        rounds[values].append(triton.testing.do_bench(call, warmup=10, rep=50))
    ms = {side: statistics.median(rounds[json.dumps(_bare(one), sort_keys=True)]) for side, one in sides.items()}
    return found | {"ms": ms, "triton": sides["triton"]}


def of_any(this: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A launch by the first configuration that the device has room for: another call than the one that is meant."""
    import triton  # noqa: PLC0415

    for config in this.configs[:-1]:
        with contextlib.suppress(triton.runtime.errors.OutOfResources):
            return this.fn.run(*args, **kwargs, **config.all_kwargs())
    return this.fn.run(*args, **kwargs, **this.configs[-1].all_kwargs())


def _bare(values: Row) -> Row:
    """The values without options that say nothing."""
    return {name: value for name, value in values.items() if name != "num_ctas"}


def answer(waiting: subprocess.Popen[str], sides: dict[str, Row]) -> Row:
    """What the process finds once it is told the sides; raises RuntimeError with its last words."""
    out, err = waiting.communicate(json.dumps(sides), timeout=LAUNCH_S)
    if waiting.returncode:
        raise RuntimeError(err[-800:])
    return dict(json.loads(out.splitlines()[-1]))


def compared(programs: list[Program], seconds: float, until: float, write: Callable[[], None]) -> None:
    """Tunes one program after another, compares the choices and writes; Python and PyTorch load meanwhile."""
    pool = CompilePool(cache=CubinCache(), timeout_s=COMPILE_S)
    device = IsolatedDevice(DeviceSpec(find_device("cuda:0").uuid, default_compiler()), pool=pool)
    try:
        for program in programs:
            if time.monotonic() > until:
                program.row["error"] = "left out: the time is up"
                continue
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            waiting = subprocess.Popen(program.launching("compare"), env=program.environment, text=True, **streams)
            try:
                program.tune(device, seconds)
                found = answer(waiting, program.sides)
                program.sides["triton"] = found["triton"]
                program.row |= {f"{side}_ms": ms for side, ms in found["ms"].items()}
            except Exception as error:  # noqa: BLE001 - whatever it is, the next program is tried
                program.row["error"] = f"tuning: {type(error).__name__}: {error}"
            finally:
                waiting.kill()
                waiting.communicate()
            program.row["chosen"] = program.sides
            print(json.dumps({"program": program.name} | program.row, default=str), flush=True)
            write()
    finally:
        device.close()


def launched_again(program: Program) -> None:
    """Second processes: the first tuned launch, and one with Triton's choice."""
    options = {"num_warps", "num_stages", "maxnreg"}
    choice = _bare(program.sides["triton"])
    told = {name: value for name, value in choice.items() if name not in options}
    told["options"] = {name: value for name, value in choice.items() if name in options}
    try:
        for how, side in (("tuned", {}), ("untuned", told)):
            found = json.loads(
                _run(program.launching(how), program.environment, LAUNCH_S, json.dumps(side)).splitlines()[-1]
            )
            program.row[f"first_{how}_s"] = found["first_s"]
            program.row |= {"searched": found["searched"]} if how == "tuned" else {}
    except Exception as error:  # noqa: BLE001 - whatever it is, the next program is tried
        program.row["error"] = f"second process: {type(error).__name__}: {error}"


def summary(rows: list[Row]) -> Row:
    """The figures of all programs."""
    timed = [row for row in rows if "triton_ms" in row]
    gains = [row["triton_ms"] / row["wide_ms"] for row in timed]
    return {
        "programs": len(rows),
        "adopted": sum("configurations" in row for row in rows),
        "least_same": min((row["triton_ms"] / row["same_ms"] for row in timed), default=None),
        "wide_gain": math.exp(statistics.mean(map(math.log, gains))) if gains else None,
    }


def main() -> None:
    """Reads the command line and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--limit", type=float, default=600)
    parser.add_argument("--out", type=Path, default=Path("triton.json"))
    parser.add_argument("--launch", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.launch:
        print(json.dumps(launch(arguments.launch[0], json.loads(arguments.launch[1]), str(arguments.programs[0]))))
        return
    until, gpu = time.monotonic() + arguments.limit, nvml.gpus()[0]
    head = {
        "command": shlex.join(["python", "benchmarks/adoption/triton_programs.py", *sys.argv[1:]]),
        "device": gpu.name,
        "driver": nvml.driver_version(),
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with tempfile.TemporaryDirectory() as temporary:
        programs = [Program(one.resolve(), Path(temporary) / str(at)) for at, one in enumerate(arguments.programs)]

        def write() -> None:
            rows = [{"program": one.name} | one.row for one in programs]
            document = head | {"summary": summary(rows), "rows": rows}
            arguments.out.write_text(json.dumps(document, indent=1, default=str) + "\n")

        with ThreadPoolExecutor(len(programs)) as threads:
            kept = [one for one, is_adopted in zip(programs, threads.map(adopted, programs), strict=True) if is_adopted]
        compared(kept, arguments.seconds, until, write)
        with ThreadPoolExecutor(SECOND_PROCESSES) as threads:
            list(threads.map(launched_again, [one for one in kept if "triton" in one.sides]))
        write()
        print(json.dumps(summary([one.row for one in programs])))


if __name__ == "__main__":
    main()
