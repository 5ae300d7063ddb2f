"""The GPUs of this machine by NVML, without a CUDA context."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pynvml

from tilewright.tuner.outcome import DeviceState

_PROFILE = re.compile(r" MIG ((?:[0-9]+c\.)?[0-9]+g\.[0-9]+gb(?:\+\S+)?)$")


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one slice of a GPU that is cut up (MIG), which CUDA and we treat as a device of its own model.

    `ordinal` counts those visible to this process, in the order of their PCI addresses. `parent_uuid` is that of a
    slice's GPU, None where it is whole.
    """

    ordinal: int
    uuid: str
    name: str
    pci_bus_id: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    parent_uuid: str | None = None

    @property
    def profile(self) -> str | None:
        """A slice's share of multiprocessors and memory, as NVIDIA writes it ("1g.18gb"); None for a whole GPU."""
        profile = _PROFILE.search(self.name)
        return profile[1] if profile else None


def gpus() -> list[Gpu]:
    """The GPUs that this process may use (CUDA_VISIBLE_DEVICES is obeyed); empty where there is no driver.

    A GPU that is cut up appears as its slices alone: CUDA no longer offers the whole.
    """
    if not _is_started():
        return []
    devices: list[Gpu] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        whole = _whole(index, handle)
        devices += _slices(whole, handle) if _is_cut_up(handle) else [whole]
    return _visible(devices, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _whole(index: int, handle: Any) -> Gpu:
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    return Gpu(
        ordinal=index,
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        pci_bus_id=f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        compute_capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
    )


def _is_cut_up(handle: Any) -> bool:
    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:
        return False  # most GPUs cannot be
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def _slices(whole: Gpu, handle: Any) -> list[Gpu]:
    """The slices that were made of it. Their names hold the profile, so that each profile is a model of its own."""
    slices = []
    for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            piece = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except pynvml.NVMLError_NotFound:
            continue
        slices.append(
            replace(
                whole,
                uuid=_text(pynvml.nvmlDeviceGetUUID(piece)),
                name=_text(pynvml.nvmlDeviceGetName(piece)),
                memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(piece).total),
                parent_uuid=whole.uuid,
            )
        )
    return slices


def driver_version() -> str:
    """The driver's version, such as "580.159.04"; empty without a driver."""
    return _text(pynvml.nvmlSystemGetDriverVersion()) if _is_started() else ""


def clocks(uuid: str) -> str:
    """The application clocks that somebody has set, else "default"."""
    with _optional():
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        kinds = (pynvml.NVML_CLOCK_GRAPHICS, pynvml.NVML_CLOCK_MEM)
        usual = [pynvml.nvmlDeviceGetDefaultApplicationsClock(handle, kind) for kind in kinds]
        now = [pynvml.nvmlDeviceGetApplicationsClock(handle, kind) for kind in kinds]
        if now != usual:
            return f"applications {now[0]} MHz, memory {now[1]} MHz"
    return "default"


def state(uuid: str) -> DeviceState:
    """Clock and temperature now, as far as NVML gives them."""
    clock_mhz = temperature_c = None
    if _is_started():
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        with _optional():
            clock_mhz = int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
        with _optional():
            temperature_c = int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
    return DeviceState(clock_mhz, temperature_c)


def _visible(devices: list[Gpu], allowed: str | None) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, by index or by the beginning of the UUID, in its order."""
    if allowed is None:
        chosen = devices
    else:
        chosen = []
        for word in (w.strip() for w in allowed.split(",")):
            match = [g for g in devices if (word.isdigit() and g.ordinal == int(word)) or _starts(g, word)]
            if not match:
                break  # CUDA ignores everything after the first that is not there
            chosen.append(match[0])
    return [replace(gpu, ordinal=place) for place, gpu in enumerate(chosen)]


def _starts(gpu: Gpu, word: str) -> bool:
    return word.startswith(("GPU-", "MIG-")) and gpu.uuid.startswith(word)


@cache
def _is_started() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


@contextlib.contextmanager
def _optional() -> Iterator[None]:
    """Ignores the error of a query that this GPU or virtual machine does not offer."""
    with contextlib.suppress(pynvml.NVMLError):
        yield


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
