"""Many launches recorded once and replayed at one call, by ctypes on the driver: PyCUDA has no graphs.

A launch from Python takes longer than the shortest kernels run; replayed, they follow each other without a gap.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from tilewright.tuner.devices.cuda.driver import call

_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


class LaunchGraph:
    """`count` calls of `enqueue`, recorded on `stream` (a CUstream, not the default one), to be replayed there."""

    def __init__(self, stream: int, enqueue: Callable[[], None], count: int) -> None:
        self._stream = ctypes.c_void_p(stream)
        graph = ctypes.c_void_p()
        self._executable = ctypes.c_void_p()
        call("cuStreamBeginCapture_v2", self._stream, _THREAD_LOCAL)
        try:
            for _ in range(count):
                enqueue()
        finally:
            # Also after a failed launch: the stream must leave capture mode.
            call("cuStreamEndCapture", self._stream, ctypes.byref(graph))
        try:
            call("cuGraphInstantiateWithFlags", ctypes.byref(self._executable), graph, ctypes.c_ulonglong(0))
        finally:
            call("cuGraphDestroy", graph)

    def replay(self) -> None:
        """Enqueues all its launches."""
        call("cuGraphLaunch", self._executable, self._stream)

    def close(self) -> None:
        """Frees it; replays that are under way end first."""
        if self._executable:
            call("cuGraphExecDestroy", self._executable)
            self._executable = ctypes.c_void_p()
