"""Tables of families: what supersedes what, which is found, and how `best` answers from one."""

from __future__ import annotations

import pytest
from factories import H100, NAIVE, NEW, OLD, TILED_16, TILED_32
from found import find_best
from sqlalchemy import select, update

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.service.errors import NotFoundError
from tilewright.service.operations.best.rows import EnvironmentFilter
from tilewright.service.operations.best.tables import find_table
from tilewright.service.store import models
from tilewright.service.store.models import ClaimState

GEMM = catalogue().get("gemm")
SHAPE = {"m": "1..1024", "n": 512, "k": 512}
SPANS = [(1, 64, TILED_16), (65, 1024, TILED_32)]
TIMES = {TILED_16: {1: 1.0, 64: 2.0, 1024: 9.0}, TILED_32: {1: 1.5, 64: 1.9, 1024: 4.0}}
LIBRARY = {1: 2.0, 64: 2.0, 1024: 3.0}


def table(rows, shape=SHAPE, spans=SPANS, **more) -> int:
    return rows.table(shape, spans, TIMES, **more)


def found(rows, shape=SHAPE, slug="nvidia-h200", **more):
    return find_table(rows.session, GEMM, Family.of(GEMM, shape, **more), slug)


def best(rows, m, **more):
    return find_best(rows.session, "gemm", "nvidia-h200", {"m": m, "n": 512, "k": 512}, **more)


def test_one_size_is_answered_by_the_range_that_it_lies_in(rows):
    table(rows, library_ms=LIBRARY)
    answer = best(rows, 544)
    assert (answer.match, answer.configuration, answer.sizes) == ("range", {"TILE_WIDTH": 32}, "m=65..1024")
    assert answer.launch.grid == (272, 1, 1)
    assert "-DSHAPE_M=544" in answer.flags
    assert answer.time_ms == pytest.approx(3.0)  # halfway between those that serve 64 and 1024
    assert answer.expected_loss == pytest.approx(2.0 / 1.9 - 1)  # at 64 TILED_32 would have been faster
    assert (answer.library.name, answer.library.time_ms, answer.library.faster) == ("cuBLAS 13.0", 2.5, True)
    assert answer.environment.driver == NEW.driver
    at_end = best(rows, 1)
    assert (at_end.configuration, at_end.time_ms, at_end.expected_loss) == ({"TILE_WIDTH": 16}, 1.0, 0.0)


def test_a_range_may_be_the_librarys_and_the_answer_says_that_launchers_make_its_call(rows):
    name, own_ms = "cuBLASLt 13.1.2 (its own choice)", {1024: 3.2}
    spans = [SPANS[0], (65, 600, TILED_32), (601, 1024, TILED_32, True)]  # nothing is measured in the second
    table(rows, spans=spans, library_ms=LIBRARY, own_choice_ms=own_ms, own_choice=name)
    ranges = found(rows).ranges
    assert [one.library and one.library.launched for one in ranges] == [False, None, True]
    assert (ranges[-1].library.name, ranges[0].library.name) == (name, "cuBLAS 13.0")
    library = best(rows, 1024).library
    assert (library.name, library.time_ms, library.faster, library.launched) == (name, 3.2, True, True)
    assert (best(rows, 1024).variant, best(rows, 1024).sizes) == ("tiled", "m=601..1024")
    library = best(rows, 100).library
    assert (library.name, library.launched) == ("cuBLAS 13.0", False)


def test_a_table_of_batches_answers_for_any_number_of_products(rows):
    one = {"m": 64, "n": 64, "k": 64}
    table(rows, one | {"batch": "1..1024"})
    answers = [
        find_best(rows.session, "gemm", "nvidia-h200", one | more) for more in ({}, {"batch": 64}, {"batch": 65})
    ]
    assert [answer.match for answer in answers] == ["range"] * 3
    assert [answer.sizes for answer in answers] == ["batch=1..64", "batch=1..64", "batch=65..1024"]
    assert find_best(rows.session, "gemm", "nvidia-h200", one | {"batch": 1025}).match != "range"


def test_what_was_tuned_exactly_comes_before_and_what_lies_outside_is_answered_otherwise(rows):
    table(rows)
    rows.best({"m": 544, "n": 512, "k": 512}, configuration=NAIVE)
    assert (best(rows, 544).match, best(rows, 545).match, best(rows, 1025).match) == ("exact", "range", "nearest")
    other = find_best(rows.session, "gemm", "nvidia-h200", {"m": 544, "n": 512, "k": 513})
    assert (other.match, best(rows, 545, options={"trans_b": True}).match) == ("nearest", "default")


def test_a_table_supersedes_those_within_its_range_and_no_wider_one(rows):
    wide = table(rows)
    narrow = table(rows, {**SHAPE, "m": "1..64"}, [(1, 64, TILED_32)])
    assert (found(rows).id, found(rows, {**SHAPE, "m": "2..9"}).id) == (wide, narrow)
    assert (best(rows, 8).configuration, best(rows, 65).sizes) == ({"TILE_WIDTH": 32}, "m=65..1024")
    newest = table(rows)
    assert {found(rows).id, found(rows, {**SHAPE, "m": "2..9"}).id} == {newest}
    assert found(rows, {**SHAPE, "m": "1..4096"}).id == newest  # it says itself how far it goes
    kept = rows.session.execute(select(models.FamilyTable.id, models.FamilyTable.superseded_by_id)).all()
    assert sorted(kept) == [(wide, newest), (narrow, newest), (newest, None)]


def test_tables_are_of_one_device_model_environment_and_demand_on_rows(rows):
    first, new = table(rows, environment=OLD), table(rows, environment=NEW)
    there, same = table(rows, model=H100), table(rows, spans=[(1, 1024, TILED_16)], options={"batch_invariant": True})
    assert (found(rows).id, found(rows, slug="nvidia-h100").id) == (new, there)
    assert found(rows, batch_invariant=True).id == same
    assert best(rows, 9).sizes == "m=1..64"
    older = EnvironmentFilter(driver=OLD.driver)
    assert find_table(rows.session, GEMM, Family.of(GEMM, SHAPE), "nvidia-h200", older).id == first
    with pytest.raises(NotFoundError, match=r"tilewright tune gemm --shape m=1..1024,n=512,k=512"):
        found(rows, slug="nvidia-a100")


def test_a_table_of_another_source_serves_nobody(rows):
    row = rows.session.get_one(models.FamilyTable, table(rows))
    ranges = [{**one, "source_hash": "0" * 64} for one in row.document["ranges"]]
    rows.session.execute(update(models.FamilyTable).values(document={**row.document, "ranges": ranges}))
    rows.session.expire_all()
    assert best(rows, 9).match == "default"
    with pytest.raises(NotFoundError, match="does not go with today's sources"):
        found(rows)


def test_a_configuration_that_was_found_wrong_takes_its_tables_along(rows):
    table(rows)
    study, problem, device = rows.study({"m": 100, "n": 512, "k": 512})
    claim = models.Claim(
        problem_id=problem.id,
        device_model_id=device.model_id,
        driver="580",
        configuration=TILED_32.as_json(),
        source_hash=GEMM.source_hash("tiled"),
        seen="wrong",
        job_id=rows.job(problem, device, study).id,
        state=ClaimState.CONFIRMED,
    )
    rows.session.add(claim)
    rows.session.flush()
    assert best(rows, 9).match == "default"
    with pytest.raises(NotFoundError):
        found(rows)
