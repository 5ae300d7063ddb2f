from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import select, text
from waiting import PATIENCE_S, until

pytest.importorskip("cryptography")
from compilations import work
from signing_keys import write_keys

from tilewright.service.operations.compiling import leases
from tilewright.service.operations.compiling.leases import Made
from tilewright.service.operations.compiling.signatures import Signer, Trust
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store.session import session_scope
from tilewright.service.worker.compiling import job_offers
from tilewright.service.worker.compiling.job_offers import JobOffers, offering
from tilewright.tuner.compile.cache import CubinCache, encode
from tilewright.tuner.compile.compilation import Compiled, compiler_version
from tilewright.tuner.compile.pool import CompilePool
from tilewright.tuner.errors import NoCompilerError

VERSION = compiler_version("nvrtc")
NAME = "elsewhere"


class Elsewhere:
    """A compile worker that does what a test says, step by step."""

    def __init__(self, private):
        self.signer = Signer(private)
        with session_scope() as session:
            leases.register(session, NAME, 3, VERSION, self.signer.id)

    def take(self, lease_s=60.0):
        def taken():
            with session_scope() as session:
                return leases.take(session, NAME, VERSION, 100, lease_s)

        return until(taken)

    def make(self, lease, signer=None, refusal=None):
        body = encode(Compiled(f"elsewhere {dict(lease.facts['definitions'])['TILE']}".encode(), compile_ms=5.0))
        signature = (signer or self.signer).sign(lease.key, VERSION, body)
        with session_scope() as session:
            leases.end(session, NAME, [Made(lease, body, signature, refusal)])

    @property
    def refused(self):
        with session_scope() as session:
            return session.scalar(select(models.CompileWorker.refused))


@pytest.fixture
def keys(tmp_path):
    return write_keys(tmp_path, "trusted")


@pytest.fixture
def elsewhere(configured, keys):
    return Elsewhere(keys[0])


@pytest.fixture
def pool(tmp_path, monkeypatch):
    """Makes cubins that tell where they come from, and none before `pool.free` is set."""
    with CompilePool(1, CubinCache(tmp_path / "cache")) as pool:
        pool.free = threading.Event()
        monkeypatch.setattr(pool, "_compile", lambda work: Compiled(f"here {dict(work.definitions)['TILE']}".encode()))
        pool._threads.submit(pool.free.wait)
        yield pool
        pool.free.set()


@pytest.fixture
def offers(pool, elsewhere, keys):
    with JobOffers(pool, Trust.of([keys[1]])) as offers:
        yield offers


def open_requests():
    with session_scope() as session:
        return session.scalars(select(models.CompileRequest.key).where(models.CompileRequest.ended_at.is_(None))).all()


def cubin(future):
    return future.result(PATIENCE_S).cubin.decode()


def test_what_waits_is_made_elsewhere_and_kept_on_this_host(offers, pool, elsewhere):
    assert pool.places_elsewhere == 3
    futures = {str(tile): pool.submit(work(tile)) for tile in (32, 64)}
    made = {}
    while len(made) < 2:
        made |= {dict(lease.facts["definitions"])["TILE"]: lease for lease in elsewhere.take()}
    for lease in made.values():
        elsewhere.make(lease)
    assert {tile: cubin(future) for tile, future in futures.items()} == {"32": "elsewhere 32", "64": "elsewhere 64"}
    assert futures["32"].result().compile_ms == 5.0
    assert pool.cache.get(work(32).key()).cubin == b"elsewhere 32"
    assert offers.used == 2


def test_what_configurations_share_is_a_cubin_of_its_own_elsewhere_too(offers, pool, elsewhere):
    future = pool.submit(replace(work(32), shared=work(64)))
    made = []
    while len(made) < 2:
        for lease in elsewhere.take():
            elsewhere.make(lease)
            made.append(lease.key)
    assert sorted(made) == sorted([work(32).key(), work(64).key()])
    assert (cubin(future), future.result().shared) == ("elsewhere 32", b"elsewhere 64")


def test_a_cubin_in_the_database_is_used_at_once(offers, pool, elsewhere):
    first = pool.submit(work(32))
    elsewhere.make(elsewhere.take()[0])
    cubin(first)
    pool.cache.evict()
    for file in pool.cache.folder.glob("*/*"):
        file.unlink()
    assert cubin(pool.submit(work(32))) == "elsewhere 32"


def test_what_is_cached_here_is_not_offered(offers, pool, elsewhere):
    pool.cache.put(work(32).key(), Compiled(b"cached"))
    assert cubin(pool.submit(work(32))) == "cached"
    assert open_requests() == []


