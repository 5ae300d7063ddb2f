"""What a configuration does with a problem, as numbers that a prediction of its time can be made from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.occupancy import blocks_per_multiprocessor
from tilewright.tuner.predict_registers import Registers
from tilewright.tuner.predict_tiles import Tiles

MOST_ZEROS = 5
"""Powers of two in an axis size that count: vectors, warps and tiles up to 32."""

ANOTHER_VARIANT = 2.0
"""How unlike two variants are, in standard deviations of a feature."""


@dataclass(frozen=True)
class Features:
    """Rows of numbers for configurations of one kernel on one device; a column means the same in each row.

    All problems have one dtype and the same options.
    """

    kernel: Kernel
    limits: Limits
    registers: Mapping[Configuration, int] = field(default_factory=dict)  # of a thread, where a compiler told

    @cached_property
    def tiles(self) -> Tiles:
        """What is known of the kernel's tiles."""
        return Tiles(self.kernel)

    def rows(self, problem: Problem, configurations: Sequence[Configuration]) -> NDArray[np.float64]:
        """A row a configuration: the shape, the launch, the tiles and the parameters, most as powers of two."""
        work = work_of(self.kernel, problem)
        shape = [*(math.log2(size) for _, size in problem.axes), *(float(_zeros(size)) for _, size in problem.axes)]
        shape += [math.log2(work), math.log2((1 + self.kernel.flops(problem)) / (1 + self.kernel.bytes_moved(problem)))]
        return np.array(
            [
                [*shape, *self._launch(problem, c, work, registers), *self.parameters(c)]
                for c, registers in zip(configurations, self._registers.of(configurations), strict=True)
            ]
        )

    def _launch(self, problem: Problem, configuration: Configuration, work: int, registers: int) -> list[float]:
        """Waves and how full the last one is, work of a thread, what a multiprocessor holds, the workspace."""
        variant, limits = self.kernel.variant(configuration.variant), self.limits
        launch = variant.launch(configuration.values, problem)
        shared_bytes = variant.static_shared_bytes(configuration.values, problem) + launch.shared_bytes
        resident = max(1, blocks_per_multiprocessor(registers, shared_bytes, launch.threads, limits))
        blocks = math.prod(launch.grid)
        at_once = min(blocks, resident * limits.multiprocessors)
        threads = limits.multiprocessors * limits.max_threads_per_multiprocessor
        workspace_bytes = variant.workspace_bytes(configuration.values, problem)
        return [
            math.log2(blocks / (resident * limits.multiprocessors)),
            _idle(blocks / (resident * limits.multiprocessors)),
            _idle(blocks / limits.multiprocessors),
            math.log2(work / (blocks * launch.threads)),
            math.log2(launch.threads),
            math.log2(resident * launch.threads / limits.max_threads_per_multiprocessor),
            math.log2(at_once * launch.threads / threads),
            math.log2(1 + shared_bytes),
            math.log2(1 + workspace_bytes),
            math.log2(1 + workspace_bytes / max(1, self.kernel.bytes_moved(problem))),
            *self._tiling(problem, configuration, work, at_once),
        ]

    def _tiling(self, problem: Problem, configuration: Configuration, work: int, at_once: int) -> list[float]:
        """How large tiles are and how many, what sticks out at the edges, how full the last round of them is."""
        tiling = self.tiles.tiling(problem, configuration)
        padded = tiling.count * work_of(self.kernel, tiling.whole) / work
        return [
            *(math.log2(1 + tile) for tile in self.tiles.extents(problem, configuration)),
            math.log2(tiling.count),
            math.log2(padded),
            _idle(tiling.parts / at_once),
            _idle(tiling.parts / self.limits.multiprocessors),
        ]

    def parameters(self, configuration: Configuration) -> list[float]:
        """Every parameter of the kernel by name, 0 where the variant has none of it; then the variants."""
        row = [0.0] * len(self._columns)
        for name, value in configuration.items:
            if name in self._columns:
                row[self._columns[name]] = math.copysign(math.log2(1 + abs(value)), value)
        return [*row, *(ANOTHER_VARIANT * (v.name == configuration.variant) for v in self.kernel.variants)]

    @cached_property
    def _registers(self) -> Registers:
        return Registers(self.registers, self.parameters)

    @cached_property
    def _columns(self) -> dict[str, int]:
        names = {parameter.name for variant in self.kernel.variants for parameter in variant.parameters}
        return {name: column for column, name in enumerate(sorted(names))}


def work_of(kernel: Kernel, problem: Problem) -> int:
    """What a time is divided by: operations or bytes, whichever are more."""
    return max(kernel.flops(problem), kernel.bytes_moved(problem), 1)


def _zeros(size: int) -> int:
    return min(MOST_ZEROS, (size & -size).bit_length() - 1)


def _idle(waves: float) -> float:
    """The logarithm of the time that whole waves take over what full ones would."""
    return min(4.0, math.log2(math.ceil(waves) / waves))
