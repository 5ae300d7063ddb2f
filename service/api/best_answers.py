"""Answers of `best` for requests: from memory, by a look-up, else computed by the pool while the caller waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping, Sequence

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from tilewright.kernels.problem import Problem
from tilewright.service.api.middleware.access import charge_for_work
from tilewright.service.errors import BusyError, CallerLeftError
from tilewright.service.operations.answers import BestAnswer, Match
from tilewright.service.operations.best.find import Asked, find_in
from tilewright.service.operations.best.rows import EnvironmentFilter
from tilewright.service.operations.best.source import Effort
from tilewright.service.operations.best_cache.memory import BestMemory, ShelfState
from tilewright.service.operations.best_cache.shelf import CachedAnswer
from tilewright.service.operations.best_pool.pool import BestPool, Work
from tilewright.service.operations.best_pool.process import Made, Reply, Slice

WAIT_S = 3.5
"""How long a request waits for predictions. What is not made by then is answered without, in the rest of 5 s."""

AT_ONCE = 50
"""Shapes that are answered without a prediction at a time, before others have their turn."""

PREDICTION_COST = 2
"""The requests that a shape counts for whose answer is not known: some 50 ms of a core."""


async def answered(request: Request, asked: Asked) -> list[CachedAnswer]:
    """The answer for each of the problems, in order; a pending one where its prediction takes longer than WAIT_S.

    Raises BusyError where the pool is full, CallerLeftError once nobody waits any more, and like `find_best`.
    Applications have it as `state.answered`, for pages.
    """
    memory: BestMemory = request.app.state.best
    is_plain, slug = asked.environment == EnvironmentFilter(), asked.device_model
    found: dict[str, CachedAnswer] = {}
    if is_plain:
        known = ((p.hash, memory.find_of(asked.kernel.name, slug, p)) for p in asked.problems)
        found = {hashed: answer for hashed, answer in known if answer is not None}
    state = memory.state_of(asked.kernel.name, slug) if is_plain else None
    left = _missing(asked, found)
    simple = [p for p in left if not (is_plain and memory.is_predictable(asked.kernel.name, slug, p))]
    if simple:
        looked_up = await run_in_threadpool(_looked_up, asked, simple, Effort.LOOK_UP)
        for problem in simple:
            if state is not None and problem.hash in looked_up:
                state.keep(problem, looked_up[problem.hash])
        found |= looked_up
        left = _missing(asked, found)
    if left:
        charge_for_work(request.scope, PREDICTION_COST * len(left))
        found |= await _Computation(request, asked, left, state).answers()
        left = _missing(asked, found)
    if left:
        found |= await run_in_threadpool(_looked_up, asked, left, Effort.MEANWHILE)
    if _missing(asked, found):
        raise BusyError("No configuration could be found for all of the shapes in time; try again in some seconds.")
    return [found[problem.hash] for problem in asked.problems]


def slice_of(asked: Asked, problems: Sequence[Problem]) -> Slice:
    """The question for some of the problems, as the pool takes it."""
    first = problems[0]
    environment = asked.environment
    return Slice(
        asked.kernel.name,
        asked.device_model,
        first.dtype,
        first.option_items,
        environment.driver,
        environment.toolkit,
        tuple(problem.stated_shape for problem in problems),
        0.0,
    )


def cached(problem: Problem, slug: str, made: Made) -> CachedAnswer:
    """What a process of the pool has made for the problem."""
    return CachedAnswer(Match(made.match), problem, slug, made.expected_loss, made.as_json, made.shipped)


def keep(state: ShelfState | None, problems: Sequence[Problem], reply: Reply) -> None:
    """Keeps in memory what was made for these problems, by their places."""
    for place, made in reply.items():
        if state is not None:
            problem = problems[place]
            state.keep(problem, str(made) if isinstance(made, Exception) else cached(problem, state.shelf.slug, made))


def _missing(asked: Asked, found: Collection[str]) -> list[Problem]:
    return list({problem.hash: problem for problem in asked.problems if problem.hash not in found}.values())


def _looked_up(asked: Asked, problems: Sequence[Problem], effort: Effort) -> Mapping[str, CachedAnswer]:
    rows = asked.rows(effort=effort)
    found: dict[str, BestAnswer] = {}
    for start in range(0, len(problems), AT_ONCE) if effort is Effort.MEANWHILE else (0,):
        found |= find_in(rows, problems[start : start + AT_ONCE] if effort is Effort.MEANWHILE else problems)
    return {
        p.hash: CachedAnswer.of(
            p, asked.device_model, answer.model_copy(update={"pending": True}) if p in rows.pending else answer
        )
        for p in problems
        if (answer := found.get(p.hash)) is not None
    }


class _Computation:
    """Problems that the pool answers for one request."""

    def __init__(self, request: Request, asked: Asked, problems: Sequence[Problem], state: ShelfState | None) -> None:
        self._request, self._asked, self._problems, self._state = request, asked, problems, state
        self._pool: BestPool = request.app.state.pool
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        self._made: Reply = {}
        self._lock = threading.Lock()

    async def answers(self) -> dict[str, CachedAnswer]:
        """Those that are made in time, by problem hash; the others go on being computed, behind all that is urgent."""
        caller = self._request.scope.get("tilewright.caller")
        work = self._pool.ask(slice_of(self._asked, self._problems), caller.name if caller else "nobody", self._told)
        if not await self._wait(work):
            work.end()
            raise CallerLeftError
        problems, state = self._problems, self._state
        self._pool.leave(work, lambda reply: keep(state, problems, reply))
        with self._lock:
            made = dict(self._made)
        if work.error is not None and not made:
            raise work.error
        found = {}
        for place, one in made.items():
            if isinstance(one, Exception):
                raise one
            problem = problems[place]
            found[problem.hash] = cached(problem, self._asked.device_model, one)
        return found

    def _told(self, reply: Reply) -> None:
        """Takes answers, in a thread of the pool."""
        with self._lock:
            self._made |= reply
        keep(self._state, self._problems, reply)
        self._loop.call_soon_threadsafe(self._news.set)

    async def _wait(self, work: Work) -> bool:
        """Until all is made or time is up; False once the caller has left."""
        until = self._loop.time() + WAIT_S
        gone = asyncio.ensure_future(_gone(self._request))
        try:
            while not work.is_done and (left_s := until - self._loop.time()) > 0:
                news = asyncio.ensure_future(self._news.wait())
                await asyncio.wait({news, gone}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                self._news.clear()
                if gone.done():
                    return False
            return True
        finally:
            gone.cancel()


async def _gone(request: Request) -> None:
    """Returns when the caller has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
