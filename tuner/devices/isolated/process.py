"""A device behind a child process, the only one with a context on it: what hangs or crashes there ends there.

A hung call is ended by SIGKILL of the child at its deadline; a crash and a sticky failure end the child as well. Each
is that trial's outcome, and the next call starts a new child and sets the bench up anew, with the same seed. Two losses
with no successful call between them (opening the device counts as one) raise DeviceLostError.

The child dies with the thread that started it (PR_SET_PDEATHSIG): use a device from one long-lived thread.
"""

from __future__ import annotations

import logging
import signal
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

from tilewright.tuner.child import Child, UnkillableError
from tilewright.tuner.compile.pool import CompilePool
from tilewright.tuner.devices import host_memory
from tilewright.tuner.devices.device import DeviceModel, Environment
from tilewright.tuner.devices.isolated.child import ChildMessage, FindKernel, OpensDevice, find_kernel, serve
from tilewright.tuner.errors import DeviceLostError, OutOfMemoryError, TrialFailure, TunerError
from tilewright.tuner.outcome import Outcome

log = logging.getLogger(__name__)

_MAX_LOSSES = 2
_SAME = {
    "load": "compile",
    "library_name": "library",
}  # the library's fastest call has a name: it is found first
_AHEAD_BYTES = 1 << 17
"""The longest call sent ahead of an answer. A pipe holds 200 kB, and nothing may wait for a child that hangs."""
_LAUNCHES = frozenset({"verify", "verify_each_kind", "sample"})
"""Calls that run the configuration; a child that dies in any other was lost between launches."""


class ChildFailedError(TunerError):
    """The device's process failed unexpectedly; its traceback follows."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds after which a call counts as hung. Those that run a configuration bound what a slow one may take."""

    open: float = 120.0
    bench: float = 900.0  # the float64 reference on the host: 4 s for 8192 cubed on 16 cores, minutes on 2
    compile: float = 180.0
    verify: float = 60.0
    verify_each_kind: float = 240.0
    sample: float = 60.0
    library: float = 240.0  # up to 34 of its calls are timed, and some verified, to find its fastest
    renew: float = 900.0  # as `bench`: other inputs have a reference of their own
    other: float = 60.0

    def of(self, call: str) -> float:
        """The deadline of that call."""
        return float(getattr(self, _SAME.get(call, call), self.other))


