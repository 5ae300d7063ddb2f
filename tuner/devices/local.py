"""The devices of this machine: found without touching them, opened by name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tilewright.tuner.compile.cache import CubinCache
from tilewright.tuner.compile.compilation import Compiler
from tilewright.tuner.compile.compiler import default_compiler
from tilewright.tuner.compile.pool import CompilePool
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.devices.cuda import nvml
from tilewright.tuner.devices.device import Device
from tilewright.tuner.devices.isolated.device import Deadlines, IsolatedDevice
from tilewright.tuner.errors import NoCompilerError, NoDeviceError


@dataclass(frozen=True)
class DeviceEntry:
    """A device of this machine by the name that opens it ("cuda:0", "cpu"); no context was made to learn this."""

    name: str
    kind: Literal["cuda", "cpu"]
    uuid: str
    product: str
    memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    gpu_uuid: str | None = None  # of the GPU that a slice is cut from

    @property
    def physical_uuid(self) -> str:
        """The unit on which only one process may measure at a time: the device, or the GPU that it is part of."""
        return self.gpu_uuid or self.uuid


@dataclass(frozen=True)
class DeviceSpec:
    """A device to be opened, in this process or in another; `device` is a GPU's UUID, or "cpu"."""

    device: str
    compiler: Compiler = "nvrtc"
    cache_folder: Path | None = None

    def open(self) -> Device:
        """The device, opened in this process; raises NoDeviceError with the remedy."""
        if self.device == "cpu":
            return CpuDevice()
        gpu = next((g for g in nvml.gpus() if g.uuid == self.device), None)
        if gpu is None:
            raise NoDeviceError(f"the GPU {self.device} is no longer on this machine")
        if gpu.parent_uuid is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu.uuid  # the only way to a slice; no context was made here yet
        try:
            from tilewright.tuner.devices.cuda.device import CudaDevice  # noqa: PLC0415 - PyCUDA is optional, and only children load it
        except ImportError as error:
            remedy = "install it with: pip install 'tilewright[service,gpu]' (in a checkout: make gpu)"
            raise NoDeviceError(f"PyCUDA cannot be imported ({error}); {remedy}") from error
        return CudaDevice(gpu, self.compiler, CubinCache(self.cache_folder))


def list_devices() -> list[DeviceEntry]:
    """Every device that `open_device` takes: the visible GPUs, then the CPU where a C++ compiler is."""
    entries = [
        DeviceEntry(
            f"cuda:{gpu.ordinal}", "cuda", gpu.uuid, gpu.name, gpu.memory_bytes, gpu.compute_capability, gpu.parent_uuid
        )
        for gpu in nvml.gpus()
    ]
    try:
        cpu = CpuDevice()
    except NoCompilerError:
        return entries
    return [*entries, DeviceEntry("cpu", "cpu", cpu.uuid, cpu.model.name, cpu.model.limits.memory_bytes)]


def find_device(name: str, entries: Sequence[DeviceEntry] | None = None) -> DeviceEntry:
    """The device of that name or UUID; raises NoDeviceError, which lists those that are there."""
    known = list_devices() if entries is None else entries
    for entry in known:
        if name in {entry.name, entry.uuid}:
            return entry
    raise NoDeviceError(f"There is no device {name!r}. Devices here: {', '.join(e.name for e in known) or 'none'}")


def open_device(name: str, compiler: Compiler | None = None, deadlines: Deadlines | None = None) -> Device:
    """The device, opened: a GPU in a child process of its own with a pool of compilers, the CPU device here.

    Raises NoDeviceError. A GPU's child ends with the calling thread.
    """
    entry = find_device(name)
    if entry.kind == "cpu":
        return DeviceSpec("cpu").open()
    spec = DeviceSpec(entry.uuid, compiler or default_compiler())
    pool = CompilePool(cache=CubinCache())
    try:
        return IsolatedDevice(spec, deadlines=deadlines, pool=pool)
    except BaseException:
        pool.close()
        raise
