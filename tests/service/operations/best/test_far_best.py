"""find_best far from all that is tuned, and for batches and arrays with gaps."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from factories import H100, H200, LIMITS, NAIVE, NEW, OLD, SHAPE, TILED_16, TILED_32
from found import find_best, find_best_batch
from sqlalchemy import select, update

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.kernels.problem import Limits
from tilewright.kernels.space import Configuration
from tilewright.service.errors import NotFoundError
from tilewright.service.operations.best.far import COMPARED, is_near
from tilewright.service.operations.best.priors import winners
from tilewright.service.operations.best.rows import EnvironmentFilter, full_rows
from tilewright.service.operations.best.stored import stored_best
from tilewright.service.operations.best.tables import find_table
from tilewright.service.operations.best_cache.packed import Packer
from tilewright.service.operations.best_cache.shelf import Model, Shelf
from tilewright.service.operations.registry import problem_answer, problem_row
from tilewright.service.store import models
from tilewright.service.store.models import ClaimState
from tilewright.tuner.predict.estimate import cycles
from tilewright.tuner.predict.tiles import Tiles

RECORDED = Path(__file__).parents[4] / "benchmarks" / "results" / "h200" / "kernels.json"
FAR = {"m": 64, "n": 12345, "k": 64}
TUNED = {"m": 777, "n": 12345, "k": 31}
FEWEST_TRIALS = 20
"""With fewer the time of a search was up so soon that another configuration may well be faster than the winner."""


def ask(session, shape=FAR, model="nvidia-h200", **more):
    return find_best(session, "gemm", model, shape, **more)


@pytest.mark.parametrize(
    ("sizes", "others", "near"),
    [
        ((64, 64), (1024, 64), True),
        ((64, 64), (1025, 64), False),
        ((64, 64), (256, 16), True),
        ((1, 2**31 - 1), (2**31 - 1, 1), False),
        ((64, 12345, 64), (777, 12345, 31), False),
    ],
)
def test_near_is_within_four_powers_of_two_over_all_axes(sizes, others, near):
    assert is_near(sizes, others) is is_near(others, sizes) is near


def test_a_far_shape_is_not_called_near(rows):
    rows.best(TUNED, configuration=TILED_32, time_ms=0.1).default_ms = 100.0
    rows.session.flush()
    found = ask(rows.session)
    assert (found.match, found.configuration) == ("estimated", {"TILE_WIDTH": 32})
    assert (found.tuned_problem.shape, found.expected_loss) == (TUNED, None)


def test_the_default_answers_where_it_should_be_faster_than_what_is_tuned_far_away(rows):
    best = rows.best({"m": 64, "n": 48, "k": 80}, configuration=TILED_16, time_ms=1.0)
    best.default_ms = 1.01  # hardly slower there, where launching is most of it
    rows.session.flush()
    found = ask(rows.session, {"m": 4096, "n": 4096, "k": 4096})
    assert (found.match, found.time_ms) == ("default", None)


def test_a_default_of_another_variant_than_was_timed_is_not_compared(rows):
    """Rows of odd length leave the default of `wpt` out, and with it all that is known of a default's time."""
    best = rows.best({"m": 64, "n": 48, "k": 80}, configuration=TILED_16, time_ms=1.0)
    best.default_ms = 1e-3
    rows.session.flush()
    assert ask(rows.session, {"m": 1, "n": 999, "k": 4001}).match == "estimated"
    assert ask(rows.session, {"m": 4, "n": 1000, "k": 4000}).match == "estimated"
    assert ask(rows.session, {"m": 512, "n": 1024, "k": 1024}).match == "default"


def test_of_far_shapes_the_one_whose_launch_suits_the_problem_answers(rows):
    """At (64, 4096, 4096) the tiles of the nearer shape would keep half of the multiprocessors idle."""
    recorded = {row["name"]: row for row in json.loads(RECORDED.read_text())["rows"]}
    for name in ("square-1024/fp32-fma", "square-256/fp32-fma"):
        row = recorded[name]
        configuration = Configuration.from_json(row["configuration"])
        rows.best(row["shape"], row["time_ms"], configuration=configuration).default_ms = row["default_ms"]
    rows.session.flush()
    found = ask(rows.session, {"m": 64, "n": 4096, "k": 4096})
    assert (found.match, found.tuned_problem.shape["m"]) == ("estimated", 256)


def test_what_is_far_on_another_model_is_not_called_transferred(rows):
    rows.best(TUNED, configuration=TILED_32, time_ms=0.1, model=H100).default_ms = 100.0
    rows.device(H200)
    rows.session.flush()
    found = ask(rows.session)
    assert (found.match, found.device_model) == ("estimated", "nvidia-h100")
    assert ask(rows.session, TUNED | {"m": 800}).match == "transferred"


