"""Checks every variant, dtype and option of the kernels on this machine's GPU.

    python tests/gpu_check.py [--compiler nvrtc|pycuda] [--configurations 3] [--kernel gemm]

Exit status 1 when anything failed. The counts come last.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.gemm.layout import stored_rows
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, OptionValue, Problem
from tilewright.kernels.space import Configuration, SearchSpace, VariantSpace
from tilewright.tuner.devices.device import Bench, Device
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.errors import TrialFailure

_TWO_AXES = "1x1 1x7 7x1 31x33 64x64 100x784 127x129 256x255 1x4099 3001x5 513x1027 1024x1024"
_THREE_AXES = (
    "1x1x1 1x1x7 7x1x3 5x9x1 31x33x35 64x64x64 17x200x520 127x129x65 256x100x784 1x513x129 257x3x1025 512x256x128"
)
_FOUR_AXES = (
    "1x1x1x1 7x1x3x5 5x9x1x2 31x33x35x3 64x64x64x64 256x100x100x10 127x129x65x17 256x784x100x10 1x512x129x1000 "
    "257x3x511x25 3x500x7x700 512x256x128x40"
)
_FIVE_AXES = (  # the last a multiple of 8 up to 128, as attention's depth is
    "1x1x1x1x8 1x2x7x3x16 2x3x33x31x24 1x4x64x64x64 2x2x65x129x72 1x3x197x197x64 2x1x100x784x40 1x2x513x127x128 "
    "3x2x1x257x96 1x1x255x511x112 1x2x300x1025x32 1x8x512x512x64"
)
SIZES = {
    text.split()[0].count("x") + 1: [tuple(int(size) for size in word.split("x")) for word in text.split()]
    for text in (_TWO_AXES, _THREE_AXES, _FOUR_AXES, _FIVE_AXES)
}
"""Twelve shapes by number of axes: one, primes, around powers of two, vectors as matrices, few rows, a real layer."""

FEW_ROWS = [
    *((1, 1, 128), (1, 7, 256), (2, 33, 128), (3, 64, 384), (5, 17, 1024), (7, 129, 640)),
    *((8, 256, 896), (9, 31, 512), (16, 100, 2048), (17, 513, 256), (33, 65, 1152), (64, 200, 768)),
]
"""Twelve layers whose weights are quantized in groups of 128 along k, at most 64 rows."""

CONVOLUTIONS: tuple[dict[str, int], ...] = tuple(
    dict(zip(("batch", "height", "width", "channels", "filters", "kernel_h", "kernel_w"), sizes, strict=True)) | steps
    for sizes, steps in (
        ((1, 1, 1, 1, 1, 1, 1), {}),
        ((2, 14, 14, 256, 72, 1, 1), {}),
        ((3, 7, 5, 131, 33, 1, 1), {}),
        ((1, 9, 9, 96, 64, 1, 1), {"stride": 2}),
        ((2, 23, 21, 3, 16, 7, 7), {"stride": 2, "padding": 3}),
        ((2, 15, 13, 32, 65, 3, 3), {"stride": 2, "padding": 1}),
        ((1, 16, 16, 64, 64, 3, 3), {"padding": 1}),
        ((2, 12, 17, 32, 48, 3, 3), {"padding": 2, "dilation": 2}),
        ((2, 9, 20, 33, 20, 1, 7), {"padding_w": 3}),
        ((1, 19, 11, 17, 37, 5, 3), {"padding": 2, "padding_w": 1, "stride": 3, "stride_w": 1}),
        ((2, 14, 14, 32, 2, 3, 3), {"padding": 1}),
        ((3, 17, 19, 40, 1, 3, 3), {"padding": 1, "stride": 2}),
    )
)
"""Twelve convolutions: one number, 1x1, a network's first layer, strides, padding, dilation, odd sizes, few filters."""


def shapes(kernel: Kernel) -> Sequence[dict[str, int]]:
    """A dozen, with the axes that the kernel has."""
    if kernel.name == "conv2d":
        return CONVOLUTIONS
    some_sizes = FEW_ROWS if kernel.name == "linear_quantized" else SIZES[len(kernel.axes)]
    return [dict(zip(kernel.axes, sizes, strict=True)) for sizes in some_sizes]


