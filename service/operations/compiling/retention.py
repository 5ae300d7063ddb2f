"""Retention of what passes between jobs and compile workers; cubins that were used lie in the caches on disk too."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, func, or_, select, text
from sqlalchemy.orm import Session

from tilewright.service.store import models

OFFERS_KEPT = timedelta(minutes=5)
"""An offer waits for seconds; what is older was left by a job that died, or was refused."""
SOURCES_KEPT = timedelta(hours=1)
"""Longer than an offer, and than offers.SOURCES_STAY_S."""
CUBINS_KEPT = timedelta(days=7)
WORKERS_KEPT = timedelta(days=7)
MOST_BYTES = 1 << 30
"""As of a cache on disk; about 30,000 cubins."""

_OVER = text(
    "DELETE FROM compile_requests WHERE key IN (SELECT key FROM (SELECT key, sum(octet_length(body))"
    " OVER (ORDER BY stored_at DESC, key) AS held FROM compiled_cubins) AS kept WHERE held > :most)"
)


def forget_compilations(session: Session, most_bytes: int = MOST_BYTES) -> None:
    """Deletes old offers, cubins older than a week or beyond the limit of bytes, and sources and workers of none."""
    request, source, worker = models.CompileRequest, models.CompileSource, models.CompileWorker
    is_old_offer = (
        (request.offered_at < func.now() - OFFERS_KEPT)
        & or_(request.ended_at.is_(None), request.refusal.is_not(None))
        & or_(request.leased_until.is_(None), request.leased_until < func.now())
    )
    session.execute(delete(request).where(or_(is_old_offer, request.offered_at < func.now() - CUBINS_KEPT)))
    held = session.scalar(text("SELECT pg_total_relation_size('compiled_cubins')"))
    if held is not None and held > most_bytes:
        session.execute(_OVER, {"most": most_bytes})
    is_used = select(request.key).where(request.source_hash == source.hash).exists()
    session.execute(delete(source).where(source.offered_at < func.now() - SOURCES_KEPT, ~is_used))
    has_made = or_(
        select(request.key).where(request.worker == worker.name).exists(),
        select(models.CompiledCubin.key).where(models.CompiledCubin.worker == worker.name).exists(),
    )
    last_seen = func.coalesce(worker.heartbeat_at, worker.started_at)
    session.execute(delete(worker).where(last_seen < func.now() - WORKERS_KEPT, ~has_made))
