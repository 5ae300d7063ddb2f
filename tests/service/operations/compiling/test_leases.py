from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.exc import IntegrityError

from tilewright.service.operations.compiling import leases, offers
from tilewright.service.operations.compiling.leases import Made
from tilewright.service.operations.compiling.retention import forget_compilations
from tilewright.service.store import models
from tilewright.tuner.compile.compilation import Compilation

WORK = Compilation("void source();", (("N", "1"),), "sm_90", "scale")
LEASE_S = 60.0


@pytest.fixture
def fleet(session):
    for name, signer in (("one", "trusted"), ("two", "trusted"), ("stranger", "unknown")):
        leases.register(session, name, 4, "13.0", signer)
    return session


def offer(session, *keys, version="13.0"):
    offers.offer(session, {key: replace(WORK, definitions=(("N", key),)) for key in keys}, version)


def lapse(session, worker):
    request = models.CompileRequest
    session.execute(
        update(request).where(request.worker == worker).values(leased_until=func.now() - timedelta(seconds=1))
    )


def states(session, *keys):
    return {key: state.state for key, state in offers.look(session, keys).items()}


def test_a_batch_goes_to_one_worker_and_what_is_left_to_the_next(fleet):
    offer(fleet, "a", "b", "c")
    offer(fleet, "a")  # again: another job's
    first = leases.take(fleet, "one", "13.0", 2, LEASE_S)
    second = leases.take(fleet, "two", "13.0", 2, LEASE_S)
    assert sorted(lease.key for lease in (*first, *second)) == ["a", "b", "c"]
    assert leases.take(fleet, "two", "13.0", 2, LEASE_S) == []
    assert set(states(fleet, "a", "b", "c").values()) == {"taken"}
    assert leases.sources(fleet, {first[0].source_hash}) == {first[0].source_hash: WORK.source}
    assert first[0].facts["definitions"] == [["N", first[0].key]]


@pytest.mark.parametrize("without", [(), ("hashjoin", "hashagg", "mergejoin", "sort", "material")])
def test_a_batch_is_no_larger_than_asked_for_however_the_database_joins(fleet, without):
    """A subquery that is run again for every row has another batch each time."""
    for plan in without:
        fleet.execute(text(f"SET LOCAL enable_{plan} = off"))
    offer(fleet, *"abcdef")
    fleet.execute(text("UPDATE compile_requests SET offered_at = now() - interval '1 s' * ascii(key)"))
    assert sorted(lease.key for lease in leases.take(fleet, "one", "13.0", 2, LEASE_S)) == ["a", "b"]


def test_a_worker_gets_what_its_compiler_is_wanted_for(fleet):
    offer(fleet, "a", version="12.9")
    assert leases.take(fleet, "one", "13.0", 9, LEASE_S) == []
    assert [lease.key for lease in leases.take(fleet, "one", "12.9", 9, LEASE_S)] == ["a"]


def test_what_is_made_is_stored_once_and_by_whoever_has_the_lease(fleet):
    offer(fleet, "a", "b")
    mine = leases.take(fleet, "one", "13.0", 2, LEASE_S)
    lapse(fleet, "one")
    assert set(states(fleet, "a", "b").values()) == {"abandoned"}
    theirs = leases.take(fleet, "two", "13.0", 1, LEASE_S)
    made = [Made(lease, b"body of one", b"s") for lease in mine]
    assert leases.end(fleet, "one", made) == 1  # of the other the epoch is another's
    assert leases.end(fleet, "one", made) == 0
    assert leases.end(fleet, "two", [Made(theirs[0], b"body of two", b"s")]) == 1
    found = offers.look(fleet, ["a", "b"])
    assert {(one.state, one.worker, one.body) for one in found.values()} == {
        ("compiled", "one", b"body of one"),
        ("compiled", "two", b"body of two"),
    }


def test_a_heartbeat_keeps_leases_and_an_orderly_end_gives_them_back(fleet):
    offer(fleet, "a")
    leases.take(fleet, "one", "13.0", 1, LEASE_S)
    lapse(fleet, "one")
    leases.beat(fleet, "one", LEASE_S)
    assert states(fleet, "a") == {"a": "taken"}
    leases.leave(fleet, "one")
    assert states(fleet, "a") == {"a": "waiting"}
    assert offers.places(fleet, "13.0", ["trusted"], LEASE_S) == 4  # those of the other


