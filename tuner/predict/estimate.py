"""The estimated cost of a launch by tiles, waves and roofs alone, for shapes far from all measured ones.

Costs are clock cycles of a GPU like those of today, and mean something only beside each other: a measured time of the
same configuration at another shape makes them into one of this shape (docs/measuring/predictions.md).
"""

from __future__ import annotations

import math

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.occupancy import blocks_per_multiprocessor
from tilewright.tuner.predict.tiles import Tiles

FLOPS, MEMORY_BYTES, CACHE_BYTES = 256, 20, 64
"""What a multiprocessor does in a cycle: 128 multiply-adds, its share of an H200's 4.8 TB/s, what the L2 cache gives
it."""

FULL_THREADS = 256
"""Threads with which a multiprocessor reaches its rate; of 0, 256, 512 and 1,024 this fits recorded rows best."""

LAUNCH_CYCLES = 4000
"""Two microseconds: what the smallest recorded launches take (benchmarks/results/h200/kernels.json)."""


def cycles(tiles: Tiles, limits: Limits, problem: Problem, configuration: Configuration) -> float:
    """The cost of one launch: whole rounds of tiles, or the copies of all tiles, or the bytes, whichever is most."""
    kernel, multiprocessors = tiles.kernel, limits.multiprocessors
    tiling = tiles.tiling(problem, configuration)
    rounds = math.ceil(tiling.parts / multiprocessors)
    padded = tiling.count * kernel.estimated_flops(tiling.whole)  # with what sticks out at the edges
    arithmetic = padded / tiling.parts * rounds / (FLOPS * _share(kernel, limits, problem, configuration, rounds))
    copies = _copied_bytes(tiles, problem, configuration) / (CACHE_BYTES * min(tiling.parts, multiprocessors))
    memory = kernel.estimated_bytes(problem) / (MEMORY_BYTES * multiprocessors)
    return LAUNCH_CYCLES + max(arithmetic, copies, memory)


def _share(kernel: Kernel, limits: Limits, problem: Problem, configuration: Configuration, rounds: int) -> float:
    """The part of its rate that a multiprocessor reaches with the threads that it has at a time."""
    variant = kernel.variant(configuration.variant)
    threads = variant.launch(configuration.values, problem).threads
    shared_bytes = variant.shared_bytes(configuration.values, problem)
    resident = max(1, blocks_per_multiprocessor(0, shared_bytes, threads, limits))
    return min(1.0, min(resident, rounds) * threads / FULL_THREADS)


def _copied_bytes(tiles: Tiles, problem: Problem, configuration: Configuration) -> int:
    """Bytes that all tiles together read and write."""
    sharing = tiles.sharing(problem, configuration)
    elements = (math.prod(tensor.shape(problem)) for tensor in tiles.kernel.tensors)
    return problem.item_bytes * sum(count * shared_by for count, shared_by in zip(elements, sharing, strict=True))
