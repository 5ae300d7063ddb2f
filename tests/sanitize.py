"""Launches a few configurations of every variant at small shapes, in one process, for compute-sanitizer.

    compute-sanitizer --tool memcheck --error-exitcode 9 python tests/sanitize.py [--kernel gemm] [--count 3]
    compute-sanitizer --tool racecheck --error-exitcode 9 python tests/sanitize.py [--variant register]

Each variant meets its configurations at as many different problems: other shapes, dtypes and options. What they are
compiled to is made ahead, by processes that the sanitizer leaves alone, and kept for the next tool.
Exit status 1 when a result is wrong or a variant was not launched; the sanitizer's own status when it found something.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

from gpu_check import draw, problems

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.cache import CubinCache
from tilewright.tuner.compile.compilation import Compilation, arch_of
from tilewright.tuner.compile.pool import CompilePool
from tilewright.tuner.devices.device import Device
from tilewright.tuner.devices.local import DeviceSpec, find_device
from tilewright.tuner.errors import TrialFailure

SMALL = 70_000  # elements of the largest array: the sanitizer slows a launch down by two orders of magnitude

Work = dict[Problem, list[Configuration]]


def sample(kernel: Kernel, limits: Limits, variants: Sequence[str], count: int, generator: random.Random) -> Work:
    """`count` random configurations of each variant, each at another problem; of a large grid none."""
    small = [p for p in problems(kernel) if kernel.memory_bytes(p) <= SMALL * p.item_bytes]
    work: Work = {}
    for variant in kernel.variants:
        if variants and variant.name not in variants:
            continue
        drawn = 0
        for problem in generator.sample(small, len(small)):
            if drawn == count:
                break
            if variant in kernel.usable_variants(problem, limits):
                chosen = draw(variant.space(), problem, limits, 2, generator)[-1:]
                work.setdefault(problem, []).extend(chosen)
                drawn += len(chosen)
    return work


def compile_ahead(kernel: Kernel, work: Work, limits: Limits) -> None:
    """Leaves every cubin in the cache that the device looks into."""
    arch = arch_of(limits.compute_capability)
    with CompilePool(cache=CubinCache(None)) as pool:
        futures = [
            pool.submit(Compilation.of(kernel, problem, configuration, arch, "nvrtc"))
            for problem, chosen in work.items()
            for configuration in chosen
        ]
        for future in futures:
            future.exception()  # a failure is seen again, and told, when the configuration's turn comes


def launch(device: Device, kernel: Kernel, work: Work) -> tuple[Counter[str], int]:
    """How often each variant was launched, and how many results were wrong or could not be had."""
    launched: Counter[str] = Counter()
    wrong = 0
    for problem, chosen in work.items():
        bench = device.bench(kernel, problem, seed=1)
        for configuration in chosen:
            try:
                verification = bench.verify(bench.compile(configuration))
            except TrialFailure as failure:  # told, so that the others are launched still
                wrong += 1
                print(f"{problem} {configuration}: {failure.outcome}: {failure.log}", flush=True)
                continue
            launched[configuration.variant] += 1
            if verification.wrong:
                wrong += 1
                print(f"{problem} {configuration}: {verification.message()}", flush=True)
        bench.close()
    return launched, wrong


def main() -> int:
    """Reads the command line, launches, counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", action="append", help="only this one; may be repeated")
    parser.add_argument("--variant", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--count", type=int, default=3, help="configurations per variant")
    parser.add_argument("--seed", type=int, default=7)
    chosen = parser.parse_args()
    device = DeviceSpec(find_device("cuda:0").uuid).open()
    limits, generator, failed = device.model.limits, random.Random(chosen.seed), 0
    for kernel in catalogue().kernels():
        if chosen.kernel and kernel.name not in chosen.kernel:
            continue
        begun = time.monotonic()
        work = sample(kernel, limits, chosen.variant, chosen.count, generator)
        compile_ahead(kernel, work, limits)
        compiled_s = time.monotonic() - begun
        launched, wrong = launch(device, kernel, work)
        missing = [v.name for v in kernel.variants if not launched[v.name] and v.name in (chosen.variant or [v.name])]
        failed += wrong + len(missing)
        print(
            f"{kernel.name}: {dict(launched)} launched, {wrong} wrong, not launched: {missing or 'none'}; "
            f"{compiled_s:.0f} s to compile, {time.monotonic() - begun - compiled_s:.0f} s to run",
            flush=True,
        )
    device.close()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
