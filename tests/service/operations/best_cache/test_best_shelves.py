"""When shelves are filled, kept and believed, and what happens while the database does not answer."""

import threading

import pytest
from best_in_memory import answer, committed, find, from_database, told
from caller import Caller, new_app
from every_best import commit_every_best
from factories import SHAPE, TILED_16
from sqlalchemy import func, select, text, update
from waiting import PATIENCE_S, until

from tilewright.service.operations.best_cache import watch as best_watch
from tilewright.service.operations.best_cache.asked_shelves import asked_lately, note_asked
from tilewright.service.operations.best_cache.memory import BELIEVED_S, EXPECTED_FOR_S, BestMemory
from tilewright.service.operations.best_cache.shelf import Shelf
from tilewright.service.operations.best_cache.watch import BestWatch
from tilewright.service.store import models
from tilewright.service.store.changes import Changes
from tilewright.service.store.session import session_scope


def test_while_the_database_is_silent_nothing_is_answered(client):
    now = [100.0]
    memory = BestMemory(1000, clock=lambda: now[0])
    with committed() as rows:
        rows.best()
    with session_scope() as session:
        memory.learn_models(session)
        memory.put(("gemm", "nvidia-h200"), memory.filled(session, ("gemm", "nvidia-h200"), lambda: None))
    memory.confirm()
    assert answer(memory).match == "exact"
    now[0] += BELIEVED_S * 1.01
    assert answer(memory) is None


def test_who_asks_while_a_shelf_is_filled_does_not_have_it_filled_again(client):
    memory, name = BestMemory(1000), ("gemm", "nvidia-h200")
    with committed() as rows:
        rows.best()
    with session_scope() as session:
        memory.learn_models(session)
        memory.confirm()
        assert (find(memory), memory.wanted()) == (None, name)
        shelf = memory.filled(session, name, lambda: find(memory))
        assert (find(memory), memory.wanted()) == (None, None)
        memory.put(name, shelf)
        assert find(memory).match == "exact"
        with pytest.raises(ZeroDivisionError):
            memory.filled(session, name, lambda: 1 / 0)
    memory.forget()
    with session_scope() as session:
        memory.learn_models(session)
    memory.confirm()
    assert (find(memory), memory.wanted()) == (None, name)


def test_a_shelf_that_there_is_no_room_for_stays_in_the_database(client, caplog):
    memory = BestMemory(1)
    with committed() as rows:
        rows.best(configuration=TILED_16)
        rows.best(SHAPE | {"m": 8})
    with session_scope() as session:
        memory.learn_models(session)
        assert memory.filled(session, ("gemm", "nvidia-h200"), lambda: None) is None
    assert "TILEWRIGHT_BEST_KEPT" in caplog.text


def test_a_killed_connection_is_made_again_and_no_change_is_missed(tuned):
    with session_scope() as session:
        session.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND query LIKE 'SELECT 1%' AND pid <> :own"
            ),
            {"own": session.scalar(text("SELECT pg_backend_pid()"))},
        )
    with committed() as rows:
        rows.best(SHAPE | {"m": 800}, time_ms=0.5)
        rows.session.execute(func.pg_sleep(0))
    until(lambda: (found := answer(tuned, SHAPE | {"m": 800})) and found.match == "exact")


def test_no_error_ends_the_thread(tuned, monkeypatch):
    monkeypatch.setattr(best_watch, "AGAIN_S", 0.01)
    wait, failures = Changes.wait, ["one"]

    def fails_once(*of):
        if failures:
            raise ValueError(failures.pop())
        return wait(*of)

    monkeypatch.setattr(Changes, "wait", fails_once)
    until(lambda: not failures)
    assert told(tuned) == from_database()


def test_what_was_asked_about_is_read_by_the_next_process_before_it_is_ready(client):
    commit_every_best()
    before = client.app.state.best
    assert client.get("/ready").status_code == 200
    watch = BestWatch(before)
    watch.start()
    until(lambda: find(before))
    until(noted)
    watch.stop()

    after, let_go = new_app(), threading.Event()
    watch = BestWatch(after.state.best)
    piece = Shelf.fill

    def held_up(shelf, rows):
        assert let_go.wait(PATIENCE_S)
        piece(shelf, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shelf, "fill", held_up)
        watch.start()
        refused = until(lambda: "1 of 1" in (said := Caller(after).get("/ready")).text and said)
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/not-ready")
        let_go.set()
        until(lambda: Caller(after).get("/ready").status_code == 200)
    assert len(after.state.best) > 0  # though nobody asked this process
    watch.stop()


def noted():
    with session_scope() as session:
        return asked_lately(session)


def test_what_cannot_be_read_is_not_waited_for_for_ever(client):
    now = 0.0
    memory = BestMemory(1000, clock=lambda: now)
    assert memory.what_is_missing() is None  # nobody watches it
    memory.prepare()
    assert "has not asked" in memory.what_is_missing()
    now = EXPECTED_FOR_S + 1
    assert memory.what_is_missing() is None


def test_shelves_that_nobody_asked_about_lately_are_forgotten(client):
    commit_every_best()
    with session_scope() as session:
        note_asked(session, [("gemm", "nvidia-h200"), ("gemm", "gone")])
        assert asked_lately(session) == [("gemm", "nvidia-h200")]
        session.execute(update(models.AskedShelf).values(asked_at=func.now() - text("INTERVAL '8 days'")))
        assert asked_lately(session) == []
        note_asked(session, [])
        assert session.scalar(select(func.count()).select_from(models.AskedShelf)) == 0


def test_a_watch_that_waits_for_changes_stops_at_once(configured, monkeypatch):
    begun = []
    wait = Changes.wait
    monkeypatch.setattr(Changes, "wait", lambda *of: begun.append(of) or wait(*of))
    monkeypatch.setattr(best_watch, "LOOK_EVERY_S", 60)  # for so long it would wait
    watch = BestWatch(BestMemory(100))
    for times in (1, 2):  # it may be started again
        watch.start()
        until(lambda: len(begun) >= times)  # noqa: B023 - called at once
        watch.stop()
        assert not [thread for thread in threading.enumerate() if thread.name == "best"]
