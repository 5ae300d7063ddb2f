"""The page of a study: what is drawn of it, and what a running job still has."""

import json
import re

import pytest
from factories import NAIVE, TILED_16, TILED_32

from tilewright.service.dashboard.formatting import TIMES
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.studies.space import Fastest, fastest_by
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


def parameter(kernel: str, variant: str, name: str):
    """The declared parameter."""
    return next(one for one in catalogue().get(kernel).variant(variant).parameters if one.name == name)


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


def test_heat_map_and_slice_are_over_all_trials(page, study_id):
    shown = page(f"/studies/{study_id}?variant=tiled&across=TILE_WIDTH&up=OTHER&slice=OTHER")
    heat = options(shown, "heat")
    assert (heat["xAxis"]["data"], heat["yAxis"]["data"]) == (["16", "32"], ["1", "2", "4"])
    assert sorted(points(heat, "failed")) == [[0, 0], [0, 1]]
    assert sorted(cell[:3] for cell in points(heat, "fastest")) == [
        [0, 2, 0.25],
        [1, 0, 0.3333],
        [1, 1, 1.0],
        [1, 2, 0.5],
    ]
    assert points(options(shown, "slice"), "fastest of each value") == [["1", 3.0], ["2", 1.0], ["4", 2.0]]


def test_importance_says_over_how_many_trials_and_is_not_shown_for_few(page, study_id, commit):
    assert "That takes 50 measured trials of the variant; it has 4." in page(f"/studies/{study_id}?variant=tiled")

    def add(rows):
        study, problem, device = rows.study({"m": 64, "n": 64, "k": 64})
        job = rows.job(problem, device, study)
        for place in range(60):
            configuration = TILED_16.of("tiled", {"TILE_WIDTH": 16 + 16 * (place % 2), "OTHER": place})
            rows.trial(study, job, configuration, 1.0 + place % 2)
        return study.id

    shown = page(f"/studies/{commit(add)}")
    assert "of all 60 measured trials" in shown
    assert re.search(r"another parameter came first in \d+ of them", shown)
    assert sum(x for x, *_ in points(options(shown, "importance"), "share")) == pytest.approx(100, abs=0.2)


def test_the_headline_is_the_settled_winner_and_the_fastest_trial_is_called_that(page, commit):
    def make(rows):
        best = rows.best(time_ms=0.14, library_ms=0.28)
        best.roof_ratio, best.ties = 0.5, 2
        trial = rows.trial_of(best)
        trial.time_ms = trial.warm_ms = 0.0894
        return trial.study_id

    shown = page(f"/studies/{commit(make)}")
    figures = re.findall(r'<b class="figure">(.*?)</b>', shown)
    assert figures == ["140\N{NO-BREAK SPACE}\N{MICRO SIGN}s", f"{TIMES}2.00", f"{TIMES}2.00", "50\N{NO-BREAK SPACE}%"]
    assert re.search(r"139\s\Ss to 141\s\Ss", shown)
    assert "2 other finalists within the noise of it" in shown
    assert re.search(
        r"The only measured trial</dt><dd>89.4\s\Ss <small><a[^>]*>trial 0</a>, its time before the finals", shown
    )


def test_a_study_whose_trials_and_job_failed_says_so_and_draws_no_times(page, commit):
    def make(rows):
        study, problem, device = rows.study()
        job = rows.job(problem, device, study, state=models.JobState.FAILED)
        job.error = "Nothing could be compiled."
        rows.trial(study, job, TILED_16, outcome="compile_failed")
        return study.id

    shown = page(f"/studies/{commit(make)}")
    assert "The last job of this study</a> failed: Nothing could be compiled." in shown
    assert "nothing was measured" in shown
    assert "The only trial failed, so there is no time to draw." in shown
    assert "data-chart" not in shown
    assert "Heat map" not in shown


