"""Exit statuses of a runner, and sometimes of its worker; from sysexits.h where one fits."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """A runner's exit status as its worker reads it; any other is a crash."""

    ENDED = 0  # the job's row says how
    NO_DATABASE = 69  # away for longer than a runner waits
    DEVICE_LOST = 71  # it stopped answering twice in a row
    FENCED = 75  # another worker has the job
    STOPPED = 76  # by SIGTERM: the worker hands the job back
