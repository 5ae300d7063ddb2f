"""A compile worker: takes compilations that jobs offer, makes them by NVRTC, stores signed cubins. Needs no GPU."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from tilewright.service import logs
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.compiling import leases
from tilewright.service.operations.compiling.leases import Lease, Made
from tilewright.service.operations.compiling.offers import OFFERED
from tilewright.service.operations.compiling.sendable import compilation_of, hash_of, why_not
from tilewright.service.operations.compiling.signatures import CompileKeyError, Signer
from tilewright.service.settings import settings
from tilewright.service.store.changes import Changes
from tilewright.service.store.models.compiling import MOST_CUBIN_BYTES
from tilewright.service.store.patience import patiently
from tilewright.service.store.session import session_scope
from tilewright.service.worker.compiling.wake import Wake
from tilewright.tuner.compile.cache import CubinCache, encode
from tilewright.tuner.compile.compilation import Compiled, compiler_version
from tilewright.tuner.compile.pool import CompilePool
from tilewright.tuner.errors import NoCompilerError, TrialFailure

logger = logging.getLogger(__name__)

AGAIN_S = 1.0
"""How soon to try again where the database went away."""
BEATS = 4
"""Heartbeats within one lease: three may be lost."""
SOURCES_KEPT = 64
"""Of the newest sources, in memory; a job has one for each variant of its kernel."""


@dataclass
class Tally:
    """What a compile worker has done: cubins stored, offers refused, results that came after their lease had ended."""

    compiled: int = 0
    refused: int = 0
    late: int = 0


@dataclass
class CompileWorker:
    """The loop: heartbeat, store what is made, take more; all with the database in this one thread."""

    pool: CompilePool
    signer: Signer
    name: str
    stopping: threading.Event = field(default_factory=threading.Event)
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self._version = compiler_version("nvrtc")
        self._wake = Wake()
        self._at_work: dict[Future[Compiled], Lease] = {}
        self._unstored: list[Made] = []
        self._sources: dict[str, str] = {}
        self._beaten_s = float("-inf")
        # One more for every two processes: they need not wait for the database between two compilations.
        self._most = self.pool.workers + (self.pool.workers + 1) // 2

    def stop(self) -> None:
        """Has `serve` give back what has not ended, and return; may be called by a signal's handler."""
        self.stopping.set()
        self._wake.call()

    def serve(self, *, once: bool = False) -> Tally:
        """Serves until `stop`; with `once`, until nothing is offered. Raises DatabaseUnavailableError at the start."""
        facts = (self.name, self.pool.workers, self._version, self.signer.id)
        patiently(lambda session: leases.register(session, *facts))
        logger.info(
            "Compiling with NVRTC %s in %d processes; key %s.", self._version, self.pool.workers, self.signer.id
        )
        self.pool.start()
        while not self.stopping.is_set():
            try:
                with Changes(OFFERED) as offered:
                    self._serve(offered, once=once)
            except DatabaseUnavailableError as error:
                logger.warning("%s Trying again.", error)
                self.stopping.wait(AGAIN_S)
                continue
            if once:
                break
        self._leave()
        return self.tally

    def _serve(self, offered: Changes, *, once: bool) -> None:
        while not self.stopping.is_set():
            self._wake.clear()
            self._beat()
            self._store()
            taken = self._take()
            if once and not (taken or self._at_work):
                return
            if not taken:
                offered.wait(settings().compile_lease_s / BEATS / 2, also=self._wake.ear)

    def _beat(self) -> None:
        if time.monotonic() - self._beaten_s > settings().compile_lease_s / BEATS:
            with session_scope() as session:
                leases.beat(session, self.name, settings().compile_lease_s)
            self._beaten_s = time.monotonic()

    def _take(self) -> int:
        room = self._most - len(self._at_work)
        if room <= 0:
            return 0
        with session_scope() as session:
            taken = leases.take(session, self.name, self._version, room, settings().compile_lease_s)
            unknown = {lease.source_hash for lease in taken} - self._sources.keys()
            self._sources |= leases.sources(session, unknown) if unknown else {}
        for lease in taken:
            self._begin(lease)
        for name in list(self._sources)[:-SOURCES_KEPT]:
            del self._sources[name]
        return len(taken)

    def _begin(self, lease: Lease) -> None:
        source = self._sources.get(lease.source_hash, "")
        reason = None if hash_of(source) == lease.source_hash else "the source is not the one that the request names"
        try:
            work = compilation_of(source, lease.facts)
        except ValueError as error:
            self._refuse(lease, str(error))
            return
        reason = reason or why_not(work)
        if reason is None and work.key() != lease.key:
            reason = f"its key is not that of NVRTC {self._version} for this source and these options"
        if reason is not None:
            self._refuse(lease, reason)
            return
        future = self.pool.submit(work)
        self._at_work[future] = lease
        future.add_done_callback(lambda _: self._wake.call())

    def _refuse(self, lease: Lease, reason: str) -> None:
        logger.warning("Refused %s: %s.", lease.key, reason)
        self._unstored.append(Made(lease, refusal=reason))

    def _store(self) -> None:
        for future in [future for future in self._at_work if future.done()]:
            self._unstored.append(self._made(self._at_work.pop(future), future))
        if not self._unstored:
            return
        with session_scope() as session:
            ended = leases.end(session, self.name, self._unstored)
        refused = sum(one.refusal is not None for one in self._unstored)
        self.tally.compiled += len(self._unstored) - refused
        self.tally.refused += refused
        self.tally.late += len(self._unstored) - ended
        self._unstored = []

    def _made(self, lease: Lease, future: Future[Compiled]) -> Made:
        """What to store; of a failure only its kind, because a log may quote files of this host."""
        try:
            body = encode(future.result())
        except TrialFailure as failure:
            return Made(lease, refusal=failure.outcome.value)
        except NoCompilerError as error:
            return Made(lease, refusal=str(error))
        if len(body) > MOST_CUBIN_BYTES:
            return Made(lease, refusal="the cubin is too large")
        return Made(lease, body, self.signer.sign(lease.key, self._version, body))

    def _leave(self) -> None:
        try:
            self._store()
            with session_scope() as session:
                leases.leave(session, self.name)
        except DatabaseUnavailableError as error:
            logger.warning("%s What this worker had is compiled elsewhere when its leases have ended.", error)
        logger.info(
            "Ended: %d compiled, %d refused, %d late.", self.tally.compiled, self.tally.refused, self.tally.late
        )
        self._wake.close()


def run_compile_worker(processes: int | None, *, once: bool) -> Tally:
    """Serves until SIGTERM or SIGINT, or once; what was done. Raises CompileKeyError, NoCompilerError."""
    path = settings().compile_key
    if path is None:
        raise CompileKeyError("TILEWRIGHT_COMPILE_KEY: name the PEM file with this worker's private key (Ed25519)")
    signer, name = Signer(path), f"{socket.gethostname()}:{os.getpid()}:compile"
    logs.configure()
    logs.always(worker=name)
    with CompilePool(processes, CubinCache()) as pool:
        worker = CompileWorker(pool, signer, name)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: worker.stop())
        return worker.serve(once=once)
