"""Predictions while the shapes that they are made from change: nobody waits, nothing retracted counts."""

import pytest
from factories import Rows
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import Session
from test_predicted_answers import (
    ASKED,
    SHAPES,
    ask,
    count_fits,
    shape_of,
    supersede,
    tune,  # noqa: F401 - a fixture
)

from tilewright.kernels.space import Configuration
from tilewright.service.operations.best import predictions
from tilewright.service.operations.best.predictions import KEPT_FITS
from tilewright.service.operations.best.retractions import retract
from tilewright.service.store import models
from tilewright.service.store.session import sqlalchemy_url
from tilewright.tuner.predict.predictor import Predictor

NEAR = ASKED | {"m": ASKED["m"] + 2}


@pytest.fixture
def rows(configured):
    """Of a session that a test commits, so that other threads see what was tuned."""
    engine = create_engine(sqlalchemy_url(configured))
    with Session(engine) as session:
        yield Rows(session)
    engine.dispose()


@pytest.fixture
def tuned(rows, tune):  # noqa: F811
    """Some tuned shapes."""
    for shape in SHAPES:
        tune(shape_of(*shape))
    rows.session.commit()


def predicted_from(rows):
    found = ask(rows)
    assert found.match == "predicted"
    return found.tuned_problem.shape


def test_a_newly_tuned_shape_counts_at_once(rows, tuned, tune):  # noqa: F811
    assert predicted_from(rows) != NEAR
    tune(NEAR)
    rows.session.commit()
    assert predicted_from(rows) == NEAR


def test_what_is_retracted_counts_no_more_at_once(rows, tuned, tune):  # noqa: F811
    near = tune(NEAR)
    rows.session.commit()
    assert predicted_from(rows) == NEAR
    near.retracted_at = func.now()
    rows.session.commit()
    assert predicted_from(rows) != NEAR


def test_no_older_fit_stands_in_that_was_made_with_what_is_retracted(rows, tuned, tune):  # noqa: F811
    """What stands stays the same but for a newer best: the retracted one was superseded before the first fit."""
    near = tune(NEAR)
    supersede(rows, near, Configuration.of("tiled", {"TILE_WIDTH": 24}))
    rows.session.commit()
    wide = ask(rows)
    assert (wide.tuned_problem.shape, wide.configuration) == (NEAR, {"TILE_WIDTH": 32})
    fitted = count_fits(rows)
    retract(rows.session, near.id, "wrong")
    tune(NEAR | {"m": 4096})
    rows.session.commit()
    ask(rows)
    assert len(fitted) == 1  # before the answer


def stored_hashes(rows):
    rows.session.rollback()
    return set(rows.session.scalars(select(models.Predictor.records_hash)))


def test_a_fit_is_stored_and_neither_made_nor_stored_again(rows, tuned, monkeypatch):
    found = ask(rows)
    rows.session.commit()
    assert len(stored_hashes(rows)) == 1
    monkeypatch.setattr(predictions, "_KEPT", predictions.Predictors())  # a process that has just started
    monkeypatch.setattr(Predictor, "_fitted", None)  # a fit would fail
    assert ask(rows) == found
    rows.session.commit()
    assert len(stored_hashes(rows)) == 1


def test_of_a_series_the_newest_fits_are_kept(rows, tuned, tune):  # noqa: F811
    seen = set()
    for m in range(KEPT_FITS + 1):
        tune(NEAR | {"m": NEAR["m"] + m})
        rows.session.commit()
        ask(rows)
        rows.session.commit()
        now = stored_hashes(rows)
        assert len(now - seen) == 1
        seen |= now
    assert len(now) == KEPT_FITS < len(seen)


def test_a_stored_fit_of_other_records_is_not_used(rows, tuned, tune):  # noqa: F811
    """A trial that was added to a study since changes the hash, though the best is the same."""
    ask(rows)
    rows.session.commit()
    before = stored_hashes(rows)
    study = rows.session.scalars(select(models.Study)).first()
    job = rows.session.scalars(select(models.TuningJob)).first()
    rows.trial(study, job, Configuration.of("tiled", {"TILE_WIDTH": 12}), 0.01)
    rows.session.commit()
    predictions._KEPT.predictors.clear()
    ask(rows)
    rows.session.commit()
    assert len(stored_hashes(rows) - before) == 1


@pytest.mark.parametrize("shape", [{"m": 700, "n": 600}, {"m": 700, "n": 600, "k": 500, "batch": 2}])
def test_what_was_tuned_when_the_kernel_had_other_axes_is_near_to_nothing(rows, shape):
    best = rows.best({"m": 701, "n": 600, "k": 500})
    assert ask(rows).match == "nearest"
    rows.session.get_one(models.Problem, best.problem_id).shape = shape
    rows.session.commit()
    assert ask(rows).match == "default"


def test_another_process_predicts_nothing_anew_that_was_stored(rows, tuned, monkeypatch):
    first = ask(rows)
    rows.session.commit()
    monkeypatch.setattr(predictions, "_KEPT", predictions.Predictors())
    monkeypatch.setattr(Predictor, "__init__", None)
    assert ask(rows) == first
