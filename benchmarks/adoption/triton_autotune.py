"""The Triton examples, tuned by Tilewright and by `triton.autotune` over the same configurations; a row for each.

    python benchmarks/adoption/triton_autotune.py [--only triton_matmul] [--without PRECISION=2] [--configurations 24]
        [--out FILE]

Needs a GPU, PyTorch and Triton. Rows go to benchmarks/results/<device>/triton.json: kernel, shape, configurations,
ours_s and triton_s (seconds of tuning, with empty caches of compiled code), ours_ms and triton_ms (the time of the
configuration that each chose, both launched by Triton, in interleaved rounds), ours_error and triton_error (the
result's largest error in units of our bound; over 2 counts as wrong), and what became of the configurations here.
`--without` draws no configurations with that value: of a product as one of TF32, for instance, which is always wrong.
Rows that the file has of other runs stay.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tilewright.kernels.catalogue import Catalogue
from tilewright.kernels.kernel import Kernel, Scalar
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration, Constraint
from tilewright.tuner.arrays import random_arrays
from tilewright.tuner.devices.cuda import nvml
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.loop.expected import expected_of
from tilewright.tuner.loop.tune import Budget, Hooks, tune

ROOT = Path(__file__).parents[2]
SHAPES = {
    "triton_matmul": {"m": 2048, "n": 2048, "k": 2048},
    "triton_softmax": {"m": 8192, "n": 4096},
    "triton_layer_norm": {"m": 8192, "n": 4096},
}
ROUNDS, LAUNCH_OPTIONS = 7, ("num_warps", "num_stages")
Row = dict[str, Any]


def declared(name: str) -> Kernel:
    """The example's kernel."""
    return Catalogue.load([ROOT / "examples" / name]).get(name)


def ours(name: str, count: int, without: str) -> None:
    """Prints, as JSON: the configurations, the one chosen, the seconds, and how many trials ended how."""
    kernel, device = declared(name), open_device("cuda:0")
    problem = kernel.problem(SHAPES[name])
    feasible = kernel.space(problem, device.model.limits).feasible
    parameter, _, value = without.partition("=")
    feasible = [c for c in feasible if str(c.as_json().get(parameter)) != value]
    chosen = random.Random(name).sample(range(len(feasible)), min(count, len(feasible)))
    picked = {feasible[place].items: feasible[place] for place in chosen}
    (variant,) = kernel.variants
    names = [parameter.name for parameter in variant.parameters]
    one_of_them = Constraint(
        "one of those that Triton is given",
        lambda c, _p, _d: tuple(sorted((name, int(getattr(c, name))) for name in names)) in picked,
    )
    kernel = replace(kernel, variants=(replace(variant, constraints=(*variant.constraints, one_of_them)),))
    begun, outcomes = time.monotonic(), Counter[str]()
    bench = device.bench(kernel, problem, 0)
    space = kernel.space(problem, device.model.limits)
    seen = Hooks(on_trial=lambda progress: outcomes.update([progress.trial.evaluation.outcome.value]))
    result = tune(bench, kernel, space, Budget(trials=len(picked)), seed=0, hooks=seen)
    seconds = time.monotonic() - begun
    best = result.best.configuration.as_json() if result.best else None
    bench.close()
    device.close()
    found = {"best": best, "seconds": seconds, "outcomes": dict(outcomes)}
    print(json.dumps(found | {"configurations": [c.as_json() for c in picked.values()]}))