def problems(kernel: Kernel) -> Iterator[Problem]:
    """Every shape with every dtype and every combination of options; of a kernel with a batch each as views too."""
    combinations = list(itertools.product(*(option.values for option in kernel.options)))
    for shape in shapes(kernel):
        for dtype in kernel.dtypes:
            for values in combinations:
                options = {option.name: value for option, value in zip(kernel.options, values, strict=True)}
                with contextlib.suppress(InvalidProblemError):  # not every option is for every dtype
                    yield kernel.problem(shape, dtype, options)
                    if "stride_a" in kernel.axis_names:
                        yield kernel.problem(shape | views(shape, options), dtype, options)


def views(shape: Mapping[str, int], options: Mapping[str, OptionValue]) -> dict[str, int]:
    """Three products that share A, with gaps between the rows of B, and between rows and matrices of C."""
    rows, columns = stored_rows("c", shape, options)
    pitches = {"ldb": stored_rows("b", shape, options)[1] + 3, "ldc": columns + 4}
    return {"batch": 3, **pitches, "stride_a": 0, "stride_c": rows * pitches["ldc"] + 8}


def draw(
    space: VariantSpace, problem: Problem, limits: Limits, count: int, generator: random.Random
) -> list[Configuration]:
    """The default where it is feasible, and random feasible configurations, `count` in all where there are so many."""
    feasible = SearchSpace((space,), problem, limits).feasible
    default = [space.default()] if space.default() in feasible else []
    places = generator.sample(range(len(feasible)), min(count + 1, len(feasible)))
    return [*default, *(c for c in map(feasible.__getitem__, places) if c not in default)][:count]


def check(
    device: Device, kernel: Kernel, some_problems: Iterable[Problem], count: int, generator: random.Random
) -> tuple[Counter[str], list[str]]:
    """How many configurations were checked by variant and dtype, `count` a problem and variant; a line a failure."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    for problem in some_problems:
        limits = device.model.limits
        variants = kernel.usable_variants(problem, limits)
        chosen = [c for v in variants for c in draw(v.space(), problem, limits, count, generator)]
        bench = device.bench(kernel, problem, generator.randrange(2**31))
        bench.compile_ahead(chosen)
        for configuration in chosen:
            counts[f"{configuration.variant} {problem.dtype}"] += 1
            message = verdict(bench, configuration)
            if message:
                failures.append(f"{problem} {dict(problem.options)} | {configuration} | {message}")
                print(failures[-1], flush=True)
        bench.close()
    return counts, failures


def verdict(bench: Bench, configuration: Configuration) -> str:
    """The flaw of this configuration in one line; empty where it is right."""
    try:
        verification = bench.verify(bench.compile(configuration))
    except TrialFailure as failure:
        return f"{failure.outcome}: {failure.log[:600]}"
    return verification.message() if verification.wrong else ""


def main() -> int:
    """Checks and prints; 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", choices=("nvrtc", "pycuda"), default="nvrtc")
    parser.add_argument("--configurations", type=int, default=3, help="per variant and problem")
    parser.add_argument("--kernel", action="append", help="only this kernel; may be repeated")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    generator = random.Random(arguments.seed)
    kernels = [k for k in catalogue().kernels() if not arguments.kernel or k.name in arguments.kernel]
    device = open_device("cuda:0", arguments.compiler)
    print(device.uuid, asdict(device.model), asdict(device.environment), sep="\n", flush=True)
    failed = 0
    lines: list[str] = []
    for kernel in kernels:
        start = time.perf_counter()
        counts, failures = check(device, kernel, problems(kernel), arguments.configurations, generator)
        failed += len(failures)
        wall_s = time.perf_counter() - start
        lines.append(f"{kernel.name}: {counts.total()} checked, {len(failures)} failed, {wall_s:.1f} s {dict(counts)}")
        print(lines[-1], flush=True)
    device.close()
    print("\n".join(lines))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
