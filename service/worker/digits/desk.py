"""The two processes that answer drawings: the worker while no job has its device, a job's runner between trials.

Only one process at a time has a GPU open and holds its lock. The worker's desk opens the device for the first drawing,
keeps it for some seconds, and closes it before a job's runner starts.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from tilewright.service.device_lock import KEPT_S, host_lock
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.digits.post import channel_of
from tilewright.service.store.changes import Changes
from tilewright.service.worker.background import Background
from tilewright.service.worker.digits.answers import DigitAnswers
from tilewright.tuner.compile.compiler import default_compiler
from tilewright.tuner.devices.device import Device
from tilewright.tuner.devices.isolated.device import IsolatedDevice
from tilewright.tuner.devices.local import DeviceEntry, DeviceSpec

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
"""How often an idle desk checks whether to close the device; drawings are noticed at once."""
AGAIN_S = 5.0
"""How soon to listen again after the database went away, or to try again where the network did not run."""
TAKEN_S = 0.5
"""How long a drawing waits for a device that another process has: the last runner may be about to end."""


class DigitDesk(Background):
    """Answers for a worker, from `start` (or `with`) to `stop` except between `let_go` and `take_back`."""

    def __init__(self, entry: DeviceEntry) -> None:
        super().__init__("digits", 0.0)  # `stop` waits for the device, not for a thread that only listens
        self._entry = entry
        self._lock = threading.Lock()  # held while the device is used, opened or closed
        self._has_job = False
        self._device: IsolatedDevice | None = None
        self._held = ExitStack()
        self._answers = DigitAnswers(self._open, AGAIN_S)
        self._used_s = 0.0

    def stop(self) -> None:
        """Ends the thread, and closes the device."""
        super().stop()
        self.let_go()

    def let_go(self) -> None:
        """Closes the device after the present drawing; from then on a job's runner answers."""
        with self._lock:
            self._has_job = True
            self._close()

    def take_back(self) -> None:
        """Answers again, after the job has ended."""
        with self._lock:
            self._has_job = False

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                with Changes(channel_of(self._entry.uuid)) as messages:
                    while not self._stopping.is_set():
                        self._turn(messages.wait(LOOK_EVERY_S))
            except DatabaseUnavailableError as error:
                logger.warning("Drawings cannot be received now. %s", error)
                self._stopping.wait(AGAIN_S)

    def _turn(self, received: list[str]) -> None:
        with self._lock:
            if self._has_job:
                return
            if received:
                self._answers.answer(received)
                self._used_s = time.monotonic()
            if self._answers.has_failed or time.monotonic() - self._used_s > KEPT_S:
                self._close()

    def _open(self) -> IsolatedDevice:
        """The device, opened now where it is not yet; raises DeviceBusyError, NoDeviceError."""
        if self._device is None:
            entry, is_gpu = self._entry, self._entry.kind == "cuda"
            spec = DeviceSpec(entry.uuid, default_compiler()) if is_gpu else DeviceSpec("cpu")
            with ExitStack() as held:
                held.enter_context(host_lock(entry.physical_uuid, "measuring", wait_s=TAKEN_S, host_wide=is_gpu))
                self._device = IsolatedDevice(spec)
                held.callback(self._device.close)
                self._held = held.pop_all()
        return self._device

    def _close(self) -> None:
        self._device = None
        self._held.close()


class DigitsGuest:
    """Answers for a runner, whenever `look` is called, on the job's device.

    Where the job's device is in this process (the CPU), drawings get a process of their own, apart from the measuring.
    """

    def __init__(self, device: Device) -> None:
        self._uuid = device.uuid
        self._device = device if isinstance(device, IsolatedDevice) else None
        self._held, self._listening = ExitStack(), ExitStack()
        self._answers = DigitAnswers(self._open, math.inf)  # what broke it once would break the job's context again
        self._messages: Changes | None = None
        self._away_s = -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listening.close()
        self._held.close()

    def look(self) -> None:
        """Answers the drawings that came since the last call. Never raises: a job must not fail because of it."""
        if self._messages is None and time.monotonic() - self._away_s < AGAIN_S:
            return
        try:
            if self._messages is None:
                self._messages = self._listening.enter_context(Changes(channel_of(self._uuid)))
            received = self._messages.wait(0)
        except DatabaseUnavailableError as error:
            logger.warning("Drawings cannot be received now. %s", error)
            self._listening.close()
            self._messages, self._away_s = None, time.monotonic()
            return
        if received:
            self._answers.answer(received)

    def _open(self) -> IsolatedDevice:
        if self._device is None:
            self._device = IsolatedDevice(DeviceSpec("cpu"))
            self._held.callback(self._device.close)
        return self._device
