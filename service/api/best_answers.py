"""Answers of `best` for requests: from memory, by a look-up, else computed by the pool while the caller waits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Collection, Sequence

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from tilewright.kernels.problem import Problem
from tilewright.service.api.middleware.access import charge_for_work, give_turn_back, take_turn
from tilewright.service.errors import BusyError, CallerLeftError
from tilewright.service.operations.answers import Match
from tilewright.service.operations.best.find import Asked, find_in
from tilewright.service.operations.best.rows import EnvironmentFilter
from tilewright.service.operations.best.source import Effort
from tilewright.service.operations.best_cache.memory import BestMemory, ShelfState
from tilewright.service.operations.best_cache.shelf import CachedAnswer
from tilewright.service.operations.best_pool.pool import BestPool, Work
from tilewright.service.operations.best_pool.process import Answers, Made, Slice

WAIT_S = 4.0
"""How long a request waits for predictions, of 5 s in which it has its answer."""

MEANWHILE_AFTER_S = 0.5
"""After this time without all predictions the farthest shapes are answered without, beside the predictions."""

AT_ONCE = 100
"""Shapes that are answered without a prediction at a time."""

PREDICTION_COST = 2
"""The requests that a shape counts for whose answer is not known: some 50 ms of a core."""


async def answered(request: Request, asked: Asked) -> list[CachedAnswer]:
    """The answers for the problems, in order; a pending one where its prediction takes longer than WAIT_S.

    Raises BusyError where the pool is full, CallerLeftError once nobody waits any more, and like `find_best`.
    Applications have it as `state.answered`, for pages.
    """
    memory: BestMemory = request.app.state.best
    is_plain, slug = asked.environment == EnvironmentFilter(), asked.device_model
    found = await run_in_threadpool(_remembered, memory, asked) if is_plain else {}
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
        give_turn_back(request.scope)
        found |= await _Computation(request, asked, left, state).answers()
        left = _missing(asked, found)
    if left:
        raise BusyError("No configuration was found for all of the shapes in time; try again in some seconds.")
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
    """The answer that a process of the pool has made for the problem, as it is cached."""
    return CachedAnswer(Match(made.match), problem, slug, made.expected_loss, made.as_json, made.shipped)


def keep(state: ShelfState | None, problems: Sequence[Problem], reply: Answers) -> None:
    """Keeps in memory the answers that were made for these problems, by place."""
    for place, made in reply.items():
        if state is not None:
            problem = problems[place]
            state.keep(problem, str(made) if isinstance(made, Exception) else cached(problem, state.shelf.slug, made))


def _remembered(memory: BestMemory, asked: Asked) -> dict[str, CachedAnswer]:
    """The answers in memory, by problem hash; for a thousand shapes that takes longer than others should wait."""
    known = ((p.hash, memory.find_of(asked.kernel.name, asked.device_model, p)) for p in asked.problems)
    return {hashed: answer for hashed, answer in known if answer is not None}


def _missing(asked: Asked, found: Collection[str]) -> list[Problem]:
    return list({problem.hash: problem for problem in asked.problems if problem.hash not in found}.values())


def _looked_up(asked: Asked, problems: Sequence[Problem], effort: Effort) -> dict[str, CachedAnswer]:
    rows = asked.rows(effort=effort)
    found = find_in(rows, problems)
    answers = {}
    for problem in problems:
        answer = found.get(problem.hash)
        if answer is not None:
            pending = answer.model_copy(update={"pending": True}) if problem in rows.pending else answer
            answers[problem.hash] = CachedAnswer.of(problem, asked.device_model, pending)
    return answers


class _Computation:
    """Problems that the pool answers for one request."""

    def __init__(self, request: Request, asked: Asked, problems: Sequence[Problem], state: ShelfState | None) -> None:
        self._request, self._asked, self._problems, self._state = request, asked, problems, state
        self._pool: BestPool = request.app.state.pool
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        self._made: Answers = {}
        self._lock = threading.Lock()
        self._meanwhile: asyncio.Future[dict[str, CachedAnswer]] | None = None

    async def answers(self) -> dict[str, CachedAnswer]:
        """The answers by problem hash; those not made in time are pending, and are computed on behind all others."""
        caller = self._request.scope.get("tilewright.caller")
        work = self._pool.ask(slice_of(self._asked, self._problems), caller.name if caller else "nobody", self._told)
        if not await self._wait(work):
            work.end()
            raise CallerLeftError
        if work.error is not None:
            raise work.error
        problems, state = self._problems, self._state
        found = {}
        if work.left:
            found = await (self._meanwhile or self._answer_meanwhile(work))
        self._pool.leave(work, lambda made: keep(state, problems, made))
        with self._lock:
            made = dict(self._made)
        for place, one in made.items():
            if isinstance(one, Exception):
                raise one
            found[problems[place].hash] = cached(problems[place], self._asked.device_model, one)
        return found

    async def _answer_meanwhile(self, work: Work) -> dict[str, CachedAnswer]:
        """Answers the shapes that are left without predicting, the farthest first."""
        found: dict[str, CachedAnswer] = {}
        tried: set[int] = set()
        while some := [place for place in reversed(tuple(work.left)) if place not in tried][:AT_ONCE]:
            tried.update(some)
            await take_turn(self._request.scope)
            try:
                found |= await run_in_threadpool(
                    _looked_up, self._asked, [self._problems[place] for place in some], Effort.MEANWHILE
                )
            finally:
                give_turn_back(self._request.scope)
        return found

    def _told(self, reply: Answers) -> None:
        """Takes answers, in a thread of the pool."""
        with self._lock:
            self._made |= reply
        keep(self._state, self._problems, reply)
        with contextlib.suppress(RuntimeError):  # the server has stopped meanwhile
            self._loop.call_soon_threadsafe(self._news.set)

    async def _wait(self, work: Work) -> bool:
        """Waits until all is made or time is up; False once the caller has left."""
        until, meanwhile = self._loop.time() + WAIT_S, self._loop.time() + MEANWHILE_AFTER_S
        gone = asyncio.ensure_future(_gone(self._request))
        try:
            while not work.is_done and (left_s := until - self._loop.time()) > 0:
                if self._meanwhile is None and self._loop.time() >= meanwhile:
                    self._meanwhile = asyncio.ensure_future(self._answer_meanwhile(work))
                    self._meanwhile.add_done_callback(lambda done: done.cancelled() or done.exception())
                wait_s = left_s if self._meanwhile else min(left_s, MEANWHILE_AFTER_S)
                news = asyncio.ensure_future(self._news.wait())
                await asyncio.wait({news, gone}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                self._news.clear()
                if gone.done():
                    return False
            return True
        finally:
            gone.cancel()
            if self._meanwhile is not None and (work.is_done or gone.done()):
                self._meanwhile.cancel()


async def _gone(request: Request) -> None:
    """Returns when the caller has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
