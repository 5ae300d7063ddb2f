"""The side of a job: compilations offered to compile workers, looked after, withdrawn; cubins that are not believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import case, delete, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from tilewright.service.operations.compiling.sendable import facts_of, hash_of
from tilewright.service.store import models
from tilewright.tuner.compile.compilation import Compilation

OFFERED = "tilewright_compile_offered"
"""The channel on which compile workers hear of new offers."""
ANSWERED = "tilewright_compile_answered"
"""The channel on which jobs hear that something of theirs was taken or has ended."""

SOURCES_STAY_S = 600
"""A source that was offered within this time is not deleted; see retention.py, which waits longer."""

State = Literal["waiting", "taken", "abandoned", "refused", "compiled"]


@dataclass(frozen=True)
class OfferState:
    """What has become of an offer; a body and its signature where it was compiled."""

    state: State
    worker: str | None = None
    compiler_version: str = ""
    body: bytes = b""
    signature: bytes = b""
    refusal: str | None = None


def offer(session: Session, works: Mapping[str, Compilation], compiler_version: str) -> None:
    """Offers compilations by the keys of their cubins, and tells compile workers; what is there already stays."""
    source, request = models.CompileSource, models.CompileRequest
    sources = {hash_of(text): text for text in {work.source for work in works.values()}}
    stay = func.make_interval(0, 0, 0, 0, 0, 0, SOURCES_STAY_S)
    aging = source.hash.in_(sources), source.offered_at < func.now() - stay
    session.execute(update(source).where(*aging).values(offered_at=func.now()))
    known = set(session.scalars(select(source.hash).where(source.hash.in_(sources))))
    new = [{"hash": name, "source": content} for name, content in sources.items() if name not in known]
    if new:
        session.execute(insert(source).values(new).on_conflict_do_nothing())
    rows = [
        {
            "key": key,
            "source_hash": hash_of(work.source),
            "facts": facts_of(work),
            "compiler_version": compiler_version,
        }
        for key, work in works.items()
    ]
    session.execute(insert(request).values(rows).on_conflict_do_nothing())
    session.execute(text("SELECT pg_notify(:channel, '')"), {"channel": OFFERED})


def look(session: Session, keys: Sequence[str]) -> dict[str, OfferState]:
    """The states of those offers that are still there."""
    request, cubin = models.CompileRequest, models.CompiledCubin
    state = case(
        (request.refusal.is_not(None), "refused"),
        (cubin.key.is_not(None), "compiled"),
        (request.worker.is_(None), "waiting"),
        (request.leased_until > func.now(), "taken"),
        else_="abandoned",
    )
    query = select(
        request.key,
        state,
        request.worker,
        request.compiler_version,
        func.coalesce(cubin.body, b""),
        func.coalesce(cubin.signature, b""),
        request.refusal,
    ).outerjoin(cubin, cubin.key == request.key)
    return {key: OfferState(*facts) for key, *facts in session.execute(query.where(request.key.in_(keys)))}


def withdraw(session: Session, keys: Sequence[str]) -> None:
    """Takes back offers that no compile worker has now; a worker whose lease has ended cannot end them any more."""
    request = models.CompileRequest
    is_free = request.ended_at.is_(None) & (request.worker.is_(None) | (request.leased_until <= func.now()))
    session.execute(delete(request).where(request.key.in_(keys), is_free))


def disbelieve(session: Session, key: str) -> None:
    """Deletes a cubin whose signature is not trusted, and counts it against the worker that its row names."""
    worker, request = models.CompileWorker, models.CompileRequest
    of_this = select(models.CompiledCubin.worker).where(models.CompiledCubin.key == key).scalar_subquery()
    session.execute(update(worker).where(worker.name == of_this).values(refused=worker.refused + 1))
    session.execute(delete(request).where(request.key == key))


def places(session: Session, compiler_version: str, signers: Sequence[str], silent_s: float) -> int:
    """How many compilations the trusted compile workers with that compiler can make at a time."""
    worker = models.CompileWorker
    return (
        session.scalar(
            select(func.coalesce(func.sum(worker.processes), 0)).where(
                worker.compiler_version == compiler_version,
                worker.signer.in_(signers),
                worker.heartbeat_at > func.now() - func.make_interval(0, 0, 0, 0, 0, 0, silent_s),
            )
        )
        or 0
    )
