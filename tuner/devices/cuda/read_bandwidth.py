"""The read bandwidth of a GPU's memory: the best of several launch geometries."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.kernels.kernel import Launch

if TYPE_CHECKING:
    from tilewright.tuner.devices.cuda.context import CudaContext

LARGE_BYTES, SMALL_BYTES = 1 << 30, 1 << 28
"""The larger read has the smaller part in starting and ending."""

SAMPLES = 7
Geometry = tuple[int, int, int]
"""Loads of 16 bytes that a thread has in flight, threads of a block, blocks a multiprocessor."""

GEOMETRIES: Sequence[Geometry] = tuple(itertools.product((4, 8, 16), (256, 512, 1024), (1, 2, 4, 8, 16)))


def best_reads(device: CudaContext) -> list[tuple[float, str]]:
    """GB/s and geometry of the fastest read of LARGE_BYTES, and of SMALL_BYTES; medians, out of memory each time."""
    buffers = {size: device.allocate(size + 16) for size in (LARGE_BYTES, SMALL_BYTES)}
    for size, buffer in buffers.items():
        device.fill(int(buffer), size + 16, 0)
    source = Path(__file__).with_name("read.cu").read_text(encoding="utf-8")
    best = [(0.0, "")] * 2
    for unroll, block, blocks in GEOMETRIES:
        compiled = device.compile(device.compilation(source, {"UNROLL": str(unroll)}, "read_all"))
        function = device.load(compiled.cubin, "read_all", "PQP")
        launch = Launch((blocks * device.model.limits.multiprocessors, 1, 1), (block, 1, 1))
        geometry = f"{unroll} loads of 16 bytes a thread, {blocks} blocks of {block} a multiprocessor"
        steps = {
            size: functools.partial(function.enqueue, launch, int(buffer), size // 16, int(buffer) + size)
            for size, buffer in buffers.items()
        }
        for place, size in enumerate((LARGE_BYTES, SMALL_BYTES)):
            # The other buffer is read before each, so that nothing of this one is in the L2 cache.
            other = steps[SMALL_BYTES if size == LARGE_BYTES else LARGE_BYTES]
            times = device.times_ms(steps[size], SAMPLES, before=other)
            best[place] = max(best[place], (size / statistics.median(times) / 1e6, geometry))
    return best
