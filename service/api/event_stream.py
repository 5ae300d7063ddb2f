"""A job's events as a stream; a reader holds neither a thread nor a database connection."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import cached_property
from uuid import UUID

from anyio import CapacityLimiter, to_thread
from fastapi import Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tilewright.service.api.refusals import TooManyStreamsError
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.caller import THIS_MACHINE, Caller
from tilewright.service.operations.jobs.events import JobEvent, events_after
from tilewright.service.operations.jobs.jobs import job
from tilewright.service.operations.transaction import committed, transaction

MEDIA_TYPE = "text/event-stream"
MAX_STREAMS = 100
OF_ONE_CALLER = 25
"""Streams that one key, or one address without a key, may have open: a single caller must not shut out the others."""

POLL_SECONDS = 0.25
LOOK_UP_SECONDS = 0.5
"""How often the reader's key or session is checked: a stream ends within a second of its key."""

KEEP_ALIVE_SECONDS = 15.0
"""Proxies and clients take silence of a minute for a broken connection."""

FINISHED = frozenset({"done", "failed", "cancelled"})
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class _StreamingResponse(StreamingResponse):
    """Gives its place back at the end, even if the reader left before the first byte."""

    def __init__(self, stream: AsyncIterator[str], give_back: Callable[[], None]) -> None:
        super().__init__(stream, media_type=MEDIA_TYPE, headers=_HEADERS)
        self._give_back = give_back

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The response, to its end."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._give_back()


class _Place:
    """A taken place among the streams; giving it back twice does no harm."""

    def __init__(self, taken: list[_Place], name: str) -> None:
        self._taken, self.name = taken, name
        taken.append(self)

    @property
    def is_lost(self) -> bool:
        """Whether it was given back, or given to another caller."""
        return self not in self._taken

    def give_back(self) -> None:
        """Makes room for another stream."""
        if not self.is_lost:
            self._taken.remove(self)


class Streams:
    """The open event streams of one application."""

    def __init__(self, max_streams: int = MAX_STREAMS, poll_s: float = POLL_SECONDS) -> None:
        self._max_streams, self._poll_s = max_streams, poll_s
        self._taken: list[_Place] = []

    @cached_property
    def _readers(self) -> CapacityLimiter:
        # Apart from the threads that serve requests, so that many streams cannot starve those.
        return CapacityLimiter(4)

    async def follow(
        self,
        job_id: UUID,
        after: int,
        caller: Caller = THIS_MACHINE,
        is_still_let_in: Callable[[], bool] = lambda: True,
    ) -> Response:
        """The stream, or 204 if no event can follow; raises NotFoundError, TooManyStreamsError.

        It ends when `is_still_let_in`, which may query the database, returns False.
        """
        counts = Counter(place.name for place in self._taken)
        if caller is not THIS_MACHINE and counts[caller.name] >= OF_ONE_CALLER:
            raise TooManyStreamsError(
                f"{caller.name} has {OF_ONE_CALLER} event streams open, the most that one caller may have."
            )
        if len(self._taken) >= self._max_streams:
            self._make_room(counts, caller.name)
        place = _Place(self._taken, caller.name)  # before anything is waited for: others ask meanwhile
        is_followed = False
        try:
            events, is_over = await to_thread.run_sync(_first, job_id, after, limiter=self._readers)
            is_followed = bool(events) or not is_over
        finally:
            if not is_followed:
                place.give_back()
        if not is_followed:
            return Response(status_code=204)
        return _StreamingResponse(self._stream(job_id, after, events, place, is_still_let_in), place.give_back)

    def _make_room(self, counts: Counter[str], name: str) -> None:
        """Ends the newest stream of the caller who has most, where that is two more than this one has; else raises."""
        ((largest, most),) = counts.most_common(1)
        if most < counts[name] + 2:
            raise TooManyStreamsError(f"{self._max_streams} event streams are open, the most that this process allows.")
        next(place for place in reversed(self._taken) if place.name == largest).give_back()

    async def _stream(
        self, job_id: UUID, after: int, events: list[JobEvent], place: _Place, is_still_let_in: Callable[[], bool]
    ) -> AsyncIterator[str]:
        clock = asyncio.get_running_loop().time
        try:
            spoke_at = looked_up_at = clock()
            yield "retry: 1000\n\n"
            while True:
                for event in events:
                    yield _encode(event)
                    after, spoke_at = event.id, clock()
                    if event.is_last:
                        return
                if clock() - spoke_at > KEEP_ALIVE_SECONDS:
                    yield ": still there\n\n"
                    spoke_at = clock()
                await asyncio.sleep(self._poll_s)
                if place.is_lost:
                    return  # to a caller with fewer streams
                if clock() - looked_up_at > LOOK_UP_SECONDS:
                    if not await to_thread.run_sync(is_still_let_in, limiter=self._readers):
                        return  # the reader connects again, and is told why it may not
                    looked_up_at = clock()
                events = await to_thread.run_sync(_next, job_id, after, limiter=self._readers)
        except DatabaseUnavailableError:
            return  # the reader connects again after its last event, and is told then
        finally:
            place.give_back()


def _first(job_id: UUID, after: int) -> tuple[list[JobEvent], bool]:
    with transaction() as session:
        is_over = job(session, job_id).state in FINISHED
        return events_after(session, job_id, after), is_over


def _next(job_id: UUID, after: int) -> list[JobEvent]:
    return committed(events_after)(job_id, after)


def _encode(event: JobEvent) -> str:
    return f"id: {event.id}\nevent: {event.event}\ndata: {json.dumps(event.data, separators=(',', ':'))}\n\n"
