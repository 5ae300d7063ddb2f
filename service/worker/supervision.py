"""Supervises one job: takes its epoch, runs its child process, and acts on how that ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from sqlalchemy.orm import Session

from tilewright.service import logs
from tilewright.service.errors import DatabaseUnavailableError, FencedError
from tilewright.service.operations import registry
from tilewright.service.operations.fleet import fleet
from tilewright.service.operations.jobs import jobs
from tilewright.service.operations.jobs import progress as job_progress
from tilewright.service.settings import settings
from tilewright.service.store.models import DeviceState, JobState
from tilewright.service.store.patience import patiently
from tilewright.service.store.session import session_scope
from tilewright.service.worker.ending import Exit
from tilewright.service.worker.engine import RETRY_AFTER_S, TryAgainError
from tilewright.service.worker.intake import Intake
from tilewright.tuner import remains
from tilewright.tuner.devices import host_memory

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_EVERY_S, KILL_LOOK_S = 0.5, 0.05
LAST_LINES = 12
"""Lines of a crashed runner's log that become the job's error."""
NO_MEMORY = (
    "The kernel killed the job's process because this machine or container ran out of memory. The job is not tried "
    "again, because it would take as much; its trials are kept. Choose a smaller shape or provide more memory."
)
LONGEST_LINE = 1 << 20
"""Longest line that is kept whole: the runner writes shorter ones, a compiler that it calls may not."""


class Supervision:
    """Runs jobs one after the other, each in a child process that dies with this one."""

    def __init__(self, device_name: str, device_uuid: str, worker: str, intake: Intake) -> None:
        self.device_name, self.device_uuid, self.worker, self.intake = device_name, device_uuid, worker, intake
        self.idle = asyncio.Event()  # no job is under way here
        self.idle.set()

    async def run(self, job_id: uuid.UUID, engine_id: int) -> None:
        """Runs the job to its end; raises TryAgainError where it must go back to the queue.

        If another worker has taken the job meanwhile, this process ends: after a return the engine would record the end
        of an entry that is no longer ours.
        """
        if not self.intake.takes_jobs:
            raise TryAgainError("this worker takes no more jobs")
        self.idle.clear()
        try:
            await self._run(job_id, engine_id)
        finally:
            self.idle.set()

    async def _run(self, job_id: uuid.UUID, engine_id: int) -> None:
        takes_jobs, epoch = await _in_thread(partial(self._take, job_id, engine_id))
        if not takes_jobs:
            self.intake.follow(takes_jobs=False)
            raise TryAgainError("this device is drained")
        if epoch is None:
            return
        logs.speak_of(lambda: {"job": job_id})
        runner = _Runner(job_id, epoch, self.device_name)
        await runner.start()
        try:
            requested = await self._watch(runner)
        except asyncio.CancelledError:
            await runner.kill()
            raise
        await self._settle(runner, requested)

    def _take(self, job_id: uuid.UUID, engine_id: int, session: Session) -> tuple[bool, int | None]:
        """Whether the device takes jobs by its row, which may be newer than the last heartbeat; the new epoch."""
        if not fleet.takes_jobs(session, self.device_uuid):
            return False, None
        return True, job_progress.take_job(session, job_id, engine_id, self.worker)

    async def _watch(self, runner: _Runner) -> JobState | None:
        """The state for which this worker stopped the runner: CANCELLED, QUEUED, FAILED where it was far beyond its
        seconds, or None if it ended by itself.
        """
        requested: JobState | None = None
        asked_s, most_s, begun_s = 0.0, await asyncio.to_thread(_most_seconds, runner.job_id), time.monotonic()
        while not await runner.ended(LOOK_EVERY_S):
            if requested is None:
                if self.intake.stopping.is_set():
                    requested = JobState.QUEUED
                elif await asyncio.to_thread(_is_cancelled, runner.job_id):
                    requested = JobState.CANCELLED
                elif time.monotonic() - begun_s > most_s:
                    logger.warning("Job %s has not ended %.0f s after it began; it is stopped.", runner.job_id, most_s)
                    requested = JobState.FAILED
                else:
                    continue
                asked_s = time.monotonic()
                runner.ask_to_stop()
            elif time.monotonic() - asked_s > settings().stop_grace_s:
                logger.warning("Job %s does not stop; its runner is killed.", runner.job_id)
                await runner.kill()
        return requested

    async def _settle(self, runner: _Runner, requested: JobState | None) -> None:
        job_id, epoch, status = runner.job_id, runner.epoch, runner.status
        await runner.end_remains()
        if status == Exit.ENDED:
            return
        if status == Exit.FENCED:
            logger.warning("Job %s was taken over by another worker; this one starts afresh.", job_id)
            os._exit(Exit.FENCED)
        try:
            if requested is JobState.CANCELLED:
                await _in_thread(lambda session: job_progress.end_job(session, job_id, epoch, JobState.CANCELLED))
                return
            if requested is JobState.FAILED:
                await _in_thread(partial(_fail_overdue, job_id, epoch))
                return
            if status == Exit.DEVICE_LOST:
                await self._lose_device()
                device = self.device_uuid
                if await _in_thread(lambda session: job_progress.note_lost_device(session, job_id, epoch, device)):
                    raise TryAgainError("its device was lost")
                return
            if requested is JobState.QUEUED or status == Exit.STOPPED:
                await _in_thread(lambda session: job_progress.hand_back(session, job_id, epoch))
                raise TryAgainError("handed back")
            await self._note_crash(runner)
        except FencedError:
            row_epoch, state = await _in_thread(partial(_epoch_and_state, job_id))
            if row_epoch == epoch and state not in jobs.OPEN:
                return  # it ended between the runner's last write and its exit
            os._exit(Exit.FENCED)

    async def _note_crash(self, runner: _Runner) -> None:
        """Records and logs that the runner crashed; raises TryAgainError if the job is tried again, or FencedError."""
        job_id, epoch, reason, repeat = runner.job_id, runner.epoch, runner.crash_report(), not runner.lacked_memory
        logger.warning("The process of job %s crashed. %s", job_id, reason.splitlines()[0])  # its own lines came before
        if await _in_thread(lambda session: job_progress.note_crash(session, job_id, epoch, reason, repeat=repeat)):
            logger.warning("Job %s is tried again in %d s.", job_id, RETRY_AFTER_S)
            raise TryAgainError(reason, RETRY_AFTER_S)
        logger.warning("Job %s has failed and is not tried again.", job_id)

    async def _lose_device(self) -> None:
        logger.error("The device %s is lost; it gets no more jobs.", self.device_name)
        self.intake.device_lost.set()
        lost = DeviceState.LOST
        await _in_thread(lambda session: registry.set_device_state(session, self.device_uuid, lost))


class _Runner:
    """The child process of one job."""

    def __init__(self, job_id: uuid.UUID, epoch: int, device_name: str) -> None:
        self.job_id, self.epoch, self.device_name = job_id, epoch, device_name
        self._process: asyncio.subprocess.Process | None = None
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._reader: asyncio.Task[None] | None = None
        self._kills_before = host_memory.kills()

    @property
    def lacked_memory(self) -> bool:
        """Whether SIGKILL ended it and the kernel has killed for lack of memory since it was started."""
        return self.status == -signal.SIGKILL and host_memory.kills() > self._kills_before

    @property
    def status(self) -> int | None:
        """The exit status of the job's process, negative for a signal; None while it runs."""
        return self._process.returncode if self._process else None

    async def start(self) -> None:
        """Starts the job's process."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "tilewright.service.worker.job_process",
            str(self.job_id),
            str(self.epoch),
            self.device_name,
            str(os.getpid()),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        self._reader = asyncio.create_task(self._listen())

    async def ended(self, wait_s: float) -> bool:
        """Waits up to `wait_s` for the child's end; tells whether it has ended."""
        assert self._process is not None  # noqa: S101 - started
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), wait_s)
        return self._process.returncode is not None

    def ask_to_stop(self) -> None:
        """Asks it to end after the running trial."""
        self._signal(signal.SIGTERM)

    async def kill(self) -> None:
        """Kills the job's process at once."""
        self._signal(signal.SIGKILL)
        # `wait()` alone would also wait for others that hold the pipe: a compiler that hangs, a stuck device process.
        while not await self.ended(KILL_LOOK_S):
            pass

    async def end_remains(self) -> None:
        """Kills processes that its trials left behind, such as the daemon of a compiler's wrapper."""
        assert self._process is not None  # noqa: S101 - started
        left = await asyncio.to_thread(remains.end_all_of, self._process.pid)
        if left:
            logger.info("Job %s left %d processes behind, which were killed.", self.job_id, len(left))

    def crash_report(self) -> str:
        """A sentence on how the child ended, and the last lines of its log."""
        if self.lacked_memory:
            return NO_MEMORY
        status = self.status or 0
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return "\n".join([f"The runner ended with {how}.", *self._last_lines])

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _listen(self) -> None:
        assert self._process is not None and self._process.stderr is not None  # noqa: S101, PT018 - it is a pipe
        partial_line = b""  # a line comes in pieces, and must reach the log whole: this process writes there too
        while chunk := await self._process.stderr.read(4096):
            *lines, partial_line = (partial_line + chunk).split(b"\n")
            self._hear(lines)
            if len(partial_line) > LONGEST_LINE:
                self._hear([partial_line])
                partial_line = b""
        self._hear([partial_line])

    def _hear(self, lines: list[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace").replace("\0", "")
            if text.strip():
                logs.pass_on(text)
                self._last_lines.extend(plain for plain in logs.plain(text).splitlines() if plain.strip())


async def _in_thread(work: Callable[[Session], T]) -> T:
    return await asyncio.to_thread(patiently, work)


def _is_cancelled(job_id: uuid.UUID) -> bool:
    try:
        with session_scope() as session:
            return jobs.job(session, job_id).cancel_requested
    except DatabaseUnavailableError:
        return False  # the runner waits for the database too; asked again in a moment


def _most_seconds(job_id: uuid.UUID) -> float:
    """The longest time for the job's process: its seconds, or else the most for any job, and the overrun."""
    budget_s = patiently(lambda session: jobs.job_at_revision(session, job_id)[1].budget_seconds)
    return (budget_s or settings().max_seconds) + settings().overrun_s


def _fail_overdue(job_id: uuid.UUID, epoch: int, session: Session) -> None:
    reason = (
        f"The job had not ended {settings().overrun_s:g} s after its seconds were over, and was stopped. Its trials "
        "are kept. Something of a trial hangs: the worker's log says what was stopped"
    )
    job_progress.end_job(session, job_id, epoch, JobState.FAILED, error=reason)


def _epoch_and_state(job_id: uuid.UUID, session: Session) -> tuple[int, JobState]:
    _, row = jobs.job_at_revision(session, job_id)
    return row.epoch, row.state
