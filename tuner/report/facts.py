"""The facts of a report: device, peaks, environment, host, date and command."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import numpy as np

from tilewright.tuner.devices.cpu.device import cpu_name
from tilewright.tuner.devices.cuda import nvml
from tilewright.tuner.devices.cuda.read_bandwidth import best_reads
from tilewright.tuner.devices.device import TF32, Device, DeviceModel
from tilewright.tuner.report.host_steps import blas_name
from tilewright.tuner.report.ladders import TENSOR, Step
from tilewright.tuner.report.rows import Bandwidth
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
