"""What a job's pool of compilers offers to compile workers, in a thread beside the search."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.compiling import offers
from tilewright.service.operations.compiling.offers import ANSWERED, OfferState
from tilewright.service.operations.compiling.sendable import why_not
from tilewright.service.operations.compiling.signatures import CompileKeyError, Trust
from tilewright.service.settings import settings
from tilewright.service.store.changes import Changes
from tilewright.service.store.session import session_scope
from tilewright.service.worker.background import Background
from tilewright.service.worker.compiling.wake import Wake
from tilewright.tuner.compile.backlog import WaitingCompilation
from tilewright.tuner.compile.cache import decode
from tilewright.tuner.compile.compilation import Compilation, compiler_version
from tilewright.tuner.compile.pool import CompilePool
from tilewright.tuner.devices.device import Device
from tilewright.tuner.devices.isolated.device import IsolatedDevice
from tilewright.tuner.errors import NoCompilerError

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
"""How often open offers are looked at without a notification: for leases that end in silence."""
COUNT_EVERY_S = 2.0
"""How often compile workers are counted, which says how far the search goes ahead."""
MOST_AWAY_S = 30.0
"""A compile worker that has a compilation for longer is not waited for, even if it lives: kernels take a second."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Without offers after one that was taken and not made, doubled each time until the next cubin comes."""
AGAIN_S = 1.0
"""How soon to try again where the database went away."""


@dataclass(eq=False)
class _Offer:
    waiting: WaitingCompilation
    key: str
    claimed_s: float | None = None  # when a compile worker was seen to have it


