"""The facts of a report: device, peaks, environment, host, date, command, and the cost of moving its arrays."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tilewright.kernels.kernel import Kernel, Tensor
from tilewright.kernels.problem import Problem
from tilewright.tuner.arrays import HostArray
from tilewright.tuner.devices.cpu.device import cpu_name
from tilewright.tuner.devices.cuda import nvml
from tilewright.tuner.devices.cuda.cases import array_bytes
from tilewright.tuner.devices.cuda.read_bandwidth import best_reads
from tilewright.tuner.devices.device import TF32, Device, DeviceMemory, DeviceModel
from tilewright.tuner.loop import statistics
from tilewright.tuner.report.host_steps import blas_name
from tilewright.tuner.report.ladders import TENSOR, Step
from tilewright.tuner.report.rows import Bandwidth, Moves
from tilewright.tuner.roofline import SPLIT_COST

if TYPE_CHECKING:
    from tilewright.tuner.devices.cuda.device import CudaDevice

_COPIED_BYTES = 1 << 26
_COPIES = 5


def facts(device: Device, command: str) -> dict[str, str]:
    """Names and values, in the order of the page."""
    environment, state = device.environment, _state(device)
    compiler = f"{environment.compiler} {environment.compiler_version}"
    return {
        "device": device.model.name if device.model.kind == "cuda" else f"CPU: {device.model.name} (one thread)",
        **({"driver": environment.driver, "CUDA": environment.toolkit} if device.model.kind == "cuda" else {}),
        "compiler": compiler,
        "runtime": environment.runtime,
        **state,
        "host": f"{cpu_name()}; {blas_name()}",
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
    }


def peak_gflops(model: DeviceModel, step: Step) -> float | None:
    """Peak GFLOP/s of the units that a step uses, by the data sheet; None on the host or without a data sheet.

    Tensor cores with numbers in two parts: three products in FP16 take as long as one and a half in TF32.
    """
    if step.place not in {"device", "library"}:
        return None
    if step.variants == TENSOR:
        tf32 = model.datasheet_gflops.get(TF32)
        return None if tf32 is None else tf32 / SPLIT_COST
    return model.datasheet_gflops.get(step.dtype)


def bandwidth(device: Device) -> Bandwidth:
    """GB/s by the data sheet, and as measured now: the faster of a read and a copy on a GPU, a copy on the CPU."""
    model = device.model
    if model.kind == "cpu":
        return Bandwidth(None, _host_copy_gb_per_s(), "a copy by NumPy on one thread, bytes read and written counted")
    (read_gb_per_s, geometry), _ = best_reads(cast("CudaDevice", device))
    how = f"a kernel that only reads 1 GiB ({geometry})"
    if model.measured_gb_per_s is not None and model.measured_gb_per_s > read_gb_per_s:
        return Bandwidth(model.datasheet_gb_per_s, model.measured_gb_per_s, "a copy, bytes read and written counted")
    return Bandwidth(model.datasheet_gb_per_s, read_gb_per_s, how)


def _state(device: Device) -> dict[str, str]:
    if device.model.kind == "cpu":
        return {}
    state = nvml.state(device.uuid)
    clock = "" if state.clock_mhz is None else f"{state.clock_mhz} MHz"
    heat = "" if state.temperature_c is None else f"{state.temperature_c} °C"
    return {"at the end": ", ".join(part for part in (clock, heat) if part)}


def _host_copy_gb_per_s() -> float:
    source, target = np.ones(_COPIED_BYTES // 8), np.ones(_COPIED_BYTES // 8)
    best_s = float("inf")
    for _ in range(_COPIES):
        started = time.perf_counter()
        np.copyto(target, source)
        best_s = min(best_s, time.perf_counter() - started)
    return 2 * _COPIED_BYTES / best_s / 1e9


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
