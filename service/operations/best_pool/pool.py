"""Predictions for callers, made by a small pool of processes: in turn by caller, with a deadline, given up on demand.

A kernel on a device model always goes to the same process, which has its predictors. Each takes slices of a quarter of
a second: first of callers that wait, in turn; then of work that nobody waits for any more.
"""

from __future__ import annotations

import logging
import os
import threading
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace

from tilewright.service.errors import BusyError
from tilewright.service.operations.best_pool.process import AT_ONCE, Answers, Reply, Slice, serve
from tilewright.service.operations.transaction import refuse_in_transaction
from tilewright.service.store.session import database_url
from tilewright.tuner.child import Child, UnkillableError
from tilewright.tuner.predict import shipped

logger = logging.getLogger(__name__)

SLICE_S = 0.25
"""How long a process works on one question before others have their turn."""

MOST_S = 60.0
"""A slice that takes longer is given up and its process ended: a fit to 300 shapes takes a tenth of it."""

MOST_WAITING, MOST_OF_CALLER = 64, 8
"""Questions that somebody waits for, in one process's queue: of all callers, and of one."""

MOST_LATER, MOST_LATER_OF_CALLER = 20_000, 4_000
"""Shapes in one process's queue that nobody waits for: of all callers, and of one. More are dropped."""


Told = Callable[[Answers], None]


class Work:
    """The shapes of a question that are still open, for one caller, with their answers so far.

    `told` is called, in a thread of the pool, with the answers that have come; with none at the end of a work that is
    given up or fails.
    """

    def __init__(self, asked: Slice, caller: str, told: Told) -> None:
        self.asked, self.caller, self.told = asked, caller, told
        self.left = dict(enumerate(asked.shapes))  # once the first answers are there, the nearest shapes first
        self.is_ranked = len(self.left) == 1
        self.error: Exception | None = None

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return not self.left

    def end(self, error: Exception | None = None) -> None:
        """Ends the work: nothing more is wanted, or possible."""
        self.error, self.left = error, {}
        self.told({})


class BestPool:
    """The processes, started when first needed, until `close`."""

    def __init__(self, processes: int | None = None) -> None:
        """`processes`: as many as cores less one, but one at least, where it is not said."""
        count = processes or max(1, len(os.sched_getaffinity(0)) - 1)
        self._lanes = [_Lane(f"predictions {place}") for place in range(count)]

    def start(self) -> None:
        """Starts the processes now: Python and the kernels take a second to load."""
        for lane in self._lanes:
            lane.start()

    def ask(self, asked: Slice, caller: str, told: Told) -> Work:
        """The work, which has begun or waits for its turn; raises BusyError if too much does."""
        refuse_in_transaction("a wait for predictions")
        work = Work(asked, caller, told)
        self._lane(asked).put(work)
        return work

    def ask_later(self, asked: Slice, caller: str | None, told: Told) -> bool:
        """Queues the work for when nobody waits; tells whether there was room. `caller` None: for pages."""
        return self._lane(asked).put_later(Work(asked, caller or "", told))

    def leave(self, work: Work, told: Told) -> bool:
        """Queues the rest of the work for later, since its caller has an answer; tells whether there was room."""
        return self._lane(work.asked).leave(work, told)

    @property
    def waiting(self) -> int:
        """Shapes that wait to be computed."""
        return sum(lane.waiting for lane in self._lanes)

    def close(self) -> None:
        """Ends the processes; waiting work is given up."""
        for lane in self._lanes:
            lane.close()

    def _lane(self, asked: Slice) -> _Lane:
        return self._lanes[zlib.crc32(f"{asked.kernel} {asked.device_model}".encode()) % len(self._lanes)]


