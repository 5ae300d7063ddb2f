"""A shelf after any changes is the shelf that is filled anew; meanwhile it answers as before or as after."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.service.operations.answers import EnvironmentAnswer, Match
from tilewright.service.operations.best.stored import StoredBest
from tilewright.service.operations.best_cache import shelf
from tilewright.service.operations.best_cache.packed import Packer
from tilewright.service.operations.best_cache.shelf import Model, Shelf
from tilewright.service.operations.staleness.standing import Source, StandingFacts

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


def find(of: Shelf, m: int) -> Match | None:
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
            seen.append(find(self, 3))
            step(self, *of)
            seen.append(find(self, 3))

        monkeypatch.setattr(Shelf, name, watched)

    watch("_take_away", Shelf._take_away)

    def told():
        for one in ((row(3, 3), False), (row(100, 3), True)):
            yield one
            seen.append(find(kept, 3))

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
        assert find(kept, m) is Match.EXACT
        assert len(kept._answers) <= 3
