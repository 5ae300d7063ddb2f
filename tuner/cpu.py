"""The CPU device at the import path that docs/adding-a-kernel.md promises."""

from __future__ import annotations

from tilewright.tuner.devices.cpu.device import CpuDevice

__all__ = ["CpuDevice"]
