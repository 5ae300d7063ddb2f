"""find_best for batches and for arrays with gaps: exact, what is known of dense arrays, and the nearest."""

from __future__ import annotations

import itertools

import pytest
from factories import LIMITS, SHAPE, TILED_16, TILED_32
from found import find_best, find_best_batch

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.service.operations.best.priors import winners
from tilewright.service.operations.best.rows import full_rows
from tilewright.service.operations.best.stored import stored_best
from tilewright.service.operations.best_cache.packed import Packer
from tilewright.service.operations.best_cache.shelf import Model, Shelf
from tilewright.service.operations.registry import problem_answer, problem_row
from tilewright.service.store import models

GEMM = catalogue().get("gemm")
BATCH, VIEW = SHAPE | {"batch": 8}, SHAPE | {"lda": 800}


def ask(rows, shape, **more):
    return find_best(rows.session, "gemm", "nvidia-h200", shape, **more)


def test_a_batch_that_was_tuned_is_found_exactly_and_is_no_answer_to_a_single_product(rows):
    rows.best(BATCH, configuration=TILED_32)
    found = ask(rows, {"batch": 8, **SHAPE})
    assert (found.match, found.problem.shape, found.launch.grid) == ("exact", BATCH, (4 * 8, 8, 1))
    assert "-DSHAPE_BATCH=8" in found.flags
    assert ask(rows, SHAPE).match == "default"


def test_a_view_gets_the_best_of_dense_arrays_and_the_answer_says_so(rows):
    rows.best(SHAPE, configuration=TILED_32)
    rows.best(BATCH, configuration=TILED_16)
    found = ask(rows, VIEW)
    assert (found.match, found.problem.shape, found.tuned_problem.shape) == ("nearest", VIEW, SHAPE)
    assert found.configuration == {"TILE_WIDTH": 32}
    assert {"-DSHAPE_LDA=800", "-DTILE_WIDTH=32"} <= set(found.flags)
    shared = ask(rows, BATCH | {"stride_b": 0})
    assert (shared.tuned_problem.shape, shared.configuration) == (BATCH, {"TILE_WIDTH": 16})


def test_a_default_that_is_stated_is_the_same_problem(rows):
    rows.best(SHAPE)
    assert ask(rows, SHAPE | {"batch": 1, "lda": SHAPE["k"], "ldc": SHAPE["n"]}).match == "exact"


def test_the_nearest_of_a_batch_is_a_batch_before_a_single_product(rows):
    rows.best(SHAPE, configuration=TILED_32)
    rows.best(SHAPE | {"batch": 16}, configuration=TILED_16)
    found = ask(rows, BATCH)
    assert (found.match, found.tuned_problem.shape) == ("nearest", SHAPE | {"batch": 16})
    alone = ask(rows, SHAPE | {"batch": 2})
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
    assert ask(rows, SHAPE | {"m": 300, "batch": 4}).match == ("nearest" if batch == 1 else "predicted")


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
