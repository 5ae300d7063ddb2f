"""The check that does not wait for a call: some launches on random numbers, beside the float64 reference.

It waits for its result and takes the memory of the problem's arrays once more, on the host and on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.dtypes import ITEM_BYTES
from tilewright.kernels.kernel import Arrays, Kernel, Tensor
from tilewright.kernels.problem import Problem
from tilewright.tuner.devices.cuda.driver import DriverError
from tilewright.tuner.errors import OwnFunctionError
from tilewright.tuner.runtime.first_use.first_use import Finding, FirstUse

HostMemory = NDArray[np.uint8]
"""An array's memory on the host."""

Launched = Callable[[Sequence[HostMemory], tuple[float, ...]], None]
"""One launch on arrays and numbers, each in the declared order; the outputs are written when it returns."""

OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY."""

_SEED = 0
_ALIGNMENT = 16
_MOST_FLOPS = 2e10  # of a whole problem: some seconds of a few cores, in float64
_MOST_BYTES = 1 << 30  # of the arrays, with which one kind of numbers is enough
_HALF_WIDTH = 1.5
"""Tensor cores sum half types less exactly than float32 does; jobs compare with what the library is off."""


def verified(use: FirstUse, launch: Launched) -> bool:
    """Whether the configuration may be used: it is or was found right, or nothing can tell.

    A wrong configuration is withdrawn. Where it cannot be checked so, a call may check it. Raises what `launch` raises.
    """
    if use.state in {"right", "wrong"}:
        return use.state == "right"
    is_taken = use.take()
    reason, finding = "the launch that was to be checked failed", None
    try:
        finding = _finding(use.kernel, use.problem, launch)
    except (_NotPossibleError, OwnFunctionError, MemoryError) as error:
        reason = f"its check cannot be made ahead: {error or 'there is no memory for it'}"
    except DriverError as error:
        if error.status != OUT_OF_MEMORY:
            raise
        reason = "its check cannot be made ahead: the GPU has no memory for it"
    finally:
        if finding is None and is_taken:
            use.release(reason)
        elif finding is None and use.state == "unchecked":
            use.give_up(reason)
    if finding is not None:
        use.settle(finding)
    return finding is None or not finding.wrong


class _NotPossibleError(Exception):
    """Nothing says what is right."""


def _finding(kernel: Kernel, problem: Problem, launch: Launched) -> Finding:
    """The first finding, over the kinds of numbers; None where all are right."""
    from tilewright.tuner.arrays import random_arrays, scalar_values  # noqa: PLC0415 - a launch needs none of this
    from tilewright.tuner.line_kinds import bound_width  # noqa: PLC0415
    from tilewright.tuner.runtime.first_use.rows import HostRows  # noqa: PLC0415

    rows = HostRows(kernel, problem, _MOST_FLOPS)
    if rows.why_not:
        raise _NotPossibleError(rows.why_not)
    for kind in _kinds(kernel, problem):
        arrays = random_arrays(kernel, problem, _SEED, kind)
        scalars = tuple(scalar_values(kernel, problem, kind).values())
        memory = [_memory(tensor, problem, arrays) for tensor in kernel.tensors]
        addresses = [one.ctypes.data for one in memory]
        rows.before(addresses, scalars)
        launch(memory, scalars)
        width = bound_width(kernel, problem, kind) * (_HALF_WIDTH if problem.is_half else 1.0)
        finding = rows.after(addresses, width)
        if finding.wrong:
            return finding
    return Finding()


def _kinds(kernel: Kernel, problem: Problem) -> list[str]:
    """Kinds of numbers: normal ones, lines of very different sizes; for a user's kernel what its author expects."""
    from tilewright.kernels.catalogue import catalogue  # noqa: PLC0415
    from tilewright.tuner.arrays import NORMAL, UNIFORM, input_kinds  # noqa: PLC0415
    from tilewright.tuner.line_kinds import LINES, MIXED  # noqa: PLC0415

    others = (LINES, MIXED, UNIFORM) if kernel.name in catalogue().by_name else (UNIFORM,)
    found = [NORMAL, *(kind for kind in others if kind in input_kinds(kernel, problem))]
    return found[: 1 if kernel.memory_bytes(problem) > _MOST_BYTES else 2]


def _memory(tensor: Tensor, problem: Problem, arrays: Arrays) -> HostMemory:
    """Aligned memory of the array as it lies; NaN in every float of an output that is not read."""
    layout = tensor.layout(problem)
    size_bytes = layout.elements * ITEM_BYTES[tensor.dtype_for(problem)]
    room = np.full(size_bytes + _ALIGNMENT, 0xFF, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    memory = room[start : start + size_bytes]
    if tensor.name in arrays:
        memory[:] = np.ascontiguousarray(layout.memory_of(arrays[tensor.name])).reshape(-1).view(np.uint8)
    return memory
