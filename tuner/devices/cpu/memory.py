"""Memory that a bench of the CPU device takes."""

from __future__ import annotations

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.arrays import input_kinds

MOST_WARM_PROGRAMS = 6
"""Sampling processes that stay loaded: those that the finals time in turn (four finalists, the default, the library).
Each holds a copy of the arrays."""

_WIDE_BYTES = 8
"""Bytes of a number in a reference, which is in float64 whatever the kernel computes in."""

_CASES_KEPT_BYTES, _LEAST_CASES_KEPT = 1 << 28, 8
"""Inputs and references of kinds that stay: all, where they are small, else so many of the latest."""


def needed_bytes(kernel: Kernel, problem: Problem) -> int:
    """Bytes that a bench of the problem takes at most, in all its processes and its files in memory.

    Each kind of inputs has files and a reference (values and magnitudes), each process a copy of the arrays. The last
    reference to be made has, beside its inputs, those and its results in float64, and their absolute values.
    """
    tensors = kernel.tensors
    inputs = sum(t.size_bytes(problem) for t in tensors if t.is_read(problem))
    wide_inputs = sum(t.layout(problem).elements for t in tensors if t.is_read(problem)) * _WIDE_BYTES
    wide_outputs = sum(t.layout(problem).elements for t in kernel.outputs) * _WIDE_BYTES
    kinds = cases_kept(kernel, problem)
    files = kinds * inputs + 2 * sum(t.size_bytes(problem) for t in kernel.outputs)
    references = kinds * wide_outputs * 2
    processes = (MOST_WARM_PROGRAMS + 1) * kernel.memory_bytes(problem)  # one more verifies
    making = inputs + (wide_inputs + wide_outputs) * 2
    return files + references + processes + making


def cases_kept(kernel: Kernel, problem: Problem) -> int:
    """The number of kinds of inputs whose files and references are kept."""
    inputs = sum(t.size_bytes(problem) for t in kernel.tensors if t.is_read(problem))
    outputs = sum(t.layout(problem).elements for t in kernel.outputs) * _WIDE_BYTES * 2
    most = max(_LEAST_CASES_KEPT, _CASES_KEPT_BYTES // max(1, inputs + outputs))
    return min(len(input_kinds(kernel, problem)), most)
