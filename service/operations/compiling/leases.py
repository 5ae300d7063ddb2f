"""The side of a compile worker: offers leased in batches, and ended once, by whoever has the lease."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from tilewright.service.operations.compiling.offers import ANSWERED
from tilewright.service.store import models


@dataclass(frozen=True)
class Lease:
    """A compilation that this worker has to make; nobody else has its epoch."""

    key: str
    epoch: int
    source_hash: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class Made:
    """What came of a lease: a signed body, or the reason why there is none."""

    lease: Lease
    body: bytes = b""
    signature: bytes = b""
    refusal: str | None = None


def register(session: Session, name: str, processes: int, compiler_version: str, signer: str) -> None:
    """Makes the compile worker known, with a heartbeat of now."""
    facts = {"processes": processes, "compiler_version": compiler_version, "signer": signer}
    added = insert(models.CompileWorker).values(name=name, **facts)
    session.execute(added.on_conflict_do_update(index_elements=["name"], set_=facts | {"heartbeat_at": func.now()}))


def beat(session: Session, worker: str, lease_s: float) -> None:
    """A heartbeat, with which the worker's leases last `lease_s` from now."""
    request = models.CompileRequest
    session.execute(
        update(models.CompileWorker).where(models.CompileWorker.name == worker).values(heartbeat_at=func.now())
    )
    session.execute(
        update(request)
        .where(request.worker == worker, request.ended_at.is_(None))
        .values(leased_until=func.now() + _interval(lease_s))
    )


def take(session: Session, worker: str, compiler_version: str, most: int, lease_s: float) -> list[Lease]:
    """Up to `most` offers for that compiler, newest first: jobs begin with the oldest themselves."""
    request = models.CompileRequest
    free = (
        select(request.key)
        .where(
            request.compiler_version == compiler_version,
            request.ended_at.is_(None),
            or_(request.leased_until.is_(None), request.leased_until <= func.now()),
        )
        .order_by(request.offered_at.desc())
        .limit(most)
        .with_for_update(skip_locked=True)
        .cte("free")  # looked for once: run again for every row, a subquery would lock and give more than `most`
    )
    taken = session.execute(
        update(request)
        .where(request.key.in_(select(free.c.key)))
        .values(worker=worker, epoch=request.epoch + 1, leased_until=func.now() + _interval(lease_s))
        .returning(request.key, request.epoch, request.source_hash, request.facts)
        .execution_options(synchronize_session=False)
    )
    leases = [Lease(*row) for row in taken]
    if leases:
        _tell_jobs(session)
    return leases


def sources(session: Session, hashes: Collection[str]) -> dict[str, str]:
    """The sources by their hashes."""
    source = models.CompileSource
    rows = session.execute(select(source.hash, source.source).where(source.hash.in_(hashes)))
    return {row.hash: row.source for row in rows}


def end(session: Session, worker: str, made: Iterable[Made]) -> int:
    """Ends leases, each with its cubin or its refusal; how many still were this worker's. The others store nothing."""
    request, ended = models.CompileRequest, 0
    for one in made:
        mine = session.execute(
            update(request)
            .where(
                request.key == one.lease.key,
                request.worker == worker,
                request.epoch == one.lease.epoch,
                request.ended_at.is_(None),
            )
            .values(ended_at=func.now(), refusal=one.refusal)
            .execution_options(synchronize_session=False)
        )
        if not mine.rowcount:  # type: ignore[attr-defined]
            continue
        ended += 1
        if one.refusal is None:
            cubin = {"key": one.lease.key, "worker": worker, "body": one.body, "signature": one.signature}
            # Of all conflicts: to name the column, the role of compile workers would have to read the table.
            session.execute(insert(models.CompiledCubin).values(cubin).on_conflict_do_nothing())
    if ended:
        _tell_jobs(session)
    return ended


def leave(session: Session, worker: str) -> None:
    """Gives back what has not ended, and says that this worker has."""
    request = models.CompileRequest
    session.execute(
        update(request)
        .where(request.worker == worker, request.ended_at.is_(None))
        .values(worker=None, leased_until=None)
    )
    session.execute(update(models.CompileWorker).where(models.CompileWorker.name == worker).values(heartbeat_at=None))
    _tell_jobs(session)


def _interval(seconds: float) -> Any:
    return func.make_interval(0, 0, 0, 0, 0, 0, seconds)


def _tell_jobs(session: Session) -> None:
    session.execute(text("SELECT pg_notify(:channel, '')"), {"channel": ANSWERED})
