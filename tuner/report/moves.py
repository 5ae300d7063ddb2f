"""The cost of moving a problem's arrays to the device and its outputs back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.kernels.kernel import Kernel, Tensor
from tilewright.kernels.problem import Problem
from tilewright.tuner.arrays import HostArray
from tilewright.tuner.devices.cuda.arrays import array_bytes
from tilewright.tuner.devices.device import DeviceMemory
from tilewright.tuner.loop import statistics
from tilewright.tuner.report.rows import Moves

_ROUNDS = 5
_LARGE_BYTES = 1 << 29  # such arrays take tenths of a second: three rounds will do


def moves(memory: DeviceMemory | None, kernel: Kernel, problem: Problem) -> Moves | None:
    """Wall times of allocating every array, uploading what is read and downloading the output; medians.

    None without a memory of the device's own. Host arrays are pageable and were touched before.
    """
    if memory is None:
        return None
    sizes = array_bytes(kernel, problem)
    rounds = 3 if sum(sizes.values()) >= _LARGE_BYTES else _ROUNDS
    inputs = {t.name: _touched(t, problem) for t in kernel.tensors if t.is_read(problem)}
    outputs = {t.name: _touched(t, problem) for t in kernel.outputs}
    times: dict[str, list[float]] = {"allocate": [], "in": [], "out": []}
    for number in range(-1, rounds):  # round -1 is the first touch of everything, and not kept
        held: dict[str, Any] = {}

        def allocate(held: dict[str, Any] = held) -> None:
            held.update({name: memory.allocate(size) for name, size in sizes.items()})

        def upload(held: dict[str, Any] = held) -> None:
            for name, array in inputs.items():
                memory.upload(int(held[name]), array)

        def download(held: dict[str, Any] = held) -> None:
            for name, array in outputs.items():
                memory.download(int(held[name]), array)

        times_ms = {"allocate": _wall_ms(allocate), "in": _wall_ms(upload), "out": _wall_ms(download)}
        for name, time_ms in times_ms.items() if number >= 0 else ():
            times[name].append(time_ms)
    return Moves(*(statistics.median(times[name]) for name in ("allocate", "in", "out")))


def _touched(tensor: Tensor, problem: Problem) -> HostArray:
    """Pages that are there: untouched ones would all be the one page of zeros, which is faster to read."""
    array: HostArray = np.ones(tensor.shape(problem), tensor.dtype_for(problem))
    return array


def _wall_ms(action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1e3
