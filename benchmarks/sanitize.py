"""Launches every variant once at small shapes, in one process: what compute-sanitizer is run on.

    compute-sanitizer --tool memcheck --error-exitcode 9 python benchmarks/sanitize.py [--kernel gemm] [--count 2]

Exit status 1 when a result is wrong; the sanitizer's own status when it found something.
"""

from __future__ import annotations

import argparse
import random
import sys

from gpu_check import draw, problems

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.devices import DeviceSpec, find_device

SMALL = 70_000  # elements of the largest array: the sanitizer slows a launch down by two orders of magnitude


def main() -> None:
    """Reads the command line, launches, counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", action="append")
    parser.add_argument("--count", type=int, default=2, help="configurations per variant, problem and dtype")
    chosen = parser.parse_args()
    device = DeviceSpec(find_device("cuda:0").uuid).open()
    generator, launched, wrong = random.Random(7), 0, 0
    for kernel in catalogue().kernels():
        if chosen.kernel and kernel.name not in chosen.kernel:
            continue
        small = [p for p in problems(kernel) if kernel.memory_bytes(p) <= SMALL * p.item_bytes]
        for problem in small:
            bench = device.bench(kernel, problem, seed=1)
            limits = device.model.limits
            for variant in kernel.usable_variants(problem, limits):
                for configuration in draw(variant.space(), problem, limits, chosen.count, generator):
                    verification = bench.verify(bench.compile(configuration))
                    launched += 1
                    if verification.wrong:
                        wrong += 1
                        print(f"{problem} {configuration}: {verification.message()}", flush=True)
            bench.close()
        print(f"{kernel.name}: {launched} configurations launched so far, {wrong} wrong", flush=True)
    device.close()
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