class DeviceProcess:
    """The child that has the device, and the facts it reported. With a pool, `close` closes that too."""

    def __init__(
        self,
        opener: OpensDevice,
        *,
        deadlines: Deadlines | None = None,
        finder: FindKernel = find_kernel,
        pool: CompilePool | None = None,
    ) -> None:
        self._opener, self._finder, self.pool = opener, finder, pool
        self._deadlines = deadlines or Deadlines()
        self._child: Child | None = None
        self._sent: deque[tuple[str, Future[Any]]] = deque()  # calls that wait for their answers, in turn
        self._losses = self._kills_before = 0
        self.generation = 0
        self._facts: tuple[str, DeviceModel, Environment] | None = None
        self.ensure_child()

    @property
    def uuid(self) -> str:
        """See `device.Device`."""
        return self._known()[0]

    @property
    def model(self) -> DeviceModel:
        """See `device.Device`; as the first child found it."""
        return self._known()[1]

    @property
    def environment(self) -> Environment:
        """See `device.Device`; as the first child found it."""
        return self._known()[2]

    @property
    def child_pid(self) -> int | None:
        """The process id of the child, where there is one now."""
        return None if self._child is None else self._child.pid

    def close(self) -> None:
        """Ends the child; it frees what it holds, or is killed after some seconds."""
        if self._child is not None:
            self._child.close()
            self._child = None
        if self.pool is not None:
            self.pool.close()

    def ensure_child(self) -> None:
        """Starts a child where there is none; raises DeviceLostError when that fails a second time."""
        while self._child is None:
            self.generation += 1
            self._kills_before = host_memory.kills()
            self._child = Child(serve, (self._opener, self._finder), dies_with_parent=True, uses_device=True)
            try:
                facts = self._receive("open")
            except TrialFailure as failure:
                if self._losses >= _MAX_LOSSES:
                    raise DeviceLostError(failure.log) from failure
                continue
            except TunerError:
                self._end()
                raise
            self._facts = self._facts or facts

    def call(self, name: str, *arguments: Any) -> Any:
        """The child's answer; raises what the child raises, and TrialFailure when it hangs or dies."""
        while self._sent:
            self._answer_oldest()
        return self.answer(self.begin(name, *arguments))

    def begin(self, name: str, *arguments: Any) -> Future[Any]:
        """Sends a call, which the child begins when it has answered those before it; `answer` waits for it.

        The future is cancelled if the child ends before it begins the call. Raises TrialFailure if no child is running.
        """
        if self._child is None:
            raise TrialFailure(Outcome.DEVICE_LOST, "the device's process is gone")
        future: Future[Any] = Future()
        call = ForkingPickler.dumps((name, arguments))
        while self._sent and len(call) > _AHEAD_BYTES:
            self._answer_oldest()
        try:
            self._child.connection.send_bytes(call)
        except OSError:
            if self._sent:  # it died in the call before, whose answer tells
                future.cancel()
                return future
            # It died since the last call, which is not the doing of what this one would have run.
            raise self._died(name, Outcome.DEVICE_LOST) from None
        self._sent.append((name, future))
        return future

    def answer(self, future: Future[Any]) -> Any:
        """The answer of a call that was begun; raises what `call` does, and CancelledError where it never ran."""
        while not future.done():
            self._answer_oldest()
        return future.result()

    def _answer_oldest(self) -> None:
        name, future = self._sent.popleft()
        try:
            future.set_result(self._receive(name))
        except (TrialFailure, TunerError) as error:
            future.set_exception(error)

    def _receive(self, name: str) -> Any:
        kind, value = self._hear(name)
        while kind == "step":  # a call of several steps: each has its own deadline
            kind, value = self._hear(name := value)
        if kind in {"done", "broken"}:
            self._losses = 0
            if kind == "broken":
                self._end()
            return value
        if kind == "unexpected":
            self._end()
            raise ChildFailedError(value)
        if isinstance(value, TrialFailure) and value.sticky:
            self._end()
            # For the caller nothing is broken: the next call finds a new context.
            raise TrialFailure(value.outcome, value.log) from value
        raise value

    def _hear(self, name: str) -> ChildMessage:
        child, deadline_s = self._child, self._deadlines.of(name)
        assert child is not None  # noqa: S101 - both callers of _receive have just used it
        try:
            if not child.connection.poll(deadline_s):
                log.warning("%s took longer than %g s: the device's process is killed.", name, deadline_s)
                self._end()
                raise TrialFailure(Outcome.TIMED_OUT, f"{name} took longer than {deadline_s:g} s and was killed")
            message: ChildMessage = child.connection.recv()
        except (EOFError, OSError):
            raise self._died(name, Outcome.LAUNCH_FAILED if name in _LAUNCHES else Outcome.DEVICE_LOST) from None
        return message

    def _died(self, name: str, outcome: Outcome) -> TrialFailure:
        status = None if self._child is None else self._child.join(5.0)
        self._end()
        if status == -signal.SIGKILL and host_memory.kills() > self._kills_before:
            reason = (
                f"this machine or container ran out of memory in {name}, and the kernel killed the device's process"
            )
            if name in {"open", "bench"}:  # which are no trial's
                raise OutOfMemoryError(f"{reason}. Choose a smaller shape, free memory or raise the limit")
            return TrialFailure(Outcome.INTERRUPTED, reason)
        how = signal.Signals(-status).name if status is not None and status < 0 else f"exit status {status}"
        return TrialFailure(outcome, f"the device's process died in {name} ({how})")

    def _end(self) -> None:
        child, self._child = self._child, None
        self._losses += 1
        while self._sent:
            self._sent.pop()[1].cancel()
        try:
            if child is not None:
                child.kill()
        except UnkillableError as error:
            raise DeviceLostError(str(error)) from error

    def _known(self) -> tuple[str, DeviceModel, Environment]:
        assert self._facts is not None  # noqa: S101 - the constructor has them or raises
        return self._facts