class Launches:
    """The example's function on PyTorch tensors, launched by Triton."""

    def __init__(self, kernel: Kernel, problem: Problem) -> None:
        import torch  # noqa: PLC0415 - the other process has no use for them
        import triton  # noqa: PLC0415

        self.torch, self.triton, self.kernel, self.problem = torch, triton, kernel, problem
        source = kernel.folder / kernel.variants[0].source
        sys.path.insert(0, str(source.parent))
        self.function = getattr(importlib.import_module(source.stem), kernel.entry)
        self.host = random_arrays(kernel, problem, 1)
        self.arrays = {name: torch.from_numpy(array).cuda() for name, array in self.host.items()}
        for tensor in kernel.outputs:
            self.arrays[tensor.name] = torch.full(tuple(tensor.shape(problem)), float("nan"), device="cuda")
        self.scalars = {a.name: a.number(problem) for a in kernel.arguments if isinstance(a, Scalar)}
        fixed = {name for name in self.function.arg_names if name.startswith("SHAPE_")}
        self.constants = {name: problem.shape[name.removeprefix("SHAPE_").lower()] for name in fixed}

    def configured(self, values: dict[str, int]) -> Any:
        """A call with these values."""
        return lambda: self.function[self.grid(values)](**self.arrays, **self.scalars, **self.constants, **values)

    def grid(self, values: dict[str, int]) -> tuple[int, ...]:
        """Programs, as the declaration says."""
        (variant,) = self.kernel.variants
        return variant.launch(Configuration.of(variant.name, values).values, self.problem).grid

    def autotuned(self, configurations: list[dict[str, int]]) -> tuple[dict[str, int], float]:
        """What `triton.autotune` chooses among them, and its seconds to the end of the first launch."""
        configs = [
            self.triton.Config(
                {name: value for name, value in values.items() if name not in LAUNCH_OPTIONS},
                **{name: values[name] for name in LAUNCH_OPTIONS},
            )
            for values in configurations
        ]
        keys = [name for name in self.scalars if name in self.problem.shape]
        tuner = self.triton.autotune(configs=configs, key=keys)(self.function)
        constexprs = [name for name in configurations[0] if name not in LAUNCH_OPTIONS]  # what Triton tells a grid
        grid = lambda meta: self.grid({name: meta[name] for name in constexprs})  # noqa: E731 - Triton's own form
        begun = time.monotonic()
        tuner[grid](**self.arrays, **self.scalars, **self.constants)
        self.torch.cuda.synchronize()
        return tuner.best_config.all_kwargs(), time.monotonic() - begun

    def error(self, values: dict[str, int]) -> float:
        """The largest error of such a launch, in units of our bound."""
        outputs = {tensor.name: self.arrays[tensor.name] for tensor in self.kernel.outputs}
        for array in outputs.values():
            array.fill_(float("nan"))
        self.configured(values)()
        expected = expected_of(self.kernel, self.problem, self.host, self.scalars)
        return float(
            expected.compare({name: array.cpu().numpy() for name, array in outputs.items()}).bound_ratio or 0.0
        )

    def times_ms(self, sides: dict[str, dict[str, int]]) -> dict[str, float]:
        """Medians of interleaved rounds."""
        rounds = {side: [] for side in sides}
        for _ in range(ROUNDS):
            for side, values in sides.items():
                rounds[side].append(self.triton.testing.do_bench(self.configured(values), warmup=10, rep=40))
        return {side: statistics.median(times) for side, times in rounds.items()}


def row_of(name: str, count: int, without: str) -> Row:
    """The example's row."""
    with tempfile.TemporaryDirectory() as caches:
        empty = {"TILEWRIGHT_DATA_DIR": caches, "TILEWRIGHT_CACHE_DIR": caches, "TRITON_CACHE_DIR": f"{caches}/triton"}
        command = [sys.executable, __file__, "--ours", name, "--configurations", str(count), "--without", without]
        ran = subprocess.run(command, env=os.environ | empty, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise SystemExit(f"{name}: {ran.stderr[-2000:]}")
        found = json.loads(ran.stdout.splitlines()[-1])
        os.environ["TRITON_CACHE_DIR"] = f"{caches}/other"
        kernel = declared(name)
        launches = Launches(kernel, kernel.problem(SHAPES[name]))
        listed = [{k: v for k, v in each.items() if k != "variant"} for each in found["configurations"]]
        theirs, triton_s = launches.autotuned(listed)
        theirs = {name: theirs[name] for name in listed[0]}
        best = {k: v for k, v in found["best"].items() if k != "variant"}
        times = launches.times_ms({"ours": best, "triton": theirs})
        return {
            "kernel": name,
            "shape": SHAPES[name],
            "configurations": len(listed),
            "without": without,
            "ours_s": found["seconds"],
            "ours_ms": times["ours"],
            "ours_error": launches.error(best),
            "triton_s": triton_s,
            "triton_ms": times["triton"],
            "triton_error": launches.error(theirs),
            "outcomes": found["outcomes"],
            "ours": best,
            "triton": theirs,
        }


def main() -> None:
    """Reads the command line and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=sorted(SHAPES))
    parser.add_argument("--configurations", type=int, default=24)
    parser.add_argument("--without", default="", metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ours", choices=sorted(SHAPES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ours:
        ours(arguments.ours, arguments.configurations, arguments.without)
        return
    gpu = nvml.gpus()[0]
    document = {
        "command": shlex.join(["python", "benchmarks/adoption/triton_autotune.py", *sys.argv[1:]]),
        "device": gpu.name,
        "driver": nvml.driver_version(),
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": [],
    }
    folder = gpu.name.lower().removeprefix("nvidia ").replace(" ", "-")
    out = arguments.out or ROOT / "benchmarks" / "results" / folder / "triton.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists():
        document["rows"] = json.loads(out.read_text())["rows"]
    for name in arguments.only or SHAPES:
        row = row_of(name, arguments.configurations, arguments.without)
        row["command"] = document["command"]
        key = row["kernel"], row["without"]
        document["rows"] = [old for old in document["rows"] if (old["kernel"], old.get("without", "")) != key] + [row]
        print(json.dumps(row), flush=True)
        out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
