from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from sqlalchemy import select
from waiting import PATIENCE_S, until

pytest.importorskip("cryptography")
from compilations import SOURCE, WORK, work
from offered import offer, states
from signing_keys import write_keys

from tilewright.service.operations.compiling import leases, offers
from tilewright.service.operations.compiling.signatures import Signer, Trust
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store.session import session_scope
from tilewright.service.worker.compiling.compile_worker import CompileWorker
from tilewright.tuner.compile.cache import CubinCache, decode
from tilewright.tuner.compile.compilation import compiler_version
from tilewright.tuner.compile.compiler import compile_now
from tilewright.tuner.compile.pool import CompilePool

VERSION = compiler_version("nvrtc")


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    with CompilePool(1, CubinCache(tmp_path_factory.mktemp("cache"))) as pool:
        yield pool


@pytest.fixture
def keys(tmp_path):
    return write_keys(tmp_path, "worker")


@pytest.fixture
def worker(configured, pool, keys):
    return CompileWorker(pool, Signer(keys[0]), "here:1:compile")


def test_what_is_offered_comes_back_signed_and_as_this_host_would_have_made_it(worker, keys):
    wanted = work(160)  # of no other test: the cache tells no time
    key = offer(wanted)
    assert worker.serve(once=True).compiled == 1
    (state,) = states(key)
    assert (state.state, state.worker) == ("compiled", worker.name)
    assert Trust.of([keys[1]]).believes(state.signature, key, VERSION, state.body)
    here, there = compile_now(wanted), decode(state.body)
    assert (there.cubin, there.resources) == (here.cubin, here.resources)
    assert there.compile_ms > 0
    with session_scope() as session:
        assert session.scalar(select(models.CompileWorker.heartbeat_at)) is None  # it has said goodbye


def test_what_another_compiler_is_wanted_for_waits(worker):
    key = offer(WORK, version="12.0.1")
    assert worker.serve(once=True) == worker.tally
    assert (worker.tally.compiled, worker.tally.refused) == (0, 0)
    assert states(key)[0].state == "waiting"


def test_what_must_not_or_cannot_be_compiled_is_refused_without_a_log(worker):
    including = replace(WORK, source=f'#include "/etc/passwd"\n{SOURCE}')
    broken = replace(WORK, source="a secret in a log")
    keys = [offer(including), offer(broken), offer(WORK, key="0" * 64)]
    assert worker.serve(once=True).refused == 3
    included, failed, misnamed = (state.refusal for state in states(*keys))
    assert "names a file" in included
    assert failed == "compile_failed"
    assert "key" in misnamed


def test_a_source_that_is_not_the_one_named_is_refused(worker):
    key = offer(WORK)
    with session_scope() as session:
        session.scalars(select(models.CompileSource)).one().source = SOURCE + " "
    assert worker.serve(once=True).refused == 1
    assert "not the one" in states(key)[0].refusal


def test_a_worker_that_is_stopped_gives_back_what_it_has_not_made(worker, pool, monkeypatch):
    hold = threading.Event()
    pool._threads.submit(hold.wait)  # its compiler is busy
    serving = threading.Thread(target=worker.serve)
    serving.start()
    key = offer(work(96))
    until(lambda: states(key)[0].state == "taken")
    worker.stop()
    serving.join(PATIENCE_S)
    assert not serving.is_alive()
    assert states(key)[0].state == "waiting"
    hold.set()


def test_a_result_that_comes_after_the_lease_is_not_stored(worker, monkeypatch):
    key = offer(WORK)
    end = leases.end

    def too_late(session, name, made):
        with session_scope() as other:
            other.execute(models.CompileRequest.__table__.update().values(epoch=7))
        return end(session, name, made)

    monkeypatch.setattr(leases, "end", too_late)
    assert worker.serve(once=True).late == 1
    with session_scope() as session:
        assert not session.scalars(select(models.CompiledCubin)).all()
        assert offers.look(session, [key])[key].state == "waiting"  # given back at its end


def test_a_heartbeat_comes_well_within_a_lease(worker, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_COMPILE_LEASE_S", "0.4")
    settings.cache_clear()
    serving = threading.Thread(target=worker.serve)
    serving.start()

    def beaten():
        with session_scope() as session:
            return session.scalar(select(models.CompileWorker.heartbeat_at))

    first = until(beaten)
    until(lambda: (beaten() or first) > first)
    worker.stop()
    serving.join(PATIENCE_S)
    monkeypatch.undo()
    settings.cache_clear()
    assert not serving.is_alive()
