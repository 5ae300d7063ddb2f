"""The share of one caller: requests a minute, requests at a time, refusals that are held back."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import Scope as Request

from tilewright.service.api.middleware.turns import Turns
from tilewright.service.api.server.wire import GONE, HELD
from tilewright.service.errors import TooManyRequestsError

REMEMBERED = 4096
"""Tokens, and callers whose requests are counted, kept in memory; the least recent are forgotten first."""

REFUSALS_PER_MINUTE = 120
"""Answers 429 that a caller gets at once; who goes on all the same waits HELD_S for each on every connection, so that
its refusals cost the others nothing."""

HELD_S, HELD_PER_S = 1.0, 100
"""A caller with more connections than those waits longer: so many of its refusals are sent in a second."""

AT_ONCE = 20
"""Requests of one caller that are answered or wait for their turn, event streams aside. Those for `best` that memory
answers wait for no turn, so that hundreds of connections of a caller may ask them."""

PLACE, TURN = "tilewright.place", "tilewright.turn"
"""Under these names of its scope a request has the caller for whom it counts among those in progress, and among those
that are worked on."""


@dataclass
class Buckets:
    """Requests a minute for each of many callers, half a minute's worth at once; bounded in memory."""

    per_minute: float
    clock: Callable[[], float] = time.monotonic
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)  # tokens and when, by caller

    def wait_s(self, name: str, *, take: bool = True, count: int = 1) -> float:
        """Seconds until the caller may go on; 0 if it may now, which counts if it is to `take`.

        `count`: as how many further requests one counts, but with it never as more than may be sent at once.
        """
        now, most = self.clock(), max(1.0, self.per_minute / 2)
        needed = 1 if count == 1 else min(most - 1, count)
        tokens, when = self._left.pop(name, (most, now))
        tokens = min(most, tokens + max(0.0, now - when) * self.per_minute / 60)
        is_allowed = tokens >= needed
        self._left[name] = (tokens - needed if is_allowed and take else tokens), max(now, when)
        if len(self._left) > REMEMBERED:
            self._left.popitem(last=False)
        return 0.0 if is_allowed else (needed - tokens) * 60 / self.per_minute


class Shares:
    """The requests in progress and the refusals of one process, by caller."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._refusals = Buckets(REFUSALS_PER_MINUTE, clock)
        self._in_progress: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._door, self._turns = Turns(), Turns()

    async def come_in(self, scope: Request, name: str) -> None:
        """Waits until the caller's next request may be looked at: each round takes a few before any work on them."""
        scope[HELD] = name
        await self._door.take(name)
        self._door.give_back(name)
        del scope[HELD]

    def enter(self, scope: Request, name: str) -> None:
        """Counts a request among those in progress until `leave`; raises TooManyRequestsError."""
        if self._in_progress[name] >= AT_ONCE:
            raise self.refusal(name, 1.0, "requests at a time")
        self._in_progress[name] += 1
        scope[PLACE] = name

    async def take_turn(self, scope: Request) -> None:
        """Returns when the request, if it has a place, may be worked on."""
        if PLACE in scope:
            await self._turns.take(scope[PLACE])
            scope[TURN] = scope[PLACE]

    def give_turn_back(self, scope: Request) -> None:
        """The request only waits from now on."""
        name = scope.pop(TURN, None)
        if name is not None:
            self._turns.give_back(name)

    def leave(self, scope: Request) -> None:
        """The request has been answered."""
        self.give_turn_back(scope)
        name = scope.pop(PLACE, None)
        if name is not None:
            _take_one(self._in_progress, name)

    def refusal(self, name: str, wait_s: float, what: str = "requests") -> TooManyRequestsError:
        """The refusal of a caller, held back if it goes on after many of them."""
        error = TooManyRequestsError(math.ceil(wait_s), what)
        error.caller, error.held_s = name, HELD_S if self._refusals.wait_s(name) > 0 else 0.0
        return error

    async def hold(self, scope: Request, error: TooManyRequestsError) -> None:
        """Holds the refusal back as long as its connection lives, which may be closed for another."""
        if not error.held_s:
            return
        name = error.caller
        self._held[name] += 1
        scope[HELD] = name
        scope[GONE] = gone = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((gone,), timeout=max(error.held_s, self._held[name] / HELD_PER_S))
            if not gone.done():
                await self.come_in(scope, name)  # those of hundreds of connections may have come, and end, at once
        finally:
            _take_one(self._held, name)


def _take_one(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
