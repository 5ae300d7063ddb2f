"""Predictions while the shapes that they are made from change: nobody waits, nothing retracted counts."""

import pytest
from factories import Rows
from sqlalchemy import create_engine, func, text
from sqlalchemy.orm import Session
from test_predicted_answers import (
    ASKED,
    SHAPES,
    TRIED,
    ask,
    count_fits,
    shape_of,
    supersede,
    tune,  # noqa: F401 - a fixture
)
from waiting import until

from tilewright.kernels.space import Configuration
from tilewright.service.operations.best import predictors
from tilewright.service.operations.best.predictors import QUICK_TRIALS, Predictors
from tilewright.service.operations.best.retractions import retract
from tilewright.service.store import models
from tilewright.service.store.session import sqlalchemy_url

NEAR = ASKED | {"m": ASKED["m"] + 2}


@pytest.fixture
def rows(configured):
    """Of a session that a test commits, so that other threads see what was tuned."""
    engine = create_engine(sqlalchemy_url(configured))
    with Session(engine) as session:
        yield Rows(session)
    engine.dispose()


@pytest.fixture
def tuned(rows, tune, monkeypatch):  # noqa: F811
    """Some tuned shapes, and a fit to all their trials counts as a long one."""
    monkeypatch.setattr(predictors, "QUICK_TRIALS", len(SHAPES) * len(TRIED) - 1)
    for shape in SHAPES:
        tune(shape_of(*shape))
    rows.session.commit()


def predicted_from(rows):
    found = ask(rows)
    assert found.match == "predicted"
    return found.tuned_problem.shape


def test_a_newly_tuned_shape_counts_soon_and_until_then_the_older_fit_answers(rows, tuned, tune):  # noqa: F811
    before = predicted_from(rows)
    assert before != NEAR
    tune(NEAR)
    rows.session.commit()
    assert predicted_from(rows) in (before, NEAR)
    until(lambda: predicted_from(rows) == NEAR)


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


def test_an_older_fit_answers_while_another_thread_fits(rows):
    kept = Predictors()

    def fit(session):
        return None, session.scalar(text("SELECT 1000"))

    def fitted(series, ids, may_stand_in):
        return kept.fitted(rows.session, series, ids, fit, may_stand_in)

    first = fitted("one", (1, 2), lambda older: True)
    assert fitted("one", (1, 2, 3), lambda older: older == (1, 2)) is first
    assert fitted("another", (1, 2, 3), lambda older: True).ids == (1, 2, 3)
    assert fitted("one", (1, 4), lambda older: False).ids == (1, 4)
    until(lambda: fitted("one", (1, 2, 3), lambda older: True).ids == (1, 2, 3))


def test_a_quick_fit_is_made_while_the_caller_waits(rows):
    kept = Predictors()
    for ids in ((1,), (1, 2)):
        found = kept.fitted(rows.session, "one", ids, lambda session: (None, QUICK_TRIALS), lambda older: True)
        assert found.ids == ids


def test_a_fit_that_fails_is_tried_again(rows):
    kept = Predictors()

    def fails(session):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        kept.fitted(rows.session, "one", (1,), fails, lambda older: True)
    assert kept.fitted(rows.session, "one", (1,), lambda session: (None, 1), lambda older: True).ids == (1,)


@pytest.mark.parametrize("shape", [{"m": 700, "n": 600}, {"m": 700, "n": 600, "k": 500, "batch": 2}])
def test_what_was_tuned_when_the_kernel_had_other_axes_is_near_to_nothing(rows, shape):
    best = rows.best({"m": 701, "n": 600, "k": 500})
    assert ask(rows).match == "nearest"
    rows.session.get_one(models.Problem, best.problem_id).shape = shape
    rows.session.commit()
    assert ask(rows).match == "default"