def test_few_are_compared_and_those_the_nearest(rows):
    for far in range(COMPARED + 2):
        rows.best({"m": 777, "n": 12345, "k": 31 - far}, configuration=TILED_32, time_ms=0.1)
    assert ask(rows.session).tuned_problem.shape["k"] > 31 - COMPARED


def test_recorded_winners_are_not_expected_faster_elsewhere_than_what_won_there():
    """Of an H200: a winner carried over to another shape should seldom look faster than that shape's own winner."""
    recorded = json.loads(RECORDED.read_text())
    stated = {name: tuple(v) if isinstance(v, list) else v for name, v in recorded["device_model"]["limits"].items()}
    limits = Limits(**stated | {"features": frozenset(stated["features"])})
    groups = {}
    for row in recorded["rows"]:
        groups.setdefault((row["kernel"], row["dtype"], str(row["options"])), []).append(row)
    ratios = []
    for (name, dtype, _), rows in groups.items():
        kernel = catalogue().get(name)
        tiles = Tiles(kernel)
        problems = [kernel.problem(row["shape"], dtype, row["options"]) for row in rows]
        for row, tuned in zip(rows, problems, strict=True):
            configuration = Configuration.from_json(row["configuration"])
            variant = kernel.variant(configuration.variant)
            if set(configuration.values) != {parameter.name for parameter in variant.parameters}:
                continue  # of a source that had other parameters
            cost = cycles(tiles, limits, tuned, configuration)
            for other, problem in zip(rows, problems, strict=True):
                usable = problem != tuned and variant in kernel.usable_variants(problem, limits)
                is_searched = other["trials"] >= FEWEST_TRIALS
                if is_searched and usable and variant.space().violated(configuration.values, problem, limits) is None:
                    expected_ms = row["time_ms"] * cycles(tiles, limits, problem, configuration) / cost
                    ratios.append(expected_ms / other["time_ms"])
    ratios.sort()
    assert len(ratios) > 150
    assert sum(ratio < 0.8 for ratio in ratios) / len(ratios) < 0.05
    assert 0.9 < ratios[len(ratios) // 2] < 1.2


GEMM = catalogue().get("gemm")
BATCH, VIEW = SHAPE | {"batch": 8}, SHAPE | {"lda": 800}


def ask_of(rows, shape, **more):
    return find_best(rows.session, "gemm", "nvidia-h200", shape, **more)


def test_a_batch_that_was_tuned_is_found_exactly_and_is_no_answer_to_a_single_product(rows):
    rows.best(BATCH, configuration=TILED_32)
    found = ask_of(rows, {"batch": 8, **SHAPE})
    assert (found.match, found.problem.shape, found.launch.grid) == ("exact", BATCH, (4 * 8, 8, 1))
    assert "-DSHAPE_BATCH=8" in found.flags
    assert ask_of(rows, SHAPE).match == "default"


def test_a_view_gets_the_best_of_dense_arrays_and_the_answer_says_so(rows):
    rows.best(SHAPE, configuration=TILED_32)
    rows.best(BATCH, configuration=TILED_16)
    found = ask_of(rows, VIEW)
    assert (found.match, found.problem.shape, found.tuned_problem.shape) == ("nearest", VIEW, SHAPE)
    assert found.configuration == {"TILE_WIDTH": 32}
    assert {"-DSHAPE_LDA=800", "-DTILE_WIDTH=32"} <= set(found.flags)
    shared = ask_of(rows, BATCH | {"stride_b": 0})
    assert (shared.tuned_problem.shape, shared.configuration) == (BATCH, {"TILE_WIDTH": 16})


def test_a_default_that_is_stated_is_the_same_problem(rows):
    rows.best(SHAPE)
    assert ask_of(rows, SHAPE | {"batch": 1, "lda": SHAPE["k"], "ldc": SHAPE["n"]}).match == "exact"


def test_the_nearest_of_a_batch_is_a_batch_before_a_single_product(rows):
    rows.best(SHAPE, configuration=TILED_32)
    rows.best(SHAPE | {"batch": 16}, configuration=TILED_16)
    found = ask_of(rows, BATCH)
    assert (found.match, found.tuned_problem.shape) == ("nearest", SHAPE | {"batch": 16})
    alone = ask_of(rows, SHAPE | {"batch": 2})
    assert alone.tuned_problem.shape == SHAPE


def test_one_question_may_hold_shapes_of_every_kind(rows):
    rows.best(SHAPE, configuration=TILED_32)
    found = find_best_batch(rows.session, "gemm", "nvidia-h200", [BATCH, SHAPE, VIEW, SHAPE | {"m": 300}])
    assert [answer.match for answer in found] == ["nearest", "exact", "nearest", "nearest"]
    assert [answer.problem.shape for answer in found] == [BATCH, SHAPE, VIEW, SHAPE | {"m": 300}]


@pytest.mark.parametrize("batch", [1, 8])
def test_batches_are_predicted_from_four_batches_and_not_from_single_products(rows, batch):
    for m in (128, 256, 512, 1024):
        shape = SHAPE | {"m": m} | ({"batch": batch} if batch > 1 else {})
        trial = rows.trial_of(rows.best(shape, configuration=TILED_32))
        study, job = (
            rows.session.get_one(models.Study, trial.study_id),
            rows.session.get_one(models.TuningJob, trial.job_id),
        )
        for x, y in itertools.product((16, 32, 64), (2, 4, 8)):
            rows.trial(study, job, Configuration.of("naive", {"BLOCK_X": x, "BLOCK_Y": y}), 10.0 + x)
    assert ask_of(rows, SHAPE | {"m": 300, "batch": 4}).match == ("nearest" if batch == 1 else "predicted")


def test_memory_leaves_batches_to_the_database_and_never_takes_one_for_a_single_product(rows):
    shelf = Shelf(GEMM, Model(1, "nvidia-h200", LIMITS), Packer())
    rows.best(BATCH, configuration=TILED_32)
    rows.best(SHAPE | {"m": 999}, configuration=TILED_16)
    shelf.fill(stored_best(row) for row in rows.session.execute(full_rows()))
    assert len(shelf) == 1
    assert shelf.find(BATCH, "float32", {}) is None
    assert shelf.find(SHAPE, "float32", {}) is None
    assert shelf.find(SHAPE | {"m": 999}, "float32", {}).match == "exact"


def test_what_was_best_for_a_batch_is_tried_first_for_another(rows):
    rows.best(SHAPE | {"batch": 16}, configuration=TILED_16)
    best = rows.best(SHAPE, configuration=TILED_32)
    study = rows.session.get_one(models.Study, rows.trial_of(best).study_id)
    assert winners(rows.session, GEMM, GEMM.problem(BATCH), study) == [TILED_16, TILED_32]


def test_a_stored_problem_shows_its_axes_in_the_kernels_order(rows):
    rows.best(BATCH)
    row = problem_row(rows.session, GEMM.problem({**BATCH, "ldc": 128, "lda": 1000}))
    assert list(problem_answer(row).shape) == ["m", "n", "k", "batch", "lda", "ldc"]


RANGE = {"m": "1..1024", "n": 512, "k": 512}
SPANS = [(1, 64, TILED_16), (65, 1024, TILED_32)]
TIMES = {TILED_16: {1: 1.0, 64: 2.0, 1024: 9.0}, TILED_32: {1: 1.5, 64: 1.9, 1024: 4.0}}
LIBRARY = {1: 2.0, 64: 2.0, 1024: 3.0}


def table(rows, shape=RANGE, spans=SPANS, **more) -> int:
    return rows.table(shape, spans, TIMES, **more)


def found(rows, shape=RANGE, slug="nvidia-h200", **more):
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
    narrow = table(rows, {**RANGE, "m": "1..64"}, [(1, 64, TILED_32)])
    assert (found(rows).id, found(rows, {**RANGE, "m": "2..9"}).id) == (wide, narrow)
    assert (best(rows, 8).configuration, best(rows, 65).sizes) == ({"TILE_WIDTH": 32}, "m=65..1024")
    newest = table(rows)
    assert {found(rows).id, found(rows, {**RANGE, "m": "2..9"}).id} == {newest}
    assert found(rows, {**RANGE, "m": "1..4096"}).id == newest  # it says itself how far it goes
    kept = rows.session.execute(select(models.FamilyTable.id, models.FamilyTable.superseded_by_id)).all()
    assert sorted(kept) == [(wide, newest), (narrow, newest), (newest, None)]


def test_tables_are_of_one_device_model_environment_and_demand_on_rows(rows):
    first, new = table(rows, environment=OLD), table(rows, environment=NEW)
    there, same = table(rows, model=H100), table(rows, spans=[(1, 1024, TILED_16)], options={"batch_invariant": True})
    assert (found(rows).id, found(rows, slug="nvidia-h100").id) == (new, there)
    assert found(rows, batch_invariant=True).id == same
    assert best(rows, 9).sizes == "m=1..64"
    older = EnvironmentFilter(driver=OLD.driver)
    assert find_table(rows.session, GEMM, Family.of(GEMM, RANGE), "nvidia-h200", older).id == first
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
