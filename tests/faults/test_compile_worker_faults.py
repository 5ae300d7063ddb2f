from __future__ import annotations

import threading

import pytest
from sqlalchemy import func, select
from waiting import until

pytest.importorskip("cryptography")
from compilations import work
from compile_processes import compile_workers
from signing_keys import write_keys

from tilewright.service.operations.compiling.signatures import Trust
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store.session import session_scope
from tilewright.service.worker.compiling.job_offers import JobOffers
from tilewright.tuner.compile.cache import CubinCache
from tilewright.tuner.compile.pool import CompilePool

pytestmark = pytest.mark.faults

PATIENCE_S = 240.0
LEASE_S = 3.0


def leased() -> int:
    with session_scope() as session:
        request = models.CompileRequest
        return session.scalar(select(func.count()).where(request.leased_until > func.now(), request.ended_at.is_(None)))


@pytest.fixture
def short_lease(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_COMPILE_LEASE_S", str(LEASE_S))
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()


def test_what_a_killed_compile_worker_had_is_compiled_by_the_job(configured, tmp_path, short_lease):
    private, public = write_keys(tmp_path, "trusted")
    busy, works = threading.Event(), [work(32 * (1 + number)) for number in range(24)]
    with (
        compile_workers(configured, private, tmp_path, 1) as (process,),
        CompilePool(1, CubinCache(tmp_path / "here")) as pool,
        JobOffers(pool, Trust.of([public])),
    ):
        pool._threads.submit(busy.wait)  # the job's own compiler, until the other has died
        futures = [pool.submit(one) for one in works]
        until(leased)
        process.kill()
        process.wait()
        made_before = sum(future.done() for future in futures)
        busy.set()
        cubins = [future.result(PATIENCE_S) for future in futures]
        assert [one.resources.shared_bytes for one in cubins] == [4 * 32 * (1 + number) for number in range(24)]
        assert made_before < 24
        until(lambda: pool.places_elsewhere == 0)  # it counts no more
    with session_scope() as session:
        table = models.CompiledCubin
        assert session.scalar(select(func.count()).select_from(table)) < 24
