"""The order of requests: callers take turns, and only a few requests of each are worked on at a time."""

from __future__ import annotations

import asyncio
from collections import Counter, deque

WORKING = 3
"""Requests of one caller that are worked on at a time; more threads of one would keep the others' from the interpreter.
What only waits, for a prediction say, has given its turn back."""


A_ROUND = 4
"""Requests of one caller that begin in a round: with one, the rounds would cost a tenth of what answers cost."""


class Turns:
    """One event loop's order of work.

    In each of its rounds at most A_ROUND requests of a caller begin. One that is refused without a wait, such as for a
    wrong id, takes a millisecond: hundreds that have come at once would keep everybody else waiting until the last.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._working: Counter[str] = Counter()
        self._begun: Counter[str] = Counter()  # in this round
        self._is_round_due = False

    async def take(self, name: str) -> None:
        """Returns when it is the turn of the caller's next request, which is to `give_back` it."""
        if name in self._waiting or not self._may_begin(name):
            await self._wait(name)
        else:
            self._begin(name)

    def give_back(self, name: str) -> None:
        """A request of the caller has been answered, or only waits."""
        self._working[name] -= 1
        if not self._working[name]:
            del self._working[name]
        if name in self._waiting:
            self._call_round()

    async def _wait(self, name: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, deque()).append(turn)
        self._call_round()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(name)
            raise

    def _may_begin(self, name: str) -> bool:
        return self._begun[name] < A_ROUND and self._working[name] < WORKING

    def _begin(self, name: str) -> None:
        self._working[name] += 1
        self._begun[name] += 1
        self._call_round()

    def _call_round(self) -> None:
        if not self._is_round_due:
            self._is_round_due = True
            asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        self._is_round_due = False
        self._begun.clear()
        for name, turns in list(self._waiting.items()):
            while turns and self._may_begin(name):
                turn = turns.popleft()
                if not turn.done():  # its caller may have left
                    turn.set_result(None)
                    self._begin(name)
            if not turns:
                del self._waiting[name]
