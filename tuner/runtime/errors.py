"""Errors and warnings of the launcher. After any of these errors nothing has been launched."""

from __future__ import annotations

import inspect
import warnings

from tilewright.tuner.errors import TunerError


class LaunchError(TunerError):
    """The launch was refused; nothing ran."""


class ArgumentError(LaunchError):
    """An argument is not what the problem needs: dtype, shape, strides, alignment, overlap."""

    def __init__(self, argument: str, reason: str, fix: str) -> None:
        self.argument, self.reason, self.fix = argument, reason, fix
        super().__init__(f"{argument}: {reason}. {fix}")


class WrongDeviceError(LaunchError):
    """The arrays are not on the device that the launch is for."""


class ContextError(LaunchError):
    """Memory that was freed, or that belongs to another CUDA context or to one that is gone."""


class ForkedError(LaunchError):
    """The process was forked from one that used CUDA, which cannot be used after a fork."""


class UntunedError(LaunchError):
    """There is no result for this problem on this device, and the runtime is one for tuned problems only."""


class UntunedWarning(UserWarning):
    """There is no result for this problem on this device: the default configuration is used, which may be slow."""


class ServiceWarning(UserWarning):
    """The service did not answer in time, or not with a configuration."""


class BundleWarning(UserWarning):
    """Something in a bundle cannot be used by this version, and is ignored."""


class WrongResultWarning(UserWarning):
    """A configuration that was not verified at its shape was wrong at its first use, and was withdrawn."""


def warn(message: str, category: type[Warning], *, through: tuple[str, ...] = ("tilewright.",)) -> None:
    """Warns at the application's line that led here, past modules whose names begin with one of `through`."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith(through):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