class JobOffers(Background):
    """Offers what waits in the pool, from `start` (or `with`) to `stop`; what is not made elsewhere is compiled here.

    The pool's own processes begin with the oldest, compile workers with the newest. If both have begun one, the pool's
    result counts.
    """

    def __init__(self, pool: CompilePool, trust: Trust) -> None:
        super().__init__("compile-offers", 5.0)
        self._pool, self._trust = pool, trust
        self._version = compiler_version("nvrtc")
        self._wake = Wake()
        self._open: dict[Compilation, _Offer] = {}
        self._stay: set[Compilation] = set()  # here, because they cannot be sent or were not made elsewhere
        self._pause_s, self._paused_until_s = FIRST_PAUSE_S, float("-inf")
        self._looked_s = self._counted_s = float("-inf")
        self.used = 0

    def start(self) -> None:
        """Starts the thread, after a first count of the compile workers that are there."""
        try:
            self._count()
        except (DatabaseUnavailableError, SQLAlchemyError) as error:
            logger.warning("Compile workers are counted later: %s", error)
        self._pool.on_waiting = self._wake.call
        super().start()

    def stop(self) -> None:
        """Ends the thread, which withdraws what is offered."""
        self._stopping.set()
        self._wake.call()
        super().stop()
        self._wake.close()
        if self.used:
            logger.info("%d cubins came from compile workers.", self.used)

    def _work(self) -> None:
        try:
            while not self._stopping.is_set():
                self._follow_answers()
            with suppress(DatabaseUnavailableError):  # what is still offered is forgotten by the maintenance
                self._withdraw(list(self._open.values()))
        except Exception:  # whatever it is, the job has compilers of its own
            logger.exception("Nothing is offered to compile workers any more.")
            self._end_all_here()
        self._pool.places_elsewhere = 0

    def _follow_answers(self) -> None:
        """Rounds until the end, or until the database goes away."""
        try:
            with Changes(ANSWERED) as answered:
                while not self._stopping.is_set():
                    self._wake.clear()
                    self._round(heard=bool(answered.wait(LOOK_EVERY_S, also=self._wake.ear)))
        except DatabaseUnavailableError as error:
            logger.warning("%s Everything is compiled here meanwhile.", error)
            self._end_all_here()
            self._stopping.wait(AGAIN_S)

    def _round(self, *, heard: bool) -> None:
        now_s = time.monotonic()
        if now_s - self._counted_s > COUNT_EVERY_S:
            self._count()
        waiting = self._pool.waiting()
        still = {each.work for each in waiting}
        self._withdraw([one for one in self._open.values() if one.claimed_s is None and one.waiting.work not in still])
        if now_s >= self._paused_until_s:
            self._offer(waiting)
        if self._open and (heard or now_s - self._looked_s > LOOK_EVERY_S):
            self._look()

    def _count(self) -> None:
        with session_scope() as session:
            silent_s = settings().compile_lease_s
            found = offers.places(session, self._version, self._trust.signers, silent_s)
        self._pool.places_elsewhere = min(found, settings().compile_most_offers)
        self._counted_s = time.monotonic()

    def _offer(self, waiting: list[WaitingCompilation]) -> None:
        room, new = settings().compile_most_offers - len(self._open), list[_Offer]()
        for each in waiting:
            if len(new) >= room:
                break
            if each.work in self._open or each.work in self._stay:
                continue
            key = each.work.key()
            if why_not(each.work) is not None:
                self._stay.add(each.work)
            elif not self._is_cached(each, key):
                new.append(_Offer(each, key))
        if new:
            with session_scope() as session:
                offers.offer(session, {one.key: one.waiting.work for one in new}, self._version)
            self._open |= {one.waiting.work: one for one in new}
            self._looked_s = float("-inf")  # a cubin may be there already

    def _is_cached(self, waiting: WaitingCompilation, key: str) -> bool:
        """Whether this host has the cubin; it is then settled, unless a process has begun to read it too."""
        cached = self._pool.cache.get(key) if self._pool.cache else None
        if cached is not None and self._pool.claim(waiting):
            waiting.settle(lambda: cached)
        return cached is not None

    def _look(self) -> None:
        by_key = {one.key: one for one in self._open.values()}
        with session_scope() as session:
            states = offers.look(session, list(by_key))
        self._looked_s = time.monotonic()
        for key, one in by_key.items():
            self._follow(one, states.get(key))

    def _follow(self, one: _Offer, state: OfferState | None) -> None:
        if state is None or state.state == "refused":
            if state is not None:
                logger.info("A compile worker did not make %s (%s); it is compiled here.", one.key, state.refusal)
            self._end_here(one)
        elif state.state == "abandoned":
            self._give_up(one, f"{state.worker} is silent")
        elif state.state in {"taken", "compiled"} and one.claimed_s is None:
            if not self._pool.claim(one.waiting):
                self._withdraw([one])  # a process here has begun it
                return
            one.claimed_s = time.monotonic()
        if state is not None and state.state == "compiled":
            self._use(one, state)
        elif one.claimed_s is not None and time.monotonic() - one.claimed_s > MOST_AWAY_S:
            self._give_up(one, "it took too long")

    def _use(self, one: _Offer, state: OfferState) -> None:
        compiled = None
        if state.compiler_version == self._version and self._trust.believes(
            state.signature, one.key, self._version, state.body
        ):
            compiled = decode(state.body)
        if compiled is None:
            with session_scope() as session:
                offers.disbelieve(session, one.key)
            self._give_up(one, f"the signature of {state.worker} is not trusted here (TILEWRIGHT_COMPILE_TRUST)")
            return
        if self._pool.cache:
            self._pool.cache.put(one.key, compiled)
        one.waiting.settle(lambda: compiled)
        del self._open[one.waiting.work]
        self.used += 1
        self._pause_s = FIRST_PAUSE_S

    def _give_up(self, one: _Offer, reason: str) -> None:
        """Compiles it here, and offers nothing for a while: who takes and does not make would slow every job down."""
        logger.warning("%s is compiled here: %s.", one.key, reason)
        if time.monotonic() >= self._paused_until_s:
            logger.warning("Nothing is offered to compile workers for %g s.", self._pause_s)
            self._paused_until_s = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._withdraw([one])
        self._end_here(one)

    def _end_here(self, one: _Offer) -> None:
        self._open.pop(one.waiting.work, None)
        self._stay.add(one.waiting.work)
        if one.claimed_s is not None:
            one.claimed_s = None
            self._pool.give_back(one.waiting)

    def _end_all_here(self) -> None:
        for offer in list(self._open.values()):
            self._end_here(offer)

    def _withdraw(self, withdrawn: list[_Offer]) -> None:
        if withdrawn:
            with session_scope() as session:
                offers.withdraw(session, [one.key for one in withdrawn])
            for one in withdrawn:
                self._open.pop(one.waiting.work, None)


class _Offering:
    """A job's guest that needs no turn: its offers are made by a thread."""

    def look(self) -> None:
        """Nothing: see the class."""


@contextmanager
def offering(device: Device) -> Iterator[_Offering]:
    """Offers what the device's pool compiles, where the settings name trusted keys; never raises: see runner.Guest."""
    pool = device.pool if isinstance(device, IsolatedDevice) else None
    if pool is None or not settings().compile_trust:
        yield _Offering()
        return
    try:
        job_offers = JobOffers(pool, Trust.of(settings().compile_trust))
    except (CompileKeyError, NoCompilerError) as error:
        logger.warning("%s. Everything is compiled here.", error)
        yield _Offering()
        return
    with job_offers:
        yield _Offering()
