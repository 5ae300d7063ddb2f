"""Shelves: filled, kept, believed, changed; and what happens while the database is away."""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime

import pytest
from best_in_memory import answer, committed, find, from_database, told
from caller import Caller, new_app
from factories import SHAPE, TILED_16, commit_every_best
from sqlalchemy import func, select, text, update
from waiting import PATIENCE_S, until

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.service.operations.answers import EnvironmentAnswer, Match
from tilewright.service.operations.best.stored import StoredBest
from tilewright.service.operations.best_cache import shelf
from tilewright.service.operations.best_cache import watch as best_watch
from tilewright.service.operations.best_cache.asked_shelves import asked_lately, note_asked
from tilewright.service.operations.best_cache.memory import BELIEVED_S, EXPECTED_FOR_S, BestMemory
from tilewright.service.operations.best_cache.packed import Packer
from tilewright.service.operations.best_cache.shelf import Model, Shelf
from tilewright.service.operations.best_cache.watch import BestWatch
from tilewright.service.operations.staleness.standing import Source, StandingFacts
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


GEMM = catalogue().get("gemm")
MODEL = Model(1, "gpu", Limits(compute_capability=(9, 0), multiprocessors=132, memory_bytes=10**11))
CONFIGURATION = GEMM.space(GEMM.problem(GEMM.example_shape), MODEL.limits, only=["tiled"]).defaults()[0]
SOURCE = Source(CONFIGURATION.variant, GEMM.source_hash(CONFIGURATION.variant))
ENVIRONMENT = EnvironmentAnswer(**dict.fromkeys(EnvironmentAnswer.model_fields, "x") | {"origin": None})
VERIFIED = datetime(2026, 11, 20, tzinfo=UTC)
RANKED = 6


def row(row_id: int, m: int, dtype: str = "float32", time_ms: float = 1.0) -> StoredBest:
    shape = {"m": m, "n": 48, "k": 80}
    seen = StandingFacts.of((False,) * 3, (), {})
    options = dict(GEMM.problem(shape, dtype).options)
    of_study = (ENVIRONMENT, 1, row_id, 0, VERIFIED, "warm", 0)
    figures = (time_ms, time_ms, time_ms, 1.0, 1.0, None, 2.0, 3.0, None, None, None, None, None)
    return StoredBest(row_id, "gpu", shape, dtype, options, CONFIGURATION, SOURCE, seen, *of_study, *figures)


def filled(*rows: StoredBest) -> Shelf:
    made = Shelf(GEMM, MODEL, Packer())
    made.fill(rows)
    return made


def counts(of: Shelf) -> dict[object, int]:
    return {kind: of._counts[number] for kind, number in of._kinds.items()}


def answered(of: Shelf, m: int) -> bytes | None:
    found = of.find({"m": m, "n": 48, "k": 80}, "float32", {})
    return None if found is None else found.as_json


def match_of(of: Shelf, m: int) -> Match | None:
    found = of.find({"m": m, "n": 48, "k": 80}, "float32", {})
    return None if found is None else found.match


@pytest.mark.parametrize("seed", range(20))
def test_a_changed_shelf_is_the_shelf_filled_anew(seed):
    draw = random.Random(seed)
    ids = iter(range(1, 10**6))
    current = {one.id: one for one in (row(next(ids), m) for m in range(1, draw.randint(1, 2 * RANKED)))}
    kept = filled(*current.values())
    for _ in range(12):
        gone = draw.sample(sorted(current), draw.randint(0, min(4, len(current))))
        new = [
            row(next(ids), draw.randint(1, 40), draw.choice(["float32", "float32", "float64"]), draw.random())
            for _ in range(draw.randint(0, 4))
        ]
        told = [(current.pop(row_id), False) for row_id in gone] + [(one, True) for one in new]
        current |= {one.id: one for one in new}
        told += [(current[row_id], True) for row_id in draw.sample(sorted(current), min(2, len(current)))]  # told twice
        draw.shuffle(told)
        kept.replace({one.id: (one, is_current) for one, is_current in told}.values())
        anew = filled(*current.values())
        assert {kind: count for kind, count in counts(kept).items() if count} == counts(anew)
        for m in range(1, 41):
            assert answered(kept, m) == answered(anew, m)
        assert {row_id for ids in kept._ids.values() for row_id in ids} == set(kept._rows) == set(current)


def test_a_tuned_problem_is_never_answered_with_another_while_its_best_changes(monkeypatch):
    kept = filled(*(row(row_id, row_id) for row_id in range(1, 4 * RANKED)))
    seen = []

    def watch(name, step):
        def watched(self, *of):
            seen.append(match_of(self, 3))
            step(self, *of)
            seen.append(match_of(self, 3))

        monkeypatch.setattr(Shelf, name, watched)

    watch("_take_away", Shelf._take_away)

    def told():
        for one in ((row(3, 3), False), (row(100, 3), True)):
            yield one
            seen.append(match_of(kept, 3))

    kept.replace(told())
    assert len(seen) == 4
    assert set(seen) == {Match.EXACT}
    assert kept._ids[kept._key_of(GEMM.problem({"m": 3, "n": 48, "k": 80}))] == (100,)


def test_an_answer_is_kept_as_bytes_until_a_row_changes():
    kept = filled(row(1, 8), row(2, 64))
    asked = {"m": 8, "n": 48, "k": 80}, "float32", {}
    first = kept.find(*asked)
    assert kept.find(*asked) is first
    kept.replace([(row(2, 64), False)])
    again = kept.find(*asked)
    assert again is not first
    assert again == first


def test_an_answer_made_while_rows_change_is_not_kept(monkeypatch):
    kept = filled(row(1, 8, time_ms=2.0))
    asked, read = ({"m": 8, "n": 48, "k": 80}, "float32", {}), Shelf._exact

    def changed_meanwhile(self, problem):
        found = read(self, problem)
        monkeypatch.setattr(Shelf, "_exact", read)
        self.replace([(row(2, 8, time_ms=1.0), True), (row(1, 8), False)])
        return found

    monkeypatch.setattr(Shelf, "_exact", changed_meanwhile)
    assert b'"time_ms":2.0' in kept.find(*asked).as_json
    assert b'"time_ms":1.0' in kept.find(*asked).as_json


def test_the_answers_that_are_kept_are_bounded(monkeypatch):
    monkeypatch.setattr(shelf, "MOST_ANSWERS", 3)
    kept = filled(*(row(m, m) for m in range(1, 9)))
    for m in range(1, 9):
        assert match_of(kept, m) is Match.EXACT
        assert len(kept._answers) <= 3
