"""A best is compared with the last one before it that was measured under the same conditions, beyond noise."""

from dataclasses import replace
from datetime import timedelta

import pytest
from factories import H100, NEW, OLD, SHAPE
from sqlalchemy import func

from tilewright.service.operations.staleness.regressions import slowdowns
from tilewright.service.store import models

OLDEST = replace(OLD, driver="550.54")


def retract(rows, best):
    best.retracted_at = func.now()


def measure_cold(rows, best):
    best.l2 = "cold"


def measure_elsewhere(rows, best):
    rows.session.get_one(models.Environment, best.environment_id).origin = "somebody else"


def measure_noisily(rows, best):
    best.ci_low_ms, best.ci_high_ms = best.time_ms * 0.7, best.time_ms


def measure_later(rows, best):
    best.verified_at += timedelta(seconds=1)


@pytest.mark.parametrize(
    ("of", "change", "slower_ms", "slowdown"),
    [
        ({}, None, 1.25, 1.25),
        ({}, None, 1.033, 1.033),  # two intervals of 1 % and twice the drift of 2 % make 3.2 %
        ({}, None, 1.031, None),
        ({}, None, 0.5, None),
        ({"shape": SHAPE | {"m": 512}}, None, 1.25, None),
        ({"model": H100}, None, 1.25, None),
        ({}, retract, 1.25, 2.5),
        ({}, measure_cold, 1.25, 2.5),
        ({}, measure_elsewhere, 1.25, None),  # the one before it has that environment too
        ({}, measure_noisily, 1.25, None),
        ({}, measure_later, 1.25, 2.5),
    ],
)
def test_the_best_before_it_is_the_last_of_the_same_conditions(rows, of, change, slower_ms, slowdown):
    if change is not measure_elsewhere and not of:
        rows.best(time_ms=0.5, environment=OLDEST)
    before = rows.best(time_ms=1.0, environment=OLD, **of)
    if change:
        change(rows, before)
    best = rows.best(time_ms=slower_ms, environment=NEW)
    rows.session.flush()
    expected = {} if slowdown is None else {best.id: pytest.approx(slowdown)}
    found = slowdowns(rows.session, [best.problem_id])
    assert {row: slower for row, slower in found.items() if row == best.id} == expected


def test_retracted_bests_are_no_regressions(rows):
    rows.best(time_ms=1.0, environment=OLD)
    best = rows.best(time_ms=2.0, environment=NEW)
    retract(rows, best)
    rows.session.flush()
    assert slowdowns(rows.session, [best.problem_id]) == {}
