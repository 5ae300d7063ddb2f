"""The charts of a study, as the data that they are."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tilewright.service.dashboard.charts import parameters as parameter_charts
from tilewright.service.dashboard.charts import study as study_charts
from tilewright.service.dashboard.charts.parts import Level, time_axis
from tilewright.service.operations.studies.importance import Uncertainty
from tilewright.service.operations.studies.space import Fastest, Improvement, Search, VariantTrials

STEPS = [
    Improvement(0, 0.0, 8.0, "tiled", {"A": 1, "B": 1}),
    Improvement(2, 3.0, 4.0, "tiled", {"A": 2, "B": 1}),
    Improvement(5, 7.5, 1.0, "tiled", {"A": 4, "B": 1}),
]
TRIALS = VariantTrials(7, 1.0, 9.0)
SEARCH = Search(STEPS, 6, 9.0, {"tiled": TRIALS})
LEVELS = [Level("cuBLAS 13.0", 0.9, "--series-3"), Level("default", 12.0, "--series-4", "dotted")]
VALUES = {"A": [1, 2, 4, 8], "B": [1, 2]}


BY_A_AND_B = [
    Fastest({"A": 1, "B": 1}, 8.0),
    Fastest({"A": 1, "B": 2}, None),
    Fastest({"A": 2, "B": 1}, 4.0),
    Fastest({"A": 2, "B": 2}, 3.5),
    Fastest({"A": 4, "B": 2}, None),
    Fastest({"A": 4, "B": 1}, 1.0),
    Fastest({"A": 8, "B": 1}, 9.0),
]


def series(chart, name):
    return next(one for one in chart["series"] if one["name"] == name)


def levels_in(chart, axis="yAxis"):
    return [mark[axis] for one in chart["series"] for mark in one.get("markLine", {"data": []})["data"]]


@pytest.mark.parametrize(("over", "places"), [("trial", [0, 2, 5, 6]), ("spent", [0, 3.0, 7.5, 9.0])])
def test_best_so_far_falls_at_every_improvement_and_reaches_the_last_trial(over, places):
    chart = study_charts.best_so_far(SEARCH, over)
    steps = [point["value"] for point in series(chart, "best so far")["data"]]
    assert [x for x, _ in steps] == places
    assert [y for _, y in steps] == [8.0, 4.0, 1.0, 1.0]
    assert series(chart, "trials")["columns"] == {"of": "measured", "dims": [over, "time"]}
    assert chart["selects"] == [over, "time"]


def test_every_failure_is_a_mark_of_its_kind_at_the_upper_edge():
    chart = study_charts.best_so_far(SEARCH, "trial", ["compile_failed", "wrong_result"])
    marks = {one["name"]: one for one in chart["series"][2:]}
    assert set(marks) == {"compile failed", "wrong result"}
    assert marks["compile failed"]["symbol"] != marks["wrong result"]["symbol"]
    assert marks["wrong result"]["columns"] == {"of": "wrong_result", "dims": ["trial", chart["yAxis"]["max"]]}


def test_axes_say_unit_and_direction_and_count_trials_in_whole_numbers():
    chart = study_charts.best_so_far(SEARCH, "spent")
    assert chart["yAxis"]["name"] == "time, ms, lower is better"
    assert chart["xAxis"]["name"] == "seconds spent on trials"
    assert study_charts.best_so_far(SEARCH, "trial")["xAxis"]["minInterval"] == 1


def test_library_and_default_are_lines_in_every_chart_of_times():
    by_trial = study_charts.best_so_far(SEARCH, "trial", [], LEVELS)
    by_value = parameter_charts.slice_of(TRIALS, BY_A_AND_B, "A", VALUES, LEVELS)
    for chart in (by_trial, by_value):
        assert levels_in(chart) == [0.9, 12.0]
        assert chart["yAxis"]["min"] < 0.9
        assert chart["yAxis"]["max"] > 12
        assert [one["name"] for one in chart["series"][-2:]] == [
            "cuBLAS 13.0 900\N{NO-BREAK SPACE}µs",
            "default 12.0\N{NO-BREAK SPACE}ms",
        ]
    free = parameter_charts.free_axes(TRIALS, "A", "time", "B", VALUES, LEVELS)
    assert levels_in({"series": free["levels"]}) == [0.9, 12.0]
    assert levels_in({"series": free["levels_across"]}, "xAxis") == [0.9, 12.0]


def test_every_chart_of_trials_can_be_zoomed_and_brushed():
    charts = [
        study_charts.best_so_far(SEARCH, "trial"),
        parameter_charts.slice_of(TRIALS, BY_A_AND_B, "A", VALUES),
        parameter_charts.heat_map(BY_A_AND_B, "A", "B", VALUES),
    ]
    assert [chart["selects"] for chart in charts] == [["trial", "time"], ["A", "time"], ["A", "B"]]
    for chart in charts:
        assert [zoom["filterMode"] for zoom in chart["dataZoom"]] == ["none", "none"]


def test_a_study_of_failures_only_has_no_axis_of_times():
    search = Search([], 0, 1.0, {"tiled": VariantTrials(1, None, None)})
    assert study_charts.best_so_far(search, "trial", ["compile_failed"]) is None


def test_parallel_has_an_axis_for_what_varies_and_the_time_last():
    chart = parameter_charts.parallel(TRIALS, VALUES, {"A": (2, 4), "occupancy": (0, 1)})
    assert [axis["id"] for axis in chart["parallelAxis"]] == ["A", "B", "time"]
    assert chart["parallelAxis"][0]["data"] == ["1", "2", "4", "8"]
    assert series(chart, "fastest")["columns"]["dims"] == ["A", "B", "time"]
    assert chart["selection"] == {"A": [2, 4]}


def test_nothing_to_compare_is_no_chart():
    nothing = VariantTrials(1, None, None)
    assert parameter_charts.parallel(nothing, VALUES, {}) is None
    assert parameter_charts.parallel(TRIALS, {}, {}) is None
    assert study_charts.best_so_far(None, "trial") is None
    assert parameter_charts.importance({}, None) is None
    assert parameter_charts.heat_map(BY_A_AND_B, "A", "A", VALUES) is None
    assert parameter_charts.slice_of(nothing, BY_A_AND_B[1:2], "A", VALUES) is None
    assert parameter_charts.free_axes(nothing, "A", "time", "B", VALUES) == {}


def test_slice_joins_the_fastest_of_each_value():
    chart = parameter_charts.slice_of(TRIALS, BY_A_AND_B, "A", VALUES)
    assert chart["xAxis"]["data"] == ["1", "2", "4", "8"]
    fastest = [p["value"] for p in series(chart, "fastest of each value")["data"]]
    assert fastest == [["1", 8.0], ["2", 3.5], ["4", 1.0], ["8", 9.0]]
    assert series(chart, "trials")["columns"]["dims"] == ["A", "time"]
    assert chart["yAxis"]["max"] > 9


def test_heat_map_marks_pairs_that_only_failed():
    chart = parameter_charts.heat_map(BY_A_AND_B, "A", "B", VALUES)
    assert [cell["value"] for cell in series(chart, "failed")["data"]] == [[0, 1], [2, 1]]
    shares = {tuple(cell["value"][:2]): cell["value"][2] for cell in series(chart, "fastest")["data"]}
    assert shares[2, 0] == 1.0
    assert shares[0, 0] == 0.125
    assert set(shares) == {(0, 0), (1, 0), (1, 1), (2, 0), (3, 0)}


def test_figures_of_the_heat_map_are_readable_on_every_colour_and_left_out_where_cells_are_narrow():
    chart = parameter_charts.heat_map(BY_A_AND_B, "A", "B", VALUES)
    for cell in series(chart, "fastest")["data"]:
        label = cell["label"]
        assert (label["color"], label["textBorderColor"]) == ("--text", "--ground")
        assert label["textBorderWidth"] >= 2
    assert series(chart, "fastest")["label"]["show"]
    many = parameter_charts.heat_map(BY_A_AND_B, "A", "B", VALUES | {"B": list(range(1, 40))})
    assert not series(many, "fastest")["label"]["show"]


def test_free_axes_have_every_parameter_and_every_number_of_a_trial():
    chart = parameter_charts.free_axes(TRIALS, "A", "time", "B", VALUES)
    assert chart["free"] == {"x": "A", "y": "time", "colour": "B"}
    assert set(chart["axes"]) == {"A", "B", *parameter_charts.NUMBERS}
    assert chart["axes"]["B"]["data"] == ["1", "2"]
    assert chart["axes"]["time"]["max"] > 9


@pytest.mark.parametrize(
    ("times", "kind", "low", "high"),
    [([0.5, 7.0], "log", 0.2, 10.0), ([0.3, 40.0], "log", 0.2, 50.0), ([1.0, 1.5], "value", 0.9, 1.6)],
)
def test_time_axes_end_at_readable_numbers(times, kind, low, high):
    axis = time_axis(times)
    assert (axis["type"], axis["min"], axis["max"]) == (kind, low, high)


@pytest.mark.parametrize(("times", "unit", "unit_ms"), [([0.04, 7.0], "µs", 1e-3), ([1.0], "ms", 1.0)])
def test_a_time_axis_is_in_the_unit_that_suits_its_smallest_time(times, unit, unit_ms):
    axis = time_axis(times)
    assert (axis["name"], axis["unit_ms"]) == (f"time, {unit}, lower is better", unit_ms)
    heat = parameter_charts.heat_map([Fastest({"A": 8, "B": 1}, t) for t in times], "A", "B", VALUES)
    assert heat["named"][-1] == f"time, {unit}"
    assert heat["series"][0]["data"][0]["value"][3] == times[0] / unit_ms


@given(low=st.floats(1e-6, 1e6), ratio=st.floats(1, 1e4), inner=st.lists(st.floats(0, 1), max_size=3))
@example(low=0.9008, ratio=0.9013 / 0.9008, inner=[])
@example(low=1.0, ratio=1 + 2**-52, inner=[])
@example(low=0.2, ratio=10.0, inner=[])
def test_every_time_lies_inside_its_axis(low, ratio, inner):
    times = [low, low * ratio, *(low + (low * ratio - low) * share for share in inner)]
    axis = time_axis(times)
    assert axis["min"] < min(times)
    assert max(times) < axis["max"]


def test_charts_are_plain_data_and_name_colours_only():
    charts = [
        study_charts.best_so_far(SEARCH, "trial", ["timed_out"], LEVELS),
        parameter_charts.parallel(TRIALS, VALUES, {}),
        parameter_charts.importance({"A": 0.75, "B": 0.25}, Uncertainty({"A": (0.6, 0.9), "B": (0.1, 0.4)}, 3)),
        parameter_charts.slice_of(TRIALS, BY_A_AND_B, "A", VALUES),
        parameter_charts.heat_map(BY_A_AND_B, "A", "B", VALUES),
        parameter_charts.free_axes(TRIALS, "A", "time", "B", VALUES, LEVELS),
    ]
    text = json.dumps(charts, allow_nan=False)
    assert "#" not in text
    assert "function" not in text
