"""The charts of a study, as the data that they are."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tilewright.service.dashboard.charts import study as study_charts
from tilewright.service.dashboard.charts.parts import time_axis
from tilewright.service.operations.studies.space import DrawnTrial, Fastest, StudyDrawing

PATH = "/studies/7"


def trial(number, time_ms, outcome="measured", variant="tiled", **values):
    return DrawnTrial(number, number * 1.5, time_ms, outcome, variant, values)


TRIALS = [
    trial(0, 8.0, A=1, B=1, SAME=4),
    trial(1, None, "compile_failed", A=1, B=2, SAME=4),
    trial(2, 4.0, A=2, B=1, SAME=4),
    trial(3, 4.2, A=2, B=2, SAME=4),
    trial(4, None, "wrong_result", A=4, B=2, SAME=4),
    trial(5, 1.0, A=4, B=1, SAME=4),
]
DRAWING = StudyDrawing(TRIALS, [TRIALS[0], TRIALS[2], TRIALS[5]], 6, {"tiled": 6})


BY_A_AND_B = [
    Fastest({"A": 1, "B": 1}, 8.0),
    Fastest({"A": 1, "B": 2}, None),
    Fastest({"A": 2, "B": 1}, 4.0),
    Fastest({"A": 2, "B": 2}, 3.5),  # by a trial that is not drawn
    Fastest({"A": 4, "B": 2}, None),
    Fastest({"A": 4, "B": 1}, 1.0),
    Fastest({"A": 8, "B": 1}, 9.0),  # by trials of which none is drawn
]


def series(chart, name):
    return next(one for one in chart["series"] if one["name"] == name)


@pytest.mark.parametrize(("over", "places"), [("trials", [0, 2, 5, 5]), ("time", [0, 3.0, 7.5, 7.5])])
def test_best_so_far_falls_at_every_improvement_and_reaches_the_last_trial(over, places):
    chart = study_charts.best_so_far(DRAWING, PATH, over)
    steps = [point["value"] for point in series(chart, "best so far")["data"]]
    assert [x for x, _ in steps] == places
    assert [y for _, y in steps] == [8.0, 4.0, 1.0, 1.0]


def test_every_failure_is_a_mark_of_its_kind_at_the_upper_edge():
    chart = study_charts.best_so_far(DRAWING, PATH, "trials")
    marks = {one["name"]: one for one in chart["series"][2:]}
    assert set(marks) == {"compile failed", "wrong result"}
    assert marks["compile failed"]["symbol"] != marks["wrong result"]["symbol"]
    assert marks["wrong result"]["data"][0]["value"] == [4, chart["yAxis"]["max"]]
    assert marks["wrong result"]["data"][0]["href"] == "/studies/7/trials/4"


def test_axes_say_unit_and_direction():
    chart = study_charts.best_so_far(DRAWING, PATH, "time")
    assert chart["yAxis"]["name"] == "time, ms, lower is better"
    assert chart["xAxis"]["name"] == "seconds spent on trials"


def test_a_study_of_failures_only_is_drawn():
    drawing = StudyDrawing([TRIALS[1]], [], 1, {"tiled": 1})
    chart = study_charts.best_so_far(drawing, PATH, "trials")
    assert series(chart, "compile failed")["data"]
    assert series(chart, "best so far")["data"] == []


def test_parallel_has_an_axis_for_what_varies_and_the_time_last():
    chart = study_charts.parallel(TRIALS, ["B", "A", "SAME"], {"A": (2, 4)})
    assert [axis["id"] for axis in chart["parallelAxis"]] == ["B", "A", "time"]
    assert chart["parallelAxis"][1]["data"] == ["1", "2", "4"]
    lines = [line for one in chart["series"] for line in one["data"]]
    assert min(lines, key=lambda line: line[-1]) == ["1", "4", 1.0]
    assert series(chart, "fastest 5 %")["data"] == [["1", "4", 1.0]]
    assert chart["selection"] == {"A": [2, 4]}


def test_nothing_to_compare_is_no_chart():
    assert study_charts.parallel(TRIALS[:1], ["A"], {}) is None
    assert study_charts.best_so_far(StudyDrawing([], [], 0, {}), PATH, "trials") is None
    assert study_charts.importance({}) is None
    assert study_charts.heat_map(BY_A_AND_B, "A", "A") is None
    assert study_charts.slice_of(TRIALS[1:2], BY_A_AND_B[1:2], "A", PATH) is None


def test_importance_is_the_share_of_variance_that_a_parameter_explains():
    alone = [trial(i, 2.0**a, A=a, B=b) for i, (a, b) in enumerate([(1, 1), (1, 2), (3, 1), (3, 2)])]
    shares = study_charts.importances(alone)
    assert list(shares) == ["A", "B"]
    assert shares["A"] == pytest.approx(1)
    assert shares["B"] == pytest.approx(0)


def test_slice_joins_the_fastest_of_each_value_drawn_or_not():
    chart = study_charts.slice_of(TRIALS, BY_A_AND_B, "A", PATH)
    assert chart["xAxis"]["data"] == ["1", "2", "4", "8"]
    fastest = [p["value"] for p in series(chart, "fastest of each value")["data"]]
    assert fastest == [["1", 8.0], ["2", 3.5], ["4", 1.0], ["8", 9.0]]
    assert len(series(chart, "trials")["data"]) == 4
    assert chart["yAxis"]["max"] > 9


def test_heat_map_marks_pairs_that_only_failed():
    chart = study_charts.heat_map(BY_A_AND_B, "A", "B")
    assert [cell["value"] for cell in series(chart, "failed")["data"]] == [[0, 1], [2, 1]]
    shares = {tuple(cell["value"][:2]): cell["value"][2] for cell in series(chart, "fastest")["data"]}
    assert shares[2, 0] == 1.0
    assert shares[0, 0] == 0.125
    assert set(shares) == {(0, 0), (1, 0), (1, 1), (2, 0), (3, 0)}


def test_figures_of_the_heat_map_are_readable_on_every_colour():
    cells = series(study_charts.heat_map(BY_A_AND_B, "A", "B"), "fastest")["data"]
    for cell in cells:
        label = cell["label"]
        assert (label["color"], label["textBorderColor"]) == ("--text", "--ground")
        assert label["textBorderWidth"] >= 2


@pytest.mark.parametrize(
    ("times", "kind", "low", "high"),
    [([0.5, 7.0], "log", 0.5, 8.0), ([0.3, 40.0], "log", 0.25, 64.0), ([1.0, 1.5], "value", 0.9, 1.6)],
)
def test_time_axes_end_at_readable_numbers(times, kind, low, high):
    axis = time_axis(times)
    assert (axis["type"], axis["min"], axis["max"]) == (kind, low, high)


@given(low=st.floats(1e-6, 1e6), ratio=st.floats(1, 1e4), inner=st.lists(st.floats(0, 1), max_size=3))
@example(low=0.9008, ratio=0.9013 / 0.9008, inner=[])
@example(low=1.0, ratio=1 + 2**-52, inner=[])
def test_every_time_lies_inside_its_axis(low, ratio, inner):
    times = [low, low * ratio, *(low + (low * ratio - low) * share for share in inner)]
    axis = time_axis(times)
    if axis["type"] == "log":
        assert axis["min"] <= min(times)
    else:
        assert axis["min"] < min(times)
    assert max(times) < axis["max"]


def test_charts_are_plain_data_and_name_colours_only():
    charts = [
        study_charts.best_so_far(DRAWING, PATH, "trials"),
        study_charts.parallel(TRIALS, ["A", "B"], {}),
        study_charts.importance(study_charts.importances(TRIALS)),
        study_charts.slice_of(TRIALS, BY_A_AND_B, "A", PATH),
        study_charts.heat_map(BY_A_AND_B, "A", "B"),
    ]
    text = json.dumps(charts, allow_nan=False)
    assert "#" not in text
    assert "function" not in text