def test_what_the_pool_begins_is_withdrawn(offers, pool):
    future = pool.submit(work(32))
    until(open_requests)
    pool.free.set()
    assert cubin(future) == "here 32"
    until(lambda: not open_requests())


def test_what_a_silent_worker_had_is_compiled_here_after_its_lease(offers, pool, elsewhere):
    futures = [pool.submit(work(tile)) for tile in (32, 64)]
    leased = []
    while len(leased) < 2:
        leased += elsewhere.take()
    until(lambda: not pool.waiting())  # the pool leaves them to the worker
    with session_scope() as session:
        session.execute(text("UPDATE compile_requests SET leased_until = now()"))
    pool.free.set()
    assert [cubin(future) for future in futures] == ["here 32", "here 64"]
    elsewhere.make(leased[0])  # it awakes
    with session_scope() as session:
        assert session.scalars(select(models.CompiledCubin)).all() == []
    assert pool.submit(work(96)).result(PATIENCE_S).cubin == b"here 96"


def test_who_lives_and_does_not_deliver_is_not_waited_for(offers, pool, elsewhere, monkeypatch, caplog):
    monkeypatch.setattr(job_offers, "MOST_AWAY_S", 0.1)
    future = pool.submit(work(32))
    elsewhere.take()
    until(lambda: "it took too long" in caplog.text)
    pool.free.set()
    assert cubin(future) == "here 32"


def test_a_wrong_signature_is_refused_and_counted(offers, pool, elsewhere, tmp_path, caplog):
    future = pool.submit(work(32))
    elsewhere.make(elsewhere.take()[0], Signer(write_keys(tmp_path, "stranger")[0]))
    until(lambda: elsewhere.refused == 1)
    pool.free.set()
    assert cubin(future) == "here 32"
    assert "TILEWRIGHT_COMPILE_TRUST" in caplog.text
    assert pool.cache.get(work(32).key()) is None


def test_what_a_worker_refuses_is_compiled_here(offers, pool, elsewhere):
    future = pool.submit(work(32))
    elsewhere.make(elsewhere.take()[0], refusal="no")
    pool.free.set()
    assert cubin(future) == "here 32"


def test_an_error_in_the_offers_leaves_the_job_its_own_compilers(offers, pool, elsewhere, monkeypatch):
    future = pool.submit(work(32))
    elsewhere.take()
    until(lambda: not pool.waiting())

    def fail(*_):
        raise RuntimeError("unexpected")

    monkeypatch.setattr(job_offers.offers, "look", fail)
    pool.free.set()
    assert cubin(future) == "here 32"
    until(lambda: not pool.places_elsewhere)


def test_the_end_of_a_job_withdraws_its_offers(pool, elsewhere, keys):
    with JobOffers(pool, Trust.of([keys[1]])):
        future = pool.submit(work(32))
        until(open_requests)
    assert open_requests() == []
    pool.free.set()
    assert cubin(future) == "here 32"


@contextmanager
def setting(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()


def test_a_key_that_cannot_be_read_leaves_the_job_its_own_compilers(monkeypatch, tmp_path, caplog):
    device = object.__new__(job_offers.IsolatedDevice)
    device.pool = object()
    with setting(monkeypatch, "TILEWRIGHT_COMPILE_TRUST", str(tmp_path / "none.pem")), offering(device) as guest:
        guest.look()
    assert "TILEWRIGHT_COMPILE_TRUST: none.pem: No such file" in caplog.text


def test_without_nvrtc_a_job_compiles_by_itself(monkeypatch, keys, caplog):
    def missing(_):
        raise NoCompilerError("libnvrtc was not found")

    monkeypatch.setattr(job_offers, "compiler_version", missing)
    device = object.__new__(job_offers.IsolatedDevice)
    device.pool = object()
    with setting(monkeypatch, "TILEWRIGHT_COMPILE_TRUST", str(keys[1])), offering(device) as guest:
        guest.look()
    assert "libnvrtc was not found. Everything is compiled here." in caplog.text


def test_a_job_whose_installation_names_a_key_offers_what_it_compiles(monkeypatch, pool, elsewhere, keys):
    device = object.__new__(job_offers.IsolatedDevice)
    device.pool = pool
    with setting(monkeypatch, "TILEWRIGHT_COMPILE_TRUST", str(keys[1])), offering(device):
        future = pool.submit(work(32))
        elsewhere.make(elsewhere.take()[0])
        assert cubin(future) == "elsewhere 32"
    with offering(device):
        assert pool.places_elsewhere == 0  # off by default
