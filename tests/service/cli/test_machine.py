from __future__ import annotations

import pytest

from tilewright.service.cli.machine import chosen_devices
from tilewright.tuner.devices import local
from tilewright.tuner.devices.local import DeviceEntry

CPU = DeviceEntry("cpu", "cpu", "CPU-1", "a CPU")
SLICES = [DeviceEntry(f"cuda:{n}", "cuda", f"MIG-{n}", "NVIDIA H200 MIG 1g.18gb", gpu_uuid="GPU-a") for n in (0, 1)]
WHOLE = [DeviceEntry(f"cuda:{n}", "cuda", f"GPU-{n}", "NVIDIA H200") for n in (2, 3)]


@pytest.fixture
def here(monkeypatch):
    """Says which devices this machine has."""

    def say(*entries: DeviceEntry) -> None:
        monkeypatch.setattr(local, "list_devices", lambda: list(entries))

    return say


def test_every_device_is_every_gpu_or_the_cpu_where_there_is_none(here):
    here(*WHOLE, CPU)
    assert chosen_devices(None, every=True) == WHOLE
    assert chosen_devices(None, every=False) == WHOLE[:1]
    here(CPU)
    assert chosen_devices(None, every=True) == [CPU]


def test_of_a_gpu_that_is_cut_up_every_device_is_the_first_slice(here):
    """Slices of one GPU share its clocks and its power: only one process measures there."""
    here(*SLICES, *WHOLE, CPU)
    assert chosen_devices(None, every=True) == [SLICES[0], *WHOLE]
    assert chosen_devices(["cuda:1"], every=False) == [SLICES[1]]
