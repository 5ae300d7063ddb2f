"""The page of a study: what is drawn of it, and what a running job still has."""

import json
import re

import pytest
from factories import NAIVE, TILED_16

from tilewright.service.operations.studies import space as study_space
from tilewright.service.operations.studies.space import Fastest, drawing, fastest_by
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.tuner.outcome import Outcome

TIMES_MS = {(16, 1): None, (16, 2): None, (16, 4): 4.0, (32, 1): 3.0, (32, 2): 1.0, (32, 4): 2.0}
"""By TILE_WIDTH and another parameter; None: it failed."""


@pytest.fixture
def study_id(commit):
    """A study of these trials in that order, and one of another variant."""

    def make(rows):
        study, problem, device = rows.study()
        job = rows.job(problem, device, study)
        for (width, other), time_ms in TIMES_MS.items():
            configuration = TILED_16.of("tiled", {"TILE_WIDTH": width, "OTHER": other})
            outcome = Outcome.MEASURED if time_ms else Outcome.COMPILE_FAILED
            rows.trial(study, job, configuration, time_ms, outcome=outcome)
        rows.trial(study, job, NAIVE, 9.0)
        return study.id

    return commit(make)


@pytest.fixture
def is_sampled(monkeypatch):
    """So few trials are drawn that the study does not fit: the fastest two, and none for having failed."""
    monkeypatch.setattr(study_space, "MAX_DRAWN", 6)
    monkeypatch.setattr(study_space, "MAX_FAILED", 0)


def options(page: str, name: str) -> dict:
    """What the chart is drawn from."""
    return json.loads(re.search(rf'id="{name}-options">(.*?)</script>', page)[1])


def points(chart: dict, series: str) -> list:
    return [one["value"] for of in chart["series"] if of["name"] == series for one in of["data"]]


def test_the_fastest_of_all_trials_is_found_for_every_combination(study_id):
    with transaction() as session:
        found = fastest_by(session, study_id, "tiled", ["TILE_WIDTH", "OTHER"])
        by_width = fastest_by(session, study_id, "tiled", ["TILE_WIDTH"])
        assert fastest_by(session, study_id, "nothing", ["TILE_WIDTH"]) == []
        assert fastest_by(session, study_id, "naive", ["TILE_WIDTH"]) == [Fastest({}, 9.0)]
    assert {(one.values["TILE_WIDTH"], one.values["OTHER"]): one.time_ms for one in found} == TIMES_MS
    assert {one.values["TILE_WIDTH"]: one.time_ms for one in by_width} == {16: 4.0, 32: 1.0}


def test_heat_map_and_slice_are_over_all_trials_where_only_some_are_drawn(page, study_id, is_sampled):
    with transaction() as session:
        drawn = drawing(session, study_id)
    assert drawn.is_sample
    shown = page(f"/studies/{study_id}?variant=tiled&across=TILE_WIDTH&up=OTHER&slice=OTHER")
    heat = options(shown, "heat")
    assert (heat["xAxis"]["data"], heat["yAxis"]["data"]) == (["16", "32"], ["1", "2", "4"])
    assert sorted(points(heat, "failed")) == [[0, 0], [0, 1]]
    assert sorted(points(heat, "fastest")) == [[0, 2, 0.25], [1, 0, 0.3333], [1, 1, 1.0], [1, 2, 0.5]]
    assert points(options(shown, "slice"), "fastest of each value") == [["1", 3.0], ["2", 1.0], ["4", 2.0]]
    assert "The line is over all trials, the dots are those drawn." in shown
    assert "Every measured trial that is drawn" in shown


def test_a_parameter_that_no_trial_has_draws_nothing(page, study_id):
    shown = page(f"/studies/{study_id}?variant=tiled&across=NOTHING&up=variant&slice=NOTHING")
    assert 'id="heat-options"' not in shown
    assert 'id="slice-options"' not in shown


@pytest.mark.parametrize(
    ("phase", "budget", "done", "says"),
    [
        ("searching", (10, None), 2, "about 1 min 0 s left"),
        ("searching", (10, 25.0), 2, "about 35 s left"),
        ("searching", (None, 25.0), 0, "about 15 s left"),
        ("searching", (10, None), 0, None),
        ("searching", (10, None), 10, "about 4.0 s left"),
        ("searching", (100, 9.0), 2, "about 20 s left"),
        ("finals", (10, None), 8, "about 5.0 s left"),
        ("searching", (None, 5.0), 0, None),
    ],
)
def test_a_running_job_says_how_long_its_budget_and_its_finals_last(page, commit, phase, budget, done, says):
    def make(rows):
        study, problem, device = rows.study()
        job = rows.job(problem, device, study, models.JobState.RUNNING, done)
        job.phase, job.elapsed_s, (job.budget_trials, job.budget_seconds) = phase, 10.0, budget
        return study.id

    shown = page(f"/studies/{commit(make)}")
    assert (says in shown) if says else (" left</span>" not in shown)
