"""What a caller gives a launcher: arrays by place or by name, numbers, a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.kernels.kernel import Kernel
from tilewright.tuner.runtime.errors import ArgumentError, LaunchError


def given_arrays(
    kernel: Kernel, tensors: Sequence[str], arrays: Sequence[Any], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The kernel's tensors in the declared order, given by place or by name, and the numbers by name.

    Raises LaunchError, or ArgumentError naming the argument.
    """
    if len(arrays) > len(tensors):
        raise LaunchError(f"{kernel.name} takes {len(tensors)} arrays: {', '.join(tensors)}")
    given, numbers = dict(zip(tensors, arrays, strict=False)), dict[str, Any]()
    known = {argument.name for argument in kernel.arguments}
    for name, value in named.items():
        if name not in known:
            raise ArgumentError(name, f"{kernel.name} has no such argument", f"It has {', '.join(sorted(known))}")
        if name in given:
            raise ArgumentError(name, "is given twice", "Give it by place or by name")
        (given if name in tensors else numbers)[name] = value
    for name in tensors:
        if given.get(name) is None:
            raise ArgumentError(name, "is missing", f"Give {', '.join(tensors)}")
    return tuple(given[name] for name in tensors), numbers


def stream_handle(stream: Any) -> int:
    """The handle of a stream of PyCUDA, torch, CuPy or the protocol `__cuda_stream__`; raises LaunchError."""
    if isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "handle", "ptr"):
        member = getattr(stream, name, None)
        if member is not None:
            return int(member)
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise LaunchError(
        f"stream: {type(stream).__qualname__} is not a CUDA stream. Give one of PyCUDA, torch or CuPy, or its handle"
    )
