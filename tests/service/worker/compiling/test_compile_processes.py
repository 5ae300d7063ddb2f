from __future__ import annotations

import signal
import threading

import pytest
from sqlalchemy import select
from waiting import PATIENCE_S

pytest.importorskip("cryptography")
from compilations import work
from compile_processes import compile_workers, registered
from signing_keys import write_keys

from tilewright.service.operations.compiling.signatures import Trust
from tilewright.service.store import models
from tilewright.service.store.session import session_scope
from tilewright.service.worker.compiling.job_offers import JobOffers
from tilewright.tuner.compile.cache import CubinCache
from tilewright.tuner.compile.pool import CompilePool


def test_two_compile_workers_share_what_a_job_offers(configured, tmp_path):
    private, public = write_keys(tmp_path, "trusted")
    busy, works = threading.Event(), [work(32 * (1 + number)) for number in range(8)]
    with (
        compile_workers(configured, private, tmp_path, 2) as processes,
        CompilePool(1, CubinCache(tmp_path / "here")) as pool,
        JobOffers(pool, Trust.of([public])) as offers,
    ):
        assert pool.places_elsewhere == 2
        pool._threads.submit(busy.wait)  # the job's own compiler
        cubins = [future.result(PATIENCE_S) for future in [pool.submit(one) for one in works]]
        busy.set()
        assert [one.resources.shared_bytes for one in cubins] == [4 * 32 * (1 + number) for number in range(8)]
        assert offers.used == 8
        with session_scope() as session:
            makers = session.scalars(select(models.CompiledCubin.worker)).all()
        assert sorted(set(makers)) == sorted(registered())
        for process in processes:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(PATIENCE_S) for process in processes] == [0, 0]
        assert registered() == []