class _Lane:
    """One process, the thread that keeps it busy, and its queue."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._turns: OrderedDict[str, deque[Work]] = OrderedDict()  # by caller: whose turn is next comes first
        self._later: deque[Work] = deque()
        self._last_later: str | None = None  # whose turn it was last of those that nobody waits for
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._child: Child | None = None
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """Shapes in the queue."""
        with self._changed:
            return sum(len(work.left) for work in (*self._later, *(w for own in self._turns.values() for w in own)))

    def start(self) -> None:
        """Starts the pool's process."""
        with self._changed:
            self._wake()

    def put(self, work: Work) -> None:
        """Adds a question that its caller waits for."""
        with self._changed:
            own = self._turns.get(work.caller, ())
            if sum(map(len, self._turns.values())) >= MOST_WAITING or len(own) >= MOST_OF_CALLER:
                raise BusyError("All processes that predict are busy; try again in some seconds.")
            self._turns.setdefault(work.caller, deque()).append(work)
            self._wake()

    def put_later(self, work: Work) -> bool:
        """Adds work that nobody waits for; False if too much of it waits already."""
        with self._changed:
            of_all = sum(len(other.left) for other in self._later)
            of_caller = sum(len(other.left) for other in self._later if other.caller == work.caller)
            most = MOST_LATER_OF_CALLER if work.caller else MOST_LATER
            has_room = of_all + len(work.left) <= MOST_LATER and of_caller + len(work.left) <= most
            if has_room:
                (self._later.appendleft if work.asked.is_rough else self._later.append)(work)  # pages wait for those
                self._wake()
            return has_room

    def leave(self, work: Work, told: Told) -> bool:
        """Moves it behind all for which somebody waits."""
        with self._changed:
            self._take_out(work)
            work.told = told
        if work.is_done or self.put_later(work):
            return True
        work.end()
        return False

    def close(self) -> None:
        """Ends the process and its thread."""
        with self._changed:
            self._is_closed = True
            child, thread = self._child, self._thread
            self._changed.notify_all()
        if child is not None:
            child.process.kill()  # which its thread, that waits for it, hears of
        if thread is not None:
            thread.join(5.0)
        if child is not None:
            _kill(child)  # once more, where its thread had nothing to wait for
        for work in [*self._later, *(w for own in self._turns.values() for w in own)]:
            work.end(BusyError("The server stops."))

    def _wake(self) -> None:
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _take_out(self, work: Work) -> None:
        own = self._turns.get(work.caller)
        if own is not None and work in own:  # by identity
            own.remove(work)
            if not own:
                del self._turns[work.caller]

    def _next(self) -> Work | None:
        """The work whose turn it is; None at the end."""
        with self._changed:
            while not self._is_closed:
                for caller, own in list(self._turns.items()):
                    for work in [done for done in own if done.is_done]:
                        self._take_out(work)
                    if own:
                        self._turns.move_to_end(caller)
                        own.rotate(-1)
                        return own[-1]
                self._later = deque(work for work in self._later if not work.is_done)
                if self._later:
                    return self._next_later()
                self._changed.wait()
            return None

    def _next_later(self) -> Work:
        """The first work of another caller than last time, so that a page's cells do not hold up a batch's rest."""
        chosen = next((work for work in self._later if work.caller != self._last_later), self._later[0])
        self._last_later = chosen.caller
        return chosen

    def _run(self) -> None:
        self._started()
        while (work := self._next()) is not None:
            try:
                self._serve(work)
            except Exception as error:  # whatever it is, the other questions still want their answers
                logger.exception("A prediction failed.")
                work.end(error)

    def _serve(self, work: Work) -> None:
        places = list(work.left)[: AT_ONCE if work.is_ranked else None]
        if not places:
            return
        shapes = tuple(work.asked.shapes[place] for place in places)
        reply = self._exchange(replace(work.asked, shapes=shapes, seconds=SLICE_S, ranks=not work.is_ranked))
        if isinstance(reply, BusyError):
            work.end(reply)
            return
        made = {places[i]: one for i, one in reply.made.items()}
        with self._changed:
            told = work.told
            order = list(work.left) if work.is_ranked else [places[i] for i in reply.order]
            work.is_ranked = True
            work.left = {place: work.left[place] for place in order if place in work.left and place not in made}
        told(made)

    def _exchange(self, asked: Slice) -> Reply | BusyError:
        """The process's reply. A dead one is replaced once: it may have been killed while it was idle."""
        for _ in range(2):
            child = self._started()
            if child is None:
                break
            try:
                child.connection.send(asked)
                if child.connection.poll(MOST_S):
                    reply: Reply = child.connection.recv()
                    return reply
                logger.error("A prediction for %s took longer than %g s and was given up.", asked.kernel, MOST_S)
                self._forget(child)
                return BusyError(f"A prediction for {asked.kernel} took longer than {MOST_S:g} s.")
            except (EOFError, OSError):
                self._forget(child)
        return BusyError("The process that predicts has ended; try again.")

    def _started(self) -> Child | None:
        with self._changed:
            if self._is_closed:
                return None
            if self._child is None:
                # It ends with this thread, however this process ends.
                self._child = Child(serve, (database_url(), shipped.FOLDER), dies_with_parent=True)
            return self._child

    def _forget(self, child: Child) -> None:
        _kill(child)
        with self._changed:
            self._child = None


def _kill(child: Child) -> None:
    try:
        child.kill()
    except UnkillableError as error:
        logger.error("%s", error)  # noqa: TRY400 - expected: the sentence says it all
