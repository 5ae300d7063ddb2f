"""An input that stays the same from launch to launch, packed ahead of them: what `launcher.pack` returns."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

from tilewright.tuner.devices.cuda.driver import DriverError, call
from tilewright.tuner.runtime.launches.contexts import current_handle, pushed


class PackedOperand:
    """A packed array, which must not change any more, and what kernels keep of it, by context and problem.

    It may be used by any launcher, stream and thread. Captured graphs read it too: keep it as long as them.
    """

    def __init__(self, name: str, array: Any) -> None:
        self.name, self.array = name, array
        self._kept: dict[object, KeptMemory] = {}

    def address(self, key: object, make: Callable[[], KeptMemory]) -> int:
        """The address of what is kept under that key, made where it is not there yet."""
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept.setdefault(key, make())
        return kept.address


class KeptMemory:
    """Device memory in the current context, freed with this."""

    def __init__(self, size_bytes: int) -> None:
        memory = ctypes.c_uint64()
        self.address, self._context = 0, current_handle()
        call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size_bytes))
        self.address = memory.value

    def __del__(self) -> None:
        if self.address:
            with contextlib.suppress(DriverError), pushed(self._context):
                call("cuMemFree_v2", ctypes.c_uint64(self.address))
