"""A shelf after any changes is the shelf that is filled anew; meanwhile it answers as before or as after."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.service.operations.answers import EnvironmentAnswer, Match
from tilewright.service.operations.best.stored import StoredBest
from tilewright.service.operations.best_cache import nearby, shelf
from tilewright.service.operations.best_cache.packed import Packer
from tilewright.service.operations.best_cache.rendered import Templates
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
    made = Shelf(GEMM, MODEL, Packer(), Templates())
    made.fill(rows)
    made.arrange()
    return made


def ranked(of: Shelf) -> dict[str, list[tuple[int, tuple[int, ...], float]]]:
    """By dtype the ids, sizes and times that are found by distance."""
    found = {}
    for (dtype, _), manner in of._manners.items():
        near = of._nearby.get(manner)
        if near is not None and near.keys:
            sizes = [of._sizes(key) for key in near.keys]
            assert near.log_sizes.T.tolist() == [pytest.approx([math.log(size) for size in one]) for one in sizes]
            found[dtype] = list(zip(near.ids.tolist(), sizes, near.times_ms.tolist(), strict=True))
    return found


def find(of: Shelf, m: int) -> Match | None:
    found = of.find(GEMM.problem({"m": m, "n": 48, "k": 80}))
    return None if found is None else found.match


@pytest.fixture
def few(monkeypatch):
    """So few results are ranked."""
    for module in (shelf, nearby):
        monkeypatch.setattr(module, "MAX_RANKED", RANKED)


@pytest.fixture
def arrangements(monkeypatch) -> list[int]:
    """How many rows were read for each arrangement of a whole group."""
    seen: list[int] = []
    arrange = Shelf._arrange

    def counted(self, manner, rows):
        seen.append(len(rows))
        arrange(self, manner, rows)

    monkeypatch.setattr(Shelf, "_arrange", counted)
    return seen


@pytest.mark.usefixtures("few")
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
        assert ranked(kept) == ranked(filled(*current.values()))
        assert {row_id for records in kept._records.values() for row_id in map(kept.packer.row_id, records)} == set(
            current
        )


@pytest.mark.usefixtures("few")
def test_publishing_among_more_rows_than_are_ranked_does_not_look_at_all_of_them(arrangements):
    kept = filled(*(row(row_id, row_id) for row_id in range(1, 4 * RANKED)), row(1000, 1, "float64"))
    arrangements.clear()
    new = [(row(100 + m, m), True) for m in (1, 23, 50)]  # of an unranked problem, of a ranked one, of a new one
    kept.replace([(row(1, 1), False), (row(23, 23), False), *new])
    kept.replace([(row(2, 2), False), (row(3, 3), False)])  # which nobody finds by distance
    assert arrangements == []
    kept.replace([(row(103 - 2, 1), False), (row(150, 50), False), (row(22, 22), False)])
    assert arrangements == [4 * RANKED - 1 - 2 + 3 - 2 - 3], "once for all of them, and that group alone"


@pytest.mark.usefixtures("few")
def test_a_tuned_problem_is_never_answered_with_another_while_its_best_changes(monkeypatch):
    kept = filled(*(row(row_id, row_id) for row_id in range(1, 4 * RANKED)))
    seen = []

    def watch(name, step):
        def watched(self, *of):
            seen.append(find(self, 3))
            step(self, *of)
            seen.append(find(self, 3))

        monkeypatch.setattr(Shelf, name, watched)

    watch("_rearrange", Shelf._rearrange)
    watch("_take_away", Shelf._take_away)

    def told():
        for one in ((row(3, 3), False), (row(100, 3), True)):
            yield one
            seen.append(find(kept, 3))

    kept.replace(told())
    assert len(seen) == 6
    assert set(seen) == {Match.EXACT}
    assert kept.packer.row_id(kept._records[kept._key_of(GEMM.problem({"m": 3, "n": 48, "k": 80}))][0]) == 100
