"""Ends a runner's job, also one whose time is up in its preparation, and its process, with an exit status."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from enum import IntEnum
from types import TracebackType
from typing import NoReturn, Self

from sqlalchemy.orm import Session

from tilewright.service.errors import DatabaseUnavailableError, FencedError
from tilewright.service.operations.best.publish import job_result
from tilewright.service.operations.jobs import progress as job_progress
from tilewright.service.store import models
from tilewright.service.store.models import JobState
from tilewright.service.store.patience import patiently
from tilewright.service.store.session import engine
from tilewright.tuner.loop.study import TuneResult

logger = logging.getLogger(__name__)

_NOTHING_TRIED = TuneResult(None, (), None, None, None, "seconds")


def end(job_id: uuid.UUID, epoch: int, write: Callable[[Session], object]) -> None:
    """Writes the end of the job; raises FencedError. A write whose commit was not confirmed counts if it is there."""
    try:
        patiently(write)
    except FencedError:
        row = patiently(lambda session: session.get_one(models.TuningJob, job_id))
        if row.epoch != epoch or row.finished_at is None:
            raise


def leave(status: int) -> NoReturn:
    """Ends the process at once; the interpreter's own way takes a quarter of a second, for which the next job waits."""
    engine().dispose()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class Preparation:
    """Limits the time before a job's first trial by the job's seconds; job and process end when they are used up.

    A float64 reference is one call into NumPy that nothing interrupts, so a thread keeps the time. A job that has made
    trials in another process is exempt, because it shall have its finals.
    """

    def __init__(self, job: models.TuningJob, epoch: int) -> None:
        self.begun_s = time.monotonic()
        self._job_id, self._epoch = job.id, epoch
        limited = job.budget_seconds is not None and not job.trials_done
        self._timer = threading.Timer(job.budget_seconds or 0.0, self._give_up) if limited else None

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_over()

    def is_over(self) -> None:
        """Stops the clock before the first trial; does not return if the time was over before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()

    def _give_up(self) -> None:
        result = job_result(_NOTHING_TRIED)

        def write(session: Session) -> None:
            job_progress.end_job(session, self._job_id, self._epoch, JobState.DONE, result=result)

        logger.warning("The job's seconds were over before its first trial.")
        status = Exit.ENDED
        try:
            end(self._job_id, self._epoch, write)
        except FencedError:
            status = Exit.FENCED
        except DatabaseUnavailableError:
            status = Exit.NO_DATABASE
        leave(status)


_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent_pid: int) -> None:
    """Has the system kill this process once the parent has ended in any way; at once if it already has.

    The signal is bound to the thread that started this process: the parent must start it in its main thread.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


class Exit(IntEnum):
    """A runner's exit status as its worker reads it; any other is a crash."""

    ENDED = 0  # the job's row says how
    NO_DATABASE = 69  # away for longer than a runner waits
    DEVICE_LOST = 71  # it stopped answering twice in a row
    FENCED = 75  # another worker has the job
    STOPPED = 76  # by SIGTERM: the worker hands the job back
