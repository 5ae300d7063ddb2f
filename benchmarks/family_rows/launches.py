"""What a size from the launch costs: a configuration with its size compiled in and with its size from the launch."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.device import Device
from tilewright.tuner.errors import TrialFailure

SIZES, SMALL = (16, 300, 1000, 4096), (1, 5, 16, 64)
"""Of rows; of images, and of rows of a kernel that takes few."""

SAMPLES = 9
MOST_NAIVE = 300
"""Rows at which gemm's naive variant is timed at most: it takes a hundred times as long."""

ANY_ROWS, ANY_BATCH = (1, 4096), (1, 64)
IMAGES = {"batch": ANY_BATCH, "height": 28, "width": 28, "channels": 128, "kernel_h": 3, "kernel_w": 3, "padding": 1}
FEW_ROWS = {"m": (1, 64), "n": 4096, "k": 4096}
VECTORS = {"m": ANY_ROWS, "n": 4096}
BFLOAT16, FLOAT32 = "bfloat16", "float32"
Shape = Mapping[str, int | tuple[int, int]]

OTHERS: Mapping[str, tuple[tuple[Shape, str, Mapping[str, bool | str]], ...]] = {
    "linear_gated": (({"m": ANY_ROWS, "n": 4096, "k": 4096}, BFLOAT16, {}),),
    "linear_quantized": ((FEW_ROWS, BFLOAT16, {"weights": "int8"}), (FEW_ROWS, BFLOAT16, {"weights": "int4"})),
    "gemv": ((VECTORS, FLOAT32, {}), (VECTORS, BFLOAT16, {}), (VECTORS, FLOAT32, {"trans_a": True})),
    "conv2d": (
        ({**IMAGES, "filters": 128}, FLOAT32, {}),
        ({**IMAGES, "filters": 128}, FLOAT32, {"layout": "nchw"}),
        ({**IMAGES, "filters": 1}, FLOAT32, {"depthwise": True}),
    ),
    "softmax": ((VECTORS, FLOAT32, {}),),
    "rms_norm": ((VECTORS, BFLOAT16, {}),),
    "layer_norm": ((VECTORS, FLOAT32, {}),),
    "add_rms_norm": ((VECTORS, BFLOAT16, {}),),
    "add_layer_norm": ((VECTORS, FLOAT32, {}),),
}
"""The other kernels with an open axis: shapes, dtypes and options."""


def others(kernels: Collection[str], dtypes: Collection[str] | None) -> Iterator[Family]:
    """Their families, of these dtypes alone where some are named."""
    for name in (one for one in OTHERS if one in kernels):
        for shape, dtype, options in OTHERS[name]:
            if not dtypes or dtype in dtypes:
                yield Family.of(catalogue().get(name), shape, dtype, options)


def at_launch(device: Device, kernel: Kernel, family: Family, variant: str) -> dict[str, Any]:
    """The ratios of the variant's starts, compiled in over from the launch, by size; of those that it has.

    `other_starts`: sizes at which what is compiled in cannot be the same configuration, and is its own start.
    """
    sizes = SMALL if family.axis in kernel.largest_at_launch else SIZES
    most = MOST_NAIVE if (family.kernel, variant) == ("gemm", "naive") else family.high
    starts = {size: _starts(device, kernel, family, variant, size) for size in sizes if size <= most}
    found = {
        size: ratio for size, two in starts.items() if two and (ratio := _ratio(device, kernel, family, size, *two))
    }
    mean = statistics.geometric_mean(found.values()) if found else None
    return {
        "ratios": {str(size): ratio for size, ratio in found.items()},
        "other_starts": [size for size in found if len(set(starts[size])) > 1],
        "mean": mean,
        "least": min(found.values(), default=None),
    }


def _starts(device: Device, kernel: Kernel, family: Family, variant: str, size: int) -> tuple[Configuration, ...]:
    """That of the code with the size compiled in, and that of the other; none where either has none."""
    exact, at = (
        kernel.space(problem, device.model.limits, only=[variant]) for problem in (family.exact(size), family.at(size))
    )
    starts = at.defaults()
    own = starts if starts and starts[0] in exact else exact.defaults()
    return (own[0], starts[0]) if own and starts else ()


def _ratio(
    device: Device, kernel: Kernel, family: Family, size: int, compiled: Configuration, given: Configuration
) -> float:
    """0 where one of them failed."""
    with ExitStack() as stack:
        benches = [
            stack.enter_context(closing(device.bench(kernel, problem, 1)))
            for problem in (family.exact(size), family.at(size))
        ]
        try:
            programs = [bench.compile(one) for bench, one in zip(benches, (compiled, given), strict=True)]
            if any(not bench.verify(program).is_right for bench, program in zip(benches, programs, strict=True)):
                raise ValueError(f"{given.variant} is wrong at {size}")
            times: list[list[float]] = [[], []]
            for _ in range(SAMPLES):
                for own, bench, program in zip(times, benches, programs, strict=True):
                    own.append(statistics.median(bench.sample(program, "warm", 3)))
        except TrialFailure as failure:
            print(f"{given.variant} at {size}: {failure.outcome} {failure.log[:200]}")
            return 0.0
    return statistics.median(times[0]) / statistics.median(times[1])
