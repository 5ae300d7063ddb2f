"""Every kind of inputs on every kernel of a device, and what the kinds cost a job.

    PYTHONPATH=benchmarks python benchmarks/searches/input_kinds.py --device cuda:0 [--rate] [--kernels gemm,softmax]

The table has a line for each kernel and kind: how many variants and dtypes were verified with it, in their default
configurations, and the worst error in units of its bound (2 are admitted). `--rate` compares verified configurations
per second of gemm at 4096 cubed, 3 s, with those of the same tree without the kinds that are made of lines, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from rate import ours

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.devices.device import Device
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.errors import TunerError
from tilewright.tuner.outcome import Verification

SHAPES: dict[str, list[dict[str, int]]] = {
    "gemm": [{"m": 300, "n": 260, "k": 516}, {"m": 8, "n": 512, "k": 1024}, {"m": 129, "n": 131, "k": 133}],
    "gemv": [{"m": 530, "n": 712}],
    "linear": [{"m": 300, "n": 260, "k": 516}, {"m": 8, "n": 512, "k": 1024}],
    "linear_gated": [{"m": 17, "n": 512, "k": 1024}, {"m": 8, "n": 512, "k": 1024}],
    "linear_quantized": [{"m": 3, "n": 512, "k": 1024}],
    "conv2d": [
        {"batch": 2, "height": 14, "width": 15, "channels": 64, "filters": 64, "kernel_h": 3, "kernel_w": 3},
        {"batch": 2, "height": 14, "width": 15, "channels": 64, "filters": 64, "kernel_h": 1, "kernel_w": 1},
    ],
    "attention": [{"batch": 2, "heads": 3, "queries": 130, "keys": 197, "depth": 64}],
    "classifier": [{"m": 64, "k": 256, "h": 128, "n": 10}],
}
OTHERS = [{"m": 70, "n": 1003}, {"m": 9, "n": 4096}]
UNCHANGED = "    changed = factor_kinds(kernel, problem)\n"
SECONDS, RUNS = 3.0, 4


def problems(kernel: Kernel) -> Iterator[Problem]:
    """A few shapes in every dtype that admits them."""
    for shape in SHAPES.get(kernel.name, OTHERS):
        for dtype in kernel.dtypes:
            yield kernel.problem(shape, dtype)


def verified(device: Device, kernel: Kernel, problem: Problem) -> Iterator[tuple[str, Verification]]:
    """Each variant's verifications of its default configuration."""
    limits = device.model.limits
    with closing(device.bench(kernel, problem, 3)) as bench:
        for variant in kernel.usable_variants(problem, limits):
            for configuration in kernel.space(problem, limits, only=[variant.name]).defaults()[:1]:
                try:
                    found = bench.verify_each_kind(bench.compile(configuration)) or ()
                except TunerError as error:
                    print(f"FAILED {configuration} {problem}: {error}", flush=True)
                    continue
                yield from ((variant.name, one) for one in found)


def table(device: Device, names: list[str]) -> int:
    """Prints it; returns how many verifications were wrong."""
    wrong = 0
    for kernel in catalogue().kernels():
        if names and kernel.name not in names:
            continue
        counts: dict[str, list[float]] = {}
        for problem in problems(kernel):
            for variant, one in verified(device, kernel, problem):
                counts.setdefault(one.inputs, []).append(one.bound_ratio or 0.0)
                if not one.is_right:
                    wrong += 1
                    print(f"WRONG {kernel.name} {variant} {problem}: {one.message()}", flush=True)
        for kind, ratios in counts.items():
            print(f"{kernel.name:18} {kind:16} {len(ratios):4} worst {max(ratios):.3g}", flush=True)
    print(f"{wrong} wrong", flush=True)
    return wrong


def rate(device: str, seed: int, shape: int) -> dict[str, Any]:
    """The rate of one search in this process and tree."""
    kernel = catalogue().get("gemm")
    problem = kernel.problem({"m": shape, "n": shape, "k": shape})
    with tempfile.TemporaryDirectory(prefix="tilewright-kinds-") as folder:
        os.environ["TILEWRIGHT_CACHE_DIR"] = folder
        opened = open_device(device)
        row = ours(opened, kernel, problem, kernel.space(problem, opened.model.limits), 10**6, seed, seconds=SECONDS)
        opened.close()
    return row


def compared(device: str, shape: int) -> None:
    """Prints the rates with and without the kinds that are made of lines, in turn."""
    root = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory(prefix="tilewright-before-") as folder:
        before = Path(folder) / "tree"
        ignored = shutil.ignore_patterns(".venv", ".git", "__pycache__", "node_modules")
        shutil.copytree(root, before, ignore=ignored, symlinks=True)
        arrays = before / "tuner" / "arrays.py"
        text = arrays.read_text(encoding="utf-8")
        if UNCHANGED not in text:
            raise SystemExit("tuner/arrays.py has changed: input_kinds no longer has the line that is replaced")
        arrays.write_text(text.replace(UNCHANGED, "    changed: tuple[str, ...] = ()\n"), encoding="utf-8")
        for seed in range(RUNS):
            for name, tree in (("without", before), ("with", root)):
                environment = {
                    **os.environ,
                    "PYTHONPATH": f"{tree}:{tree / 'benchmarks'}:{os.environ.get('PYTHONPATH', '')}",
                }
                command = [sys.executable, str(tree / "benchmarks" / "searches" / "input_kinds.py"), "--device", device]
                command += ["--one-rate", str(seed), "--shape", str(shape)]
                done = subprocess.run(command, env=environment, cwd=tree, text=True, capture_output=True, check=False)
                print(name, seed, done.stdout.strip() or done.stderr[-600:], flush=True)


def main() -> int:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--kernels", default="")
    parser.add_argument("--rate", action="store_true")
    parser.add_argument("--shape", type=int, default=4096)
    parser.add_argument("--one-rate", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one_rate is not None:
        row = rate(arguments.device, arguments.one_rate, arguments.shape)
        names = ("verified", "configurations", "wall_s", "per_second", "setup_s", "best_ms", "outcomes")
        print(json.dumps({name: row[name] for name in names}))
        return 0
    if arguments.rate:
        compared(arguments.device, arguments.shape)
        return 0
    device = open_device(arguments.device)
    print(device.model.name, device.environment.driver, flush=True)
    wrong = table(device, [name for name in arguments.kernels.split(",") if name])
    device.close()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
