"""Random problems, configurations, views and kinds of numbers, judged by PyTorch in float64.

    python tests/gpu_fuzz.py [--minutes 5] [--seed 1] [--kernel gemm] [--variant wpt] [--device cpu] [--out FILE]

Every variant in turn gets a random problem that it serves and a random configuration of it, and is launched by the
launcher on tensors between guards, with some kinds of numbers: twice with each, on poisoned outputs. The oracles
(`fuzz/oracles.py`) share no code with verification. A seed draws the same cases, of which more are reached in more
minutes. Without a GPU the variants that run there are tried on the CPU device. Needs PyTorch.

A line says each wrong result as it comes; the table comes last: variant, checks, wrong ones, the largest error in
bounds (4 are admitted) and its kind. The same goes to --out as JSON. Exit status 1 when anything was wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import shlex
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from fuzz.cases import Case, random_case
from fuzz.launches import CaseOnDevice, Check, PosedOtherwiseError
from fuzz.oracles import BOUNDS, ORACLES

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.tuner.compile.cache import CubinCache, compiled_by, default_folder
from tilewright.tuner.compile.compilation import Compilation, arch_of
from tilewright.tuner.compile.compiler import default_compiler
from tilewright.tuner.devices.cuda.nvml import driver_version
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.runtime.errors import LaunchError
from tilewright.tuner.runtime.launches import gpu, host

AHEAD = 4
"""Cases that wait for each compiler, so that all are busy."""

PROGRESS_S = 30.0
MOST_FAILURES = 200
"""In the document; all are printed."""


@dataclass
class Tally:
    """What was checked, by kernel, variant and dtype, and by kind of numbers."""

    checked: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: Counter[tuple[str, str]] = field(default_factory=Counter)
    configurations: Counter[tuple[str, str]] = field(default_factory=Counter)
    worst: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)
    kinds: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, case: Case, check: Check) -> None:
        """Counts a check, and prints it where it is wrong."""
        key = case.problem.kernel, case.configuration.variant
        self.checked[key] += 1
        ratio = check.findings.worst
        self.worst[key] = max(self.worst.get(key, (0.0, "")), (ratio, f"{check.kind} {case.problem.dtype}"))
        row = self.kinds.setdefault(f"{case.problem.kernel} {check.kind}", [0, 0, 0.0])
        row[0], row[1], row[2] = row[0] + 1, row[1] + (not check.is_right), max(row[2], ratio)
        if not check.is_right:
            self.fail(case, f"{check.kind} {dict(check.scalars)}: {check.findings.first} {check.trespasses}".rstrip())

    def fail(self, case: Case, reason: str) -> None:
        """Counts and prints something wrong."""
        self.wrong[case.problem.kernel, case.configuration.variant] += 1
        self.failures.append(f"{case.problem} {dict(case.problem.options)} | {case.configuration} | {reason}")
        print(self.failures[-1], flush=True)

    def rows(self) -> list[dict[str, Any]]:
        """One for each variant."""
        return [
            {
                "kernel": key[0],
                "variant": key[1],
                "configurations": self.configurations[key],
                "checks": self.checked[key],
                "wrong": self.wrong[key],
                "worst": as_json(self.worst.get(key, (0.0, ""))[0]),
                "worst_kind": self.worst.get(key, (0.0, ""))[1],
            }
            for key in sorted(self.configurations)
        ]

    def table(self) -> list[str]:
        """The rows as text."""
        head = f"{'kernel':<17}{'variant':<27}{'configurations':>14}{'checks':>8}{'wrong':>7}{'worst':>9}  of"
        return [head] + [
            f"{row['kernel']:<17}{row['variant']:<27}{row['configurations']:>14}{row['checks']:>8}{row['wrong']:>7}"
            f"{'-' if row['worst'] is None else row['worst']:>9}  {row['worst_kind']}"
            for row in self.rows()
        ]


def drawn(turn: tuple[str, str], seed: str, limits: Limits, *, is_gpu: bool) -> tuple[Case | None, str]:
    """A random case of a kernel's variant, and why it does not compile; runs in a process of its own.

    Leaves the code in the cache that the launcher reads.
    """
    kernel = catalogue().get(turn[0])
    case = random_case(kernel, kernel.variant(turn[1]), limits, random.Random(seed))
    if case is None or not is_gpu:
        return case, ""
    try:
        arch = arch_of(limits.compute_capability)
        work = Compilation.of(kernel, case.problem, case.configuration, arch, default_compiler())
        compiled_by(CubinCache(default_folder()), work)
    except TrialFailure as failure:
        return case, f"does not compile: {failure.log[:600]}"
    return case, ""


def cases(turns: Sequence[tuple[str, str]], seed: int, limits: Limits, *, is_gpu: bool) -> Iterator[tuple[Case, str]]:
    """Cases of these variants in turn, without end, made ahead by as many processes as there are cores."""
    count = len(os.sched_getaffinity(0)) if is_gpu else 1
    waiting: deque[Future[tuple[Case | None, str]]] = deque()
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        try:
            for number, turn in enumerate(itertools.cycle(turns)):
                waiting.append(pool.submit(drawn, turn, f"{seed} {number}", limits, is_gpu=is_gpu))
                if len(waiting) > AHEAD * count:
                    case, fault = waiting.popleft().result()
                    if case is not None:
                        yield case, fault
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def run(turns: Sequence[tuple[str, str]], arguments: argparse.Namespace, limits: Limits, tally: Tally) -> None:
    """Checks cases until the time is up."""
    generator, begun_s = random.Random(arguments.seed), time.monotonic()
    printed_s, is_gpu = begun_s, arguments.device == "cuda"
    for number, (case, fault) in enumerate(cases(turns, arguments.seed, limits, is_gpu=is_gpu)):
        tally.configurations[case.problem.kernel, case.configuration.variant] += 1
        if fault:
            tally.fail(case, fault)
            continue
        kernel = catalogue().get(case.problem.kernel)
        try:
            placed = CaseOnDevice(kernel, case, arguments.device, 1000 * arguments.seed + number)
            for kind in generator.sample(placed.kinds, min(arguments.kinds, len(placed.kinds))):
                tally.add(case, placed.check(kind))
        except PosedOtherwiseError:
            continue
        except LaunchError as error:
            tally.fail(case, f"{type(error).__name__}: {error}")
        if time.monotonic() - printed_s > PROGRESS_S:
            printed_s = time.monotonic()
            print(
                f"{tally.checked.total()} checks, {tally.wrong.total()} wrong, {printed_s - begun_s:.0f} s", flush=True
            )
        if time.monotonic() - begun_s > 60 * arguments.minutes:
            return


def as_json(ratio: float) -> float | None:
    """Three digits of the worst ratio; None where nothing was right, which JSON has no number for."""
    return round(ratio, 3) if math.isfinite(ratio) else None


def chosen_turns(kernels: Sequence[str], variants: Sequence[str] | None, limits: Limits) -> list[tuple[str, str]]:
    """Kernel and variant of all that run on the device, or of these variants."""
    declared = ((name, variant) for name in kernels for variant in catalogue().get(name).variants)
    return [(name, v.name) for name, v in declared if v.runs_on(limits) and (not variants or v.name in variants)]


def main() -> int:
    """Checks, prints, writes; 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kernel", action="append", choices=sorted(ORACLES), help="only this one; may be repeated")
    parser.add_argument("--variant", action="append", help="only this one; may be repeated")
    parser.add_argument("--kinds", type=int, default=6, help="kinds of numbers for each configuration")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    is_gpu = arguments.device == "cuda"
    place = gpu.gpu_place(0) if is_gpu else host.host_place()
    name = torch.cuda.get_device_name() if is_gpu else place.slug
    driver = driver_version() if is_gpu else ""
    turns = chosen_turns(arguments.kernel or sorted(ORACLES), arguments.variant, place.limits)
    torch.backends.cudnn.enabled = False  # by transforms one NaN would be everywhere
    tally, begun = Tally(), datetime.now(UTC).isoformat(timespec="seconds")
    status = "ended"
    try:
        run(turns, arguments, place.limits, tally)
    except RuntimeError as error:  # nothing works on the device any more
        status = f"stopped: {error}"
        tally.failures.append(status)
        print(status, flush=True)
    print("\n".join(tally.table()))
    print(
        f"{name} {driver}, torch {torch.__version__}, seed {arguments.seed}: {tally.configurations.total()} "
        f"configurations, {tally.checked.total()} checks, {tally.wrong.total()} wrong; {status}"
    )
    if arguments.out:
        document = {"command": shlex.join(["python", "tests/gpu_fuzz.py", *sys.argv[1:]]), "begun": begun}
        document |= {"device": name, "driver": driver, "torch": torch.__version__, "status": status}
        document |= {"seed": arguments.seed, "bounds": BOUNDS, "rows": tally.rows()}
        kinds = {kind: [*counts, as_json(worst)] for kind, (*counts, worst) in tally.kinds.items()}
        document |= {"kinds": kinds, "failures": tally.failures[:MOST_FAILURES]}
        arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(bool(tally.failures))


if __name__ == "__main__":
    sys.exit(main())