def test_only_trusted_workers_that_are_alive_and_have_the_compiler_count(fleet):
    assert offers.places(fleet, "13.0", ["trusted"], LEASE_S) == 8
    assert offers.places(fleet, "13.0", [], LEASE_S) == 0
    assert offers.places(fleet, "12.9", ["trusted"], LEASE_S) == 0
    fleet.execute(update(models.CompileWorker).values(heartbeat_at=func.now() - timedelta(seconds=61)))
    assert offers.places(fleet, "13.0", ["trusted"], LEASE_S) == 0


def test_a_job_withdraws_what_nobody_has_and_what_was_abandoned(fleet):
    offer(fleet, "free", "taken")
    fleet.execute(update(models.CompileRequest).where(models.CompileRequest.key == "free").values(compiler_version="9"))
    leases.take(fleet, "one", "13.0", 1, LEASE_S)
    offers.withdraw(fleet, ["free", "taken"])
    assert states(fleet, "free", "taken") == {"taken": "taken"}
    lapse(fleet, "one")
    offers.withdraw(fleet, ["taken"])
    assert states(fleet, "taken") == {}


def test_a_refusal_tells_its_reason(fleet):
    offer(fleet, "a")
    leases.end(fleet, "one", [Made(leases.take(fleet, "one", "13.0", 1, LEASE_S)[0], refusal="too long")])
    assert offers.look(fleet, ["a"])["a"].refusal == "too long"
    assert leases.take(fleet, "two", "13.0", 1, LEASE_S) == []


def test_a_cubin_that_is_not_believed_is_deleted_and_counted(fleet):
    offer(fleet, "a")
    leases.end(fleet, "one", [Made(leases.take(fleet, "one", "13.0", 1, LEASE_S)[0], b"body", b"wrong")])
    offers.disbelieve(fleet, "a")
    assert states(fleet, "a") == {}
    assert fleet.scalar(select(models.CompileWorker.refused).where(models.CompileWorker.name == "one")) == 1


@pytest.mark.parametrize(("body", "signature"), [(8 << 20, 65), ((8 << 20) + 1, 64)])
def test_the_database_takes_no_cubin_beyond_its_limits(fleet, body, signature):
    offer(fleet, "a")
    (lease,) = leases.take(fleet, "one", "13.0", 1, LEASE_S)
    with pytest.raises(IntegrityError, match="is_short"), fleet.begin_nested():
        leases.end(fleet, "one", [Made(lease, b"x" * body, b"s" * signature)])


def age(session, table, column, by):
    session.execute(text(f"UPDATE {table} SET {column} = {column} - interval '{by}'"))  # noqa: S608 - our own names


def test_retention_keeps_what_is_new_and_forgets_the_rest(fleet):
    def left():
        return [fleet.scalar(select(func.count()).select_from(table)) for table in tables]

    tables = (models.CompileRequest, models.CompiledCubin, models.CompileSource, models.CompileWorker)
    offer(fleet, "cubin", "refused", "waiting")
    made = {lease.key: lease for lease in leases.take(fleet, "one", "13.0", 3, LEASE_S)}
    leases.end(fleet, "one", [Made(made["cubin"], b"b", b"s"), Made(made["refused"], refusal="no")])
    leases.leave(fleet, "one")
    forget_compilations(fleet)
    assert left() == [3, 1, 1, 3]
    lapse(fleet, "one")
    age(fleet, "compile_requests", "offered_at", "6 minutes")
    forget_compilations(fleet)
    assert left() == [1, 1, 1, 3]
    age(fleet, "compile_sources", "offered_at", "2 hours")
    age(fleet, "compile_workers", "started_at", "8 days")
    age(fleet, "compile_workers", "heartbeat_at", "8 days")
    forget_compilations(fleet)
    assert left() == [1, 1, 1, 1]  # what the cubin refers to stays
    age(fleet, "compile_requests", "offered_at", "8 days")
    forget_compilations(fleet)
    assert left() == [0, 0, 0, 0]


def test_retention_deletes_the_oldest_cubins_beyond_the_limit(fleet):
    offer(fleet, "a", "b", "c")
    for lease in leases.take(fleet, "one", "13.0", 3, LEASE_S):
        leases.end(fleet, "one", [Made(lease, b"x" * 1000, b"s")])
    fleet.execute(text("UPDATE compiled_cubins SET stored_at = now() - interval '1 minute' WHERE key = 'b'"))
    forget_compilations(fleet, most_bytes=2500)
    assert set(states(fleet, "a", "b", "c")) == {"a", "c"}
