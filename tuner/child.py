"""A child process that runs one function at the end of a pipe, without the parent's main module.

`multiprocessing`'s children import the parent's `__main__` again: for a web server or a command line tool that is
seconds and hundreds of megabytes for each of a pool's workers. These import what their function needs.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from tilewright.tuner import remains, sandbox

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from tilewright.tuner.child import run; run(int(sys.argv[2]), int(sys.argv[3]))"
)
HELD: set[int] = set()
"""Descriptors that children which use the device keep open as well: a lock on it stays held as long as any process
lives that can use it, however its parent went."""

_PR_SET_PDEATHSIG = 1
_KILL_WAIT_S = 10.0
_FILE_BYTES, _MEMORY_BYTES = 1 << 29, 16 << 30
"""Of a compiler's process and of a file that it writes. NVRTC takes 0.2 GB for the largest kernels here."""
_MESSAGE_TIMEOUT = struct.pack("ll", 60, 0)
"""A timeval: the most seconds between two parts of one message. A call waits for its answer by `poll`."""


class UnkillableError(Exception):
    """A child outlived SIGKILL: it hangs inside the kernel, in a driver call."""


class Child:
    """A started child and the parent's end of its pipe.

    With `dies_with_parent` the kernel kills the child, whatever it does, when the thread that started it ends.
    Without it the child notices only when it next reads the pipe. One that `uses_device` holds what is HELD. One that
    `is_confined` has the limits and the sandbox of a compiler.
    """

    def __init__(
        self,
        function: Callable[..., None],
        arguments: tuple[Any, ...] = (),
        *,
        dies_with_parent: bool = False,
        uses_device: bool = False,
        is_confined: bool = False,
    ) -> None:
        self._mark = remains.new_mark()
        ours, theirs = socket.socketpair()
        for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, direction, _MESSAGE_TIMEOUT)
        with theirs:
            # In the sandbox its parent is the sandbox's own process, which dies with us.
            asks_to_die = dies_with_parent and not (is_confined and sandbox.is_on())
            words = (json.dumps(sys.path), str(theirs.fileno()), str(int(asks_to_die)))
            command = [sys.executable, "-P", "-c", _BOOT, *words]
            environment: Mapping[str, str] = os.environ
            if is_confined:
                command = sandbox.limited(
                    sandbox.confined(command), cpu_s=None, file_bytes=_FILE_BYTES, memory_bytes=_MEMORY_BYTES
                )
                environment = sandbox.environment({}, is_compiler=True)
            self.process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(), *(HELD if uses_device else ())),
                stdin=subprocess.DEVNULL,
                env={**environment, **self._mark},
            )
        self.connection = Connection(ours.detach())
        # A child that died at once is found by the first receive; nothing is lost by not hearing of it here.
        with contextlib.suppress(OSError):
            self.connection.send((function, arguments))

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self.process.pid

    def kill(self) -> None:
        """Ends it and what it has started by SIGKILL, and closes the pipe; raises UnkillableError."""
        self.process.kill()
        self._reap(_KILL_WAIT_S)
        remains.end(self._mark)

    def close(self, wait_s: float = 5.0) -> None:
        """Closes the pipe, which ends a child that reads it; kills one that has not ended after `wait_s`."""
        self.connection.close()
        try:
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def join(self, wait_s: float) -> int | None:
        """The exit status, negative for a signal; None where it is still running after `wait_s`."""
        try:
            return self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return None

    def _reap(self, wait_s: float) -> None:
        self.connection.close()
        try:
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            raise UnkillableError(f"process {self.pid} is still there {wait_s:.0f} s after SIGKILL") from None


def run(descriptor: int, dies_with_parent: int) -> None:
    """The child's main function: reads a function and its arguments, and calls it with the pipe first."""
    # Ctrl-C and a service manager's SIGTERM reach the whole group; the parent decides, and ends us by closing the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if dies_with_parent:
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent or parent == 1:  # it died before the call
            return
    with Connection(descriptor) as connection:
        try:
            function, arguments = connection.recv()
        except (EOFError, ConnectionError):
            return
        function(connection, *arguments)
