"""The random contents of a problem's arrays, in the kinds that verification takes turns with."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Kernel, Scalar, Tensor
from tilewright.kernels.problem import Problem

HostArray = NDArray[np.floating]
Fill = Callable[[np.random.Generator, HostArray], None]

NORMAL, UNIFORM, SCALED, CANCELLING, MODERATE = KINDS = ("normal", "uniform", "scaled", "cancelling", "moderate")
"""Standard normal, with which everything is timed; uniform in [0, 1), where rounding errors add up instead of
cancelling; normal times powers of two from 2^-30 to 2^30, drawn for each element; sums that nearly vanish; like scaled,
but from 2^-6 to 2^6."""

SCALE, MODERATE_SCALE = 30, 6
CANCELLED_EPSILONS = 16
"""What is left of a cancelling pair, in machine epsilons of its size, times a normal number."""

_BLOCK = 1 << 20
"""Elements drawn at a time, each block by a generator of its own: what is drawn does not depend on the cores."""

_MAX_THREADS = 16


def input_kinds(kernel: Kernel, problem: Problem) -> tuple[str, ...]:
    """The kinds that mean something for this problem; the first is the one that is timed.

    Only a sum has factors to scale and terms that cancel. In float64 the reference has no more digits than the kernel,
    and where a few terms outweigh all others, sqrt(terms) bounds do not cover the rounding of both.
    """
    has_sum = any(tensor.summed(problem) is not None for tensor in kernel.tensors)
    return KINDS if has_sum and problem.dtype == "float32" else (NORMAL, UNIFORM)


def random_arrays(kernel: Kernel, problem: Problem, seed: int, kind: str = NORMAL) -> dict[str, HostArray]:
    """Every array that the kernel reads, by name: row-major, the problem's dtype.

    `scaled`, `moderate` and `cancelling` are about the factors of the sum; other arrays are normal then. Never zeros:
    they hide unwritten outputs, and GPUs run faster on them than on real data.
    """
    sequence = np.random.SeedSequence([seed, KINDS.index(kind)])
    arrays: dict[str, HostArray] = {}
    partner = False
    for tensor in kernel.tensors:
        if not tensor.is_read(problem):
            continue
        axis = tensor.summed(problem)
        draw = _DRAWN[kind if axis is not None or kind == UNIFORM else NORMAL]
        array = _drawn(tensor, problem, draw, sequence)
        if kind == CANCELLING and axis is not None:
            _pair(array, axis, sequence if partner else None)
            partner = True
        arrays[tensor.name] = array
    return arrays


def scalar_values(kernel: Kernel, problem: Problem) -> dict[str, float]:
    """The value of every scalar argument by name."""
    return {a.name: a.value(problem) for a in kernel.arguments if isinstance(a, Scalar)}


def _drawn(tensor: Tensor, problem: Problem, draw: Fill, sequence: np.random.SeedSequence) -> HostArray:
    array: HostArray = np.empty(tensor.shape(problem), np.float32 if problem.dtype == "float32" else np.float64)
    _fill(array.reshape(-1), draw, sequence)
    return array


def _fill(flat: HostArray, draw: Fill, sequence: np.random.SeedSequence) -> None:
    blocks = [flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK)]
    generators = [np.random.Generator(np.random.SFC64(seed)) for seed in sequence.spawn(len(blocks))]
    if len(blocks) == 1:
        draw(generators[0], blocks[0])
        return
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_THREADS, len(blocks))) as pool:
        list(pool.map(draw, generators, blocks))


def _normal(generator: np.random.Generator, out: HostArray) -> None:
    generator.standard_normal(out=out, dtype=out.dtype.type)


def _uniform(generator: np.random.Generator, out: HostArray) -> None:
    generator.random(out=out, dtype=out.dtype.type)


def _scaled(generator: np.random.Generator, out: HostArray, scale: int = SCALE) -> None:
    _normal(generator, out)
    np.ldexp(out, generator.integers(-scale, scale, out.size, np.int8, endpoint=True), out=out)


def _moderate(generator: np.random.Generator, out: HostArray) -> None:
    _scaled(generator, out, MODERATE_SCALE)


def _pair(array: HostArray, axis: int, sequence: np.random.SeedSequence | None) -> None:
    """Repeats the first half along the axis in the second; with `sequence` negated, and all but the same."""
    along = np.moveaxis(array, axis, 0)
    half = along.shape[0] // 2
    along[half : 2 * half] = along[:half]
    if sequence is not None and half:
        left = np.empty(along[:half].shape, array.dtype)
        _fill(left.reshape(-1), _normal, sequence)
        left *= CANCELLED_EPSILONS * np.finfo(array.dtype).eps
        left += 1
        along[half : 2 * half] *= -left


_DRAWN: dict[str, Fill] = {
    NORMAL: _normal,
    UNIFORM: _uniform,
    SCALED: _scaled,
    CANCELLING: _normal,
    MODERATE: _moderate,
}
