"""The job engine, which carries job ids to workers. Our own rows decide who may write to a job."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import procrastinate
import psycopg
from procrastinate import JobContext, RetryDecision
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import DeleteJobCondition, Job

from tilewright.service.settings import settings
from tilewright.service.store.engine_queue import TUNE, enqueue
from tilewright.service.store.patience import PATIENCE_S
from tilewright.service.store.session import KEEPALIVE
from tilewright.service.worker.silence import forgotten_after_s

__all__ = ["Handler", "TryAgainError", "enqueue", "make_app"]

logger = logging.getLogger(__name__)

Handler = Callable[[uuid.UUID, int], Awaitable[None]]
"""Runs one job: its id, and the id of the engine's entry."""

RETRY_AFTER_S = 2
POLL_S = 0.1
"""How soon a job starts on an idle worker; a busy one does not poll. A poll takes some tenths of a millisecond."""
POLLS_PER_SECOND = 200
"""Polls a second of a whole idle fleet, which alone must not occupy PostgreSQL: more workers poll less often each."""
RECONNECT_S = 0.5
DUE = datetime(2000, 1, 1, tzinfo=UTC)
"""The due time of an entry that goes back to its queue, always in the past: the engine compares it with the database's
clock, and a worker's clock may be an hour ahead."""


class TryAgainError(Exception):
    """The job goes back to the queue: handed back, or its runner died."""

    def __init__(self, reason: str, wait_s: int = 0) -> None:
        self.wait_s = wait_s
        super().__init__(reason)


class _AlwaysAgain(procrastinate.BaseRetryStrategy):
    """Tries again after every failure: our row counts them, and an entry whose job has ended does nothing."""

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:  # noqa: ARG002
        return RetryDecision(retry_at=DUE)


class _PatientConnector(procrastinate.PsycopgConnector):
    """Waits with heartbeats and ends of jobs while the database restarts, so that a running job survives it.

    Fetching does not wait: an entry given out by an answer that was lost would stay with a worker that did not get it.
    """

    async def execute_query_async(self, query: Any, **arguments: Any) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                await super().execute_query_async(query, **arguments)
            except ConnectorException as error:
                if isinstance(error.__cause__, psycopg.errors.RaiseException):
                    # Given to another worker while this host hung, or ended by an attempt whose answer was lost.
                    logger.warning("An entry of the engine had ended already: %s", error.__cause__.diag.message_primary)
                    return
                if not isinstance(error.__cause__, psycopg.OperationalError) or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RECONNECT_S)
            else:
                return


def poll_s(workers: int) -> float:
    """The seconds between looks for a job by each of so many workers."""
    return max(POLL_S, workers / POLLS_PER_SECOND)


def make_app(url: str, handler: Handler, workers: int = 1) -> procrastinate.App:
    """The engine's application whose one task hands every job to `handler`, in a fleet of so many workers."""
    allowed = settings()
    app = procrastinate.App(
        connector=_PatientConnector(conninfo=url, min_size=1, max_size=3, timeout=10.0, kwargs=dict(KEEPALIVE)),
        worker_defaults={
            "concurrency": 1,  # one measurement at a time on a device
            "fetch_job_polling_interval": poll_s(workers),
            # Listening would end the worker, and with it the running job, whenever its connection breaks.
            "listen_notify": False,
            "install_signal_handlers": False,
            "update_heartbeat_interval": allowed.heartbeat_s,
            "stalled_worker_timeout": forgotten_after_s(),
            "shutdown_graceful_timeout": allowed.stop_grace_s + 5,
            "delete_jobs": DeleteJobCondition.ALWAYS.value,  # our row is the record
        },
    )

    @app.task(name=TUNE, pass_context=True, retry=_AlwaysAgain())
    async def tune(context: JobContext, job_id: str) -> None:
        assert context.job.id is not None  # noqa: S101 - a fetched entry has an id
        try:
            await handler(uuid.UUID(job_id), context.job.id)
        except TryAgainError as error:
            await asyncio.sleep(error.wait_s)
            raise
        except Exception:
            await asyncio.sleep(RETRY_AFTER_S)
            raise

    return app
