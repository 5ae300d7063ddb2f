"""What NVML tells of this machine's GPUs, without a CUDA context."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pynvml

from tilewright.tuner.device import DeviceState


@dataclass(frozen=True)
class Gpu:
    """One physical GPU; `ordinal` counts those visible to this process, in the order of their PCI addresses."""

    ordinal: int
    uuid: str
    name: str
    pci_bus_id: str
    memory_bytes: int
    compute_capability: tuple[int, int]


def gpus() -> list[Gpu]:
    """The GPUs that this process may use (CUDA_VISIBLE_DEVICES is obeyed); empty where there is no driver."""
    if not _is_started():
        return []
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        pci = pynvml.nvmlDeviceGetPciInfo(handle)
        found.append(
            Gpu(
                ordinal=index,
                uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
                name=_text(pynvml.nvmlDeviceGetName(handle)),
                pci_bus_id=f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
                memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                compute_capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
            )
        )
    return _visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def driver_version() -> str:
    """For instance "580.159.04"; empty without a driver."""
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


def _visible(found: list[Gpu], allowed: str | None) -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES names, by index or by the beginning of the UUID, in its order."""
    if allowed is None:
        chosen = found
    else:
        chosen = []
        for word in (w.strip() for w in allowed.split(",")):
            match = [g for g in found if (word.isdigit() and g.ordinal == int(word)) or _starts(g, word)]
            if not match:
                break  # CUDA ignores everything after the first that is not there
            chosen.append(match[0])
    return [Gpu(i, g.uuid, g.name, g.pci_bus_id, g.memory_bytes, g.compute_capability) for i, g in enumerate(chosen)]


def _starts(gpu: Gpu, word: str) -> bool:
    return word.startswith("GPU-") and gpu.uuid.startswith(word)


@cache
def _is_started() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


@contextlib.contextmanager
def _optional() -> Iterator[None]:
    """What some GPUs and virtual machines do not offer is left out."""
    with contextlib.suppress(pynvml.NVMLError):
        yield


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
