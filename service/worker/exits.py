"""Why a runner, and sometimes its worker, ended: exit statuses, after sysexits.h where one fits."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What the worker reads from its runner's exit status; any other is a crash."""

    ENDED = 0  # the job's row says how
    NO_DATABASE = 69  # away for longer than a runner waits
    DEVICE_LOST = 71  # it stopped answering twice in a row
    FENCED = 75  # another worker has the job
    STOPPED = 76  # asked by SIGTERM: the job is to be handed back
