"""Scratch memory on the GPU that a variant asks for, of one executable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.tuner.devices.cuda.checks import CHECK_LAUNCH, GUARD_BYTES, POISON, CheckKernels

if TYPE_CHECKING:
    from tilewright.tuner.devices.cuda.context import CudaContext


class Workspace:
    """Device memory, zero at first, between guard bands; freed with the object."""

    def __init__(self, device: CudaContext, checks: CheckKernels, size_bytes: int) -> None:
        self._device, self._checks, self._size = device, checks, (size_bytes + 15) // 16 * 16
        self._memory: Any = device.allocate(self._size + 2 * GUARD_BYTES + 8)
        self.address = int(self._memory) + GUARD_BYTES
        self._bands = int(self._memory), self.address + self._size
        self._answer = self._bands[1] + GUARD_BYTES
        self.reset()

    def reset(self) -> None:
        """As before the first launch, and the bands poisoned."""
        self._device.fill(self.address, self._size, 0)
        for band in self._bands:
            self._device.fill(band, GUARD_BYTES, POISON)

    def trespasses(self) -> list[str]:
        """The writes beside it, in words; empty where there were none."""
        words = np.zeros(1, np.uint64)
        self._device.fill(self._answer, 8, 0)
        for band in self._bands:
            self._checks.count_damage.enqueue(CHECK_LAUNCH, band, GUARD_BYTES // 4, self._answer)
        self._device.download(self._answer, words)
        return [f"{int(words[0])} words of 4 bytes beside the workspace were written"] if words[0] else []
