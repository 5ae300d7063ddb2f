"""Whether a worker takes jobs: it may be asked to end, or to pause until it is resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress


class Intake:
    """The requests of operators to a worker, by signal (`stopping`, `leaving`) or by command (`paused`)."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()  # hand the running job back, then end
        self.leaving = asyncio.Event()  # end the running job first
        self.paused = asyncio.Event()
        self.resumed = asyncio.Event()
        self.resumed.set()
        self.device_lost = asyncio.Event()

    @property
    def takes_jobs(self) -> bool:
        """Whether a job may be started now."""
        return not any(event.is_set() for event in (self.stopping, self.leaving, self.paused, self.device_lost))

    @property
    def is_ending(self) -> bool:
        """Whether the worker ends as soon as it has nothing to do."""
        return self.stopping.is_set() or self.leaving.is_set()

    def follow(self, *, takes_jobs: bool) -> None:
        """Pauses or resumes according to the device's row."""
        before, after = (self.paused, self.resumed) if takes_jobs else (self.resumed, self.paused)
        before.clear()
        after.set()


async def first_of(*awaitables: Awaitable[object]) -> None:
    """Returns when one of the tasks is done, after cancelling the others."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