def test_library_and_default_are_drawn_where_finals_timed_them(page, commit):
    study_id = commit(lambda rows: rows.trial_of(rows.best(time_ms=1.0, library_ms=1.5)).study_id)
    for name in ("best-by-trial", "best-by-time"):
        lines = [one["name"] for one in options(page(f"/studies/{study_id}"), name)["series"]]
        assert lines[-2:] == ["library 1.50\N{NO-BREAK SPACE}ms", "default 2.00\N{NO-BREAK SPACE}ms"]


def test_a_running_study_keeps_what_is_drawn_and_where(page, commit):
    def make(rows, trials, state):
        study, problem, device = rows.study({"m": 32 + trials, "n": 64, "k": 64})
        job = rows.job(problem, device, study, state, trials)
        for place in range(trials):
            rows.trial(study, job, TILED_16.of("tiled", {"TILE_WIDTH": 8 << place}), 1.0)
        rows.trial(study, job, NAIVE, 2.0)
        return study.id

    def axis(study_id):
        return options(page(f"/studies/{study_id}?variant=tiled&slice=TILE_WIDTH"), "slice")["xAxis"]["data"]

    declared = [str(value) for value in parameter("gemm", "tiled", "TILE_WIDTH").values]
    running = commit(lambda rows: make(rows, 2, models.JobState.RUNNING))
    assert axis(running) == declared
    assert axis(commit(lambda rows: make(rows, 3, models.JobState.DONE))) == ["8", "16", "32"]
    shown = page(f"/studies/{running}")
    source = re.search(r'id="charts" hx-get="([^"]*)"', shown)[1]
    assert "slice=TILE_WIDTH" in source
    assert "x=" in source
    assert "variant=" in source
    assert re.findall(r'<a href="[^"]*variant=(\w+)', shown) == ["naive", "tiled"]


def test_columns_are_sent_and_what_is_no_column_is_refused(client, study_id):
    found = client.get(f"/studies/{study_id}/columns?variant=tiled&with=registers")
    assert found.status_code == 200
    assert found.headers["content-type"] == "application/octet-stream"
    refused = client.get(f"/studies/{study_id}/columns?variant=tiled&with=password")
    assert refused.status_code == 422
    assert "columns are time, trial, gflops" in refused.text
    assert client.get("/studies/999/columns?variant=tiled").status_code == 404


def test_a_selection_may_name_resources(page, study_id):
    shown = page(f"/studies/{study_id}?select=trial=3..4")
    assert "2 trials selected of 7" in shown
    assert "No trial matches" in page(f"/studies/{study_id}?select=registers=8..16")


def test_a_bound_that_no_value_has_selects_nothing_and_one_beyond_numbers_is_refused(page, study_id):
    assert "No trial matches" in page(f"/studies/{study_id}?select=TILE_WIDTH={'9' * 18}..{'9' * 18}")
    assert "must have the form NAME=LOW..HIGH" in page(f"/studies/{study_id}?select=time=0..{'9' * 400}", 422)


@pytest.mark.parametrize("path", ["/studies/{}", "/device-models/nvidia-h200?kernel=gemm"])
def test_a_selection_of_the_variant_is_refused_with_the_remedy(page, study_id, path):
    address = path.format(study_id)
    shown = page(f"{address}{'&' if '?' in address else '?'}select=variant=1..2", 422)
    assert "a variant has no bounds; choose one by variant=NAME" in shown


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


def test_the_headline_is_the_settled_winner_and_the_fastest_trial_is_named_so(page, commit):
    def settled(rows):
        best = rows.best(time_ms=2.0)
        trial = rows.trial_of(best)
        study = rows.session.get_one(models.Study, trial.study_id)
        rows.trial(study, rows.session.get_one(models.TuningJob, best.job_id), TILED_32, 1.25)
        return study.id

    facts = page(f"/studies/{commit(settled)}").split("</dl>")[0]
    assert 'class="figure">2.00\N{NO-BREAK SPACE}ms' in facts
    assert "Fastest single trial</dt><dd>1.25\N{NO-BREAK SPACE}ms" in facts
