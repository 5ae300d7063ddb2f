"""The devices of this machine as the command line names them: `cuda:0`, `cpu`, or a UUID."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.tuner.errors import NoDeviceError

if TYPE_CHECKING:
    from tilewright.tuner.devices.local import DeviceEntry


def chosen_devices(names: Sequence[str] | None, *, every: bool) -> list[DeviceEntry]:
    """The named devices, each once. Without names: every GPU, or only the first; the CPU if there is no GPU.

    A GPU that is cut into slices (MIG) gives only its first slice: only one process may measure on a GPU.
    """
    from tilewright.tuner.devices.local import find_device, list_devices

    entries = list_devices()
    if names:
        return list({entry.uuid: entry for entry in (find_device(name, entries) for name in names)}.values())
    by_gpu: dict[str, DeviceEntry] = {}
    for entry in entries:
        if entry.kind == "cuda":
            by_gpu.setdefault(entry.physical_uuid, entry)
    gpus = list(by_gpu.values())
    return (gpus if every else gpus[:1]) or [entry for entry in entries if entry.kind == "cpu"]


def uuid_of(name: str) -> str:
    """The UUID of a device that is given by its name on this machine, or by the UUID itself."""
    from tilewright.tuner.devices.local import find_device

    try:
        return find_device(name).uuid
    except NoDeviceError:
        return name  # the service checks it: it may be a device of another machine
