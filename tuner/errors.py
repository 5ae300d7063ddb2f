"""The errors of a tuning run. A failed trial is a value (`outcome.Evaluation`), not an error."""

from __future__ import annotations

from tilewright.tuner.outcome import Outcome


class TunerError(Exception):
    """The tuning run cannot go on."""


class NoDeviceError(TunerError):
    """There is no such device on this machine."""


class NoCompilerError(TunerError):
    """No compiler that makes code for this device was found."""


class OutOfMemoryError(TunerError):
    """The problem's arrays do not fit the device's memory."""


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
