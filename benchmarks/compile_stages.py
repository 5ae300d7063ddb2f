"""Where the compiler's time goes: gemm `register` at 2048 cubed for an H200, stage by stage. Needs NVRTC, and no GPU.

    python benchmarks/compile_stages.py --out before.json
    python benchmarks/compile_stages.py --against before.json
    python benchmarks/compile_stages.py --every gemm linear … --kept --configurations 6 --rounds 1 --out FILE

Configurations are drawn uniformly from the whole space and compiled one after the other in this process, as a pool's
worker does it: the CPU time of each is the least of some rounds. The stages' shares are NVRTC's own (`--time`, wall
time). With `--against`, the cubins of an earlier run are compared bit by bit: who makes the sources cheaper to compile
sees at once whether the machine code is still the same. With `--every`, a row for each variant of these kernels, for an
H200 and an A100; with `--kept` also which part of the machine code stays when a parameter changes, or an axis doubles.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from documents.file import now, problem_of, write
from stages.every_variant import H200, problems, rows

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile import nvrtc
from tilewright.tuner.compile.compilation import NVRTC_OPTIONS, Compilation
from tilewright.tuner.compile.compiler import compile_nvrtc
from tilewright.tuner.compile.pool import keep_freed_memory
from tilewright.tuner.devices.cpu.device import cpu_name

STAGES = {"CUDA C++ Frontend": "front_end", "NVVM Optimizer": "optimizer", "PTX Translation": "ptxas"}
EMPTY = 'extern "C" __global__ void gemm() {}'
Row = dict[str, Any]


def drawn(
    kernel: Kernel, problem: Problem, variant: str, count: int, seed: int, limits: Limits = H200
) -> list[Configuration]:
    """Distinct configurations, uniform over the variant's whole space."""
    space = kernel.space(problem, limits, [variant])
    places = np.random.default_rng(seed).choice(len(space), min(count, len(space)), replace=False)
    return [space.feasible[int(place)] for place in places]


def cpu_ms(works: Sequence[Compilation], rounds: int) -> tuple[list[float], list[str]]:
    """The least CPU time of each, in ms, over rounds that each take all of them; and their cubins' SHA-256."""
    least, digests = [float("inf")] * len(works), [""] * len(works)
    for _ in range(rounds):
        for place, work in enumerate(works):
            begun = time.process_time()
            compiled = compile_nvrtc(work.source, dict(work.definitions), work.arch, work.entry)
            least[place] = min(least[place], (time.process_time() - begun) * 1e3)
            digests[place] = hashlib.sha256(compiled.cubin).hexdigest()
    return least, digests


def shares(works: Sequence[Compilation]) -> dict[str, float]:
    """The part of each stage in the whole time, by NVRTC's own clock."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "stages.csv"
        for work in works:
            macros = [f"-D{name}={value}" for name, value in work.definitions]
            options = [f"--gpu-architecture={work.arch}", *NVRTC_OPTIONS, f"--time={table}", *macros]
            nvrtc.compile_cubin(work.source, options)
        spent = dict.fromkeys(STAGES.values(), 0.0)
        with table.open(encoding="utf-8") as lines:
            for line in csv.reader(lines):  # file, stage, number, unit; and headings
                words = [word.strip() for word in line]
                if len(words) > 1 and words[1] in STAGES:
                    spent[STAGES[words[1]]] += float(words[2])
    return {stage: round(ms / sum(spent.values()), 3) for stage, ms in spent.items()}


def measured(works: Sequence[Compilation], rounds: int) -> Row:
    """Total, stages and cubins of these compilations."""
    empty = Compilation(EMPTY, (), works[0].arch, "gemm")
    (floor_ms,), _ = cpu_ms([empty], max(3, rounds))
    times_ms, digests = cpu_ms(works, rounds)
    return {
        "configurations": len(works),
        "empty_kernel_cpu_ms": round(floor_ms, 1),
        "mean_cpu_ms": round(sum(times_ms) / len(times_ms), 1),
        "median_cpu_ms": round(float(np.median(times_ms)), 1),
        "slowest_cpu_ms": round(max(times_ms), 1),
        "shares": shares(works),
        "cubins": digests,
    }


def measure_every_variant(arguments: argparse.Namespace, shape: Mapping[str, int], document: Row) -> None:
    """A row for every variant, written as they come."""

    def draw(kernel: Kernel, problem: Problem, variant: str, limits: Limits) -> list[Configuration]:
        return drawn(kernel, problem, variant, arguments.configurations, arguments.seed, limits)

    def costs(works: Sequence[Compilation]) -> Row:
        return {name: value for name, value in measured(works, arguments.rounds).items() if name != "cubins"}

    document["rows"] = []
    for row in rows(problems(arguments.every, shape), draw, costs, with_kept=arguments.kept):
        document["rows"].append(row)
        print(json.dumps(row), flush=True)
        if arguments.out:
            write(arguments.out, document)


def main() -> None:
    """Measures, prints a row and compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--shape", default="2048x2048x2048", help="m x n x k")
    parser.add_argument("--variant", default="register")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", nargs="+", default=(), metavar="KERNEL", help="every variant of these instead")
    parser.add_argument("--kept", action="store_true", help="with --every: what of the machine code stays")
    parser.add_argument("--against", type=Path, help="an earlier run's file, of the same configurations")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    kernel = catalogue().get("gemm")
    problem = problem_of(kernel, arguments.shape)
    keep_freed_memory()
    nvrtc.compile_cubin(EMPTY, [f"--gpu-architecture={arguments.arch}"])  # what is loaded once
    document = {"written_at": now(), "nvrtc": nvrtc.version()}
    if arguments.every:
        document |= {"device": cpu_name(), "command": "python benchmarks/compile_stages.py " + " ".join(sys.argv[1:])}
        measure_every_variant(arguments, problem.shape, document)
        return
    chosen = drawn(kernel, problem, arguments.variant, arguments.configurations, arguments.seed)
    works = [Compilation.of(kernel, problem, configuration, arguments.arch, "nvrtc") for configuration in chosen]
    document |= {name: str(getattr(arguments, name)) for name in ("shape", "variant", "arch", "seed")}
    row = document | measured(works, arguments.rounds)
    print(json.dumps({name: value for name, value in row.items() if name != "cubins"}))
    if arguments.against:
        before = json.loads(arguments.against.read_text(encoding="utf-8"))
        same = sum(one == other for one, other in zip(row["cubins"], before["cubins"], strict=True))
        print(f"{same} of {len(works)} cubins are the same, {before['mean_cpu_ms']} ms before")
    if arguments.out:
        write(arguments.out, row)


if __name__ == "__main__":
    main()
