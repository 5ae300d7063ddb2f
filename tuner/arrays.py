"""The random contents of a problem's arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Kernel, Scalar
from tilewright.kernels.problem import Problem

HostArray = NDArray[np.floating]


def random_arrays(kernel: Kernel, problem: Problem, seed: int) -> dict[str, HostArray]:
    """Every array that the kernel reads, by name: uniform in [-1, 1), row-major, the problem's dtype.

    Never zeros: they hide unwritten outputs, and GPUs run faster on them than on real data.
    """
    generator = np.random.default_rng(seed)
    return {
        tensor.name: _uniform(generator, tensor.shape(problem), problem.dtype)
        for tensor in kernel.tensors
        if tensor.is_read(problem)
    }


def scalar_values(kernel: Kernel, problem: Problem) -> dict[str, float]:
    """The value of every scalar argument by name."""
    return {a.name: a.value(problem) for a in kernel.arguments if isinstance(a, Scalar)}


def _uniform(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> HostArray:
    kind = np.float32 if dtype == "float32" else np.float64
    values: HostArray = generator.random(shape, dtype=kind)
    values *= 2
    values -= 1
    return values
