"""What a configuration does with a problem, as numbers that a prediction of its time can be made from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.occupancy import blocks_per_multiprocessor

MOST_ZEROS = 5
"""Powers of two in an axis size that count: vectors, warps and tiles up to 32."""

ANOTHER_VARIANT = 2.0
"""How unlike two variants are, in standard deviations of a feature."""


@dataclass(frozen=True)
class Features:
    """Rows of numbers for configurations of one kernel on one device; a column means the same in each row."""

    kernel: Kernel
    limits: Limits
    registers: Mapping[Configuration, int] = field(default_factory=dict)  # of a thread, where a compiler told

    def rows(self, problem: Problem, configurations: Sequence[Configuration]) -> NDArray[np.float64]:
        """A row a configuration: the shape, the launch and the parameters, most as powers of two."""
        shape = [*(math.log2(size) for _, size in problem.axes), *(float(_zeros(size)) for _, size in problem.axes)]
        return np.array([[*shape, *self._launch(problem, c), *self._parameters(c)] for c in configurations])

    def _launch(self, problem: Problem, configuration: Configuration) -> list[float]:
        """Waves and how full the last one is, work of a thread, what a multiprocessor holds."""
        variant, limits = self.kernel.variant(configuration.variant), self.limits
        launch = variant.launch(configuration.values, problem)
        shared_bytes = variant.static_shared_bytes(configuration.values, problem) + launch.shared_bytes
        registers = self.registers.get(configuration, 0)
        resident = max(1, blocks_per_multiprocessor(registers, shared_bytes, launch.threads, limits))
        blocks = math.prod(launch.grid)
        work = max(self.kernel.flops(problem), self.kernel.bytes_moved(problem), 1)
        return [
            math.log2(blocks / (resident * limits.multiprocessors)),
            _idle(blocks / (resident * limits.multiprocessors)),
            _idle(blocks / limits.multiprocessors),
            math.log2(work / (blocks * launch.threads)),
            math.log2(launch.threads),
            math.log2(resident * launch.threads / limits.max_threads_per_multiprocessor),
            math.log2(1 + shared_bytes),
        ]

    def _parameters(self, configuration: Configuration) -> list[float]:
        """Every parameter of the kernel by name, 0 where the variant has none of it; then the variants."""
        values = configuration.values
        numbers = [math.copysign(math.log2(1 + abs(v)), v) for v in (values.get(name, 0) for name in self._names())]
        return [*numbers, *(ANOTHER_VARIANT * (v.name == configuration.variant) for v in self.kernel.variants)]

    def _names(self) -> list[str]:
        return sorted({parameter.name for variant in self.kernel.variants for parameter in variant.parameters})


def _zeros(size: int) -> int:
    return min(MOST_ZEROS, (size & -size).bit_length() - 1)


def _idle(waves: float) -> float:
    """The logarithm of the time that whole waves take over what full ones would."""
    return min(4.0, math.log2(math.ceil(waves) / waves))
