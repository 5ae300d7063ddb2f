"""Devices by the names that callers give them."""

from __future__ import annotations

from tilewright.tuner.errors import NoDeviceError
from tilewright.tuner.runtime.choice import TargetDevice
from tilewright.tuner.runtime.errors import WrongDeviceError
from tilewright.tuner.runtime.launches import gpu
from tilewright.tuner.runtime.launches.contexts import current_ordinal


def resolved(device: str) -> str:
    """The full name; "cuda" is the current context's GPU, or the first. Raises WrongDeviceError, NoDeviceError."""
    kind, colon, number = device.partition(":")
    if device == "cpu" or (kind == "cuda" and colon and number.isdecimal()):
        return device
    if device != "cuda":
        raise WrongDeviceError(f"there is no device {device!r}. Name one like cpu, cuda or cuda:0")
    ordinal = current_ordinal()
    return f"cuda:{ordinal or 0}"


def device_or_default(named: str | None) -> str:
    """The full name of the device, else the current GPU, else the CPU where there is no driver."""
    try:
        return resolved(named or "cuda")
    except NoDeviceError:
        if named:
            raise
        return "cpu"


def place_of(device: str) -> TargetDevice:
    """The device model of a resolved device."""
    if device != "cpu":
        return gpu.gpu_place(ordinal_of(device))
    from tilewright.tuner.runtime.launches.host import host_place  # noqa: PLC0415 - see Launcher

    return host_place()


def ordinal_of(device: str) -> int:
    """The number of a resolved GPU."""
    return int(device.partition(":")[2])
