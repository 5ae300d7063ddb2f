"""The errors of a tuning run. A failed trial is a value (`outcome.Evaluation`), not an error."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from tilewright.tuner.outcome import Outcome

_ERROR = re.compile(r"(?:^|[\s:)])(?:fatal |internal |ptxas |nvlink )?(?:error|fatal)\b", re.IGNORECASE)
"""An error's line of g++, clang, NVRTC, nvcc, ptxas or Python; not `note: in a call of on_error`."""


def first_error(log: str) -> str:
    """The first line of a log that reports an error, else its first line; "" where the log is empty."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if _ERROR.search(line)), lines[0] if lines else "")


class TunerError(Exception):
    """The tuning run cannot go on."""


class NoDeviceError(TunerError):
    """There is no such device on this machine."""


class NoCompilerError(TunerError):
    """No compiler that makes code for this device was found."""


class OwnFunctionError(TunerError):
    """A function that a kernel declares, such as its inputs or its check, raised or returned what it must not."""

    def __init__(self, kernel: str, function: str, reason: str) -> None:
        super().__init__(kernel, function, reason)
        self.kernel, self.function, self.reason = kernel, function, reason

    def __str__(self) -> str:
        return f"`{self.function}` of the kernel {self.kernel}: {self.reason}"


@contextlib.contextmanager
def declared(kernel: str, function: str) -> Iterator[None]:
    """Runs a function of the kernel's author, of which nobody knows what it raises: that becomes OwnFunctionError."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise OwnFunctionError(kernel, function, f"it raised {type(error).__name__}: {error}") from error


class OutOfMemoryError(TunerError):
    """The problem's arrays do not fit the device's memory."""


class SurroundingsError(TunerError):
    """Memory, disk or processor time of this machine are lacking, trial after trial."""


class DeviceLostError(TunerError):
    """The device stopped answering twice in a row; somebody should look at it."""


class TrialFailure(Exception):  # noqa: N818 - it names what happened to a trial, and becomes a value at once
    """One configuration failed in an expected way; `measure.evaluate_here` turns it into a recorded value.

    `sticky` says that the device's context is unusable from here on and must be made anew.
    """

    def __init__(self, outcome: Outcome, log: str, *, sticky: bool = False) -> None:
        super().__init__(outcome, log)
        self.outcome, self.log, self.sticky = outcome, log, sticky

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.outcome, self.log, self.sticky)


def _rebuild(outcome: Outcome, log: str, sticky: bool) -> TrialFailure:
    return TrialFailure(outcome, log, sticky=sticky)
