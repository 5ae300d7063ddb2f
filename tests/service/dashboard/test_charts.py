"""The charts of a study and the roofline, as the data that they are."""

import json
import re
from dataclasses import replace

import pytest
from factories import CPU, H200, SHAPE
from hypothesis import example, given
from hypothesis import strategies as st

from tilewright.service.dashboard.charts import parameters as parameter_charts
from tilewright.service.dashboard.charts import study as study_charts
from tilewright.service.dashboard.charts.parts import Level, time_axis
from tilewright.service.dashboard.charts.roofline import roofline
from tilewright.service.operations.best.results import results
from tilewright.service.operations.studies.importance import Uncertainty
from tilewright.service.operations.studies.space import Fastest, Improvement, Search, VariantTrials
from tilewright.service.operations.transaction import transaction
from tilewright.tuner.roofline import roof_gflops

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


DETAILS = {"datasheet_gflops": {"float32": 66_900.0}, "datasheet_gb_per_s": 4_800.0, "measured_gb_per_s": 4_200.0}


@pytest.fixture
def found(commit):
    """The answers of one best, twice as fast as the default: 100 GFLOP/s at 10 FLOP per byte."""
    commit(lambda rows: rows.best(SHAPE, 1.0, model=H200))
    with transaction() as session:
        return results(session).items


def test_the_memory_slope_meets_the_peak_at_the_ridge(found):
    chart = roofline(found, DETAILS)
    slope = [point["value"] for point in series(chart, "memory, data sheet")["data"]]
    assert slope[-1] == [pytest.approx(66_900 / 4_800, rel=0.01), pytest.approx(66_900, rel=0.01)]
    assert slope[0][1] / slope[0][0] == pytest.approx(4_800, rel=0.01)
    assert series(chart, "memory, measured")["lineStyle"]["type"] == "dashed"


@pytest.mark.parametrize("accuracy", ["tf32", "fp32", "fp32-fma"])
def test_the_roof_that_a_share_refers_to_is_drawn(found, accuracy):
    peaks = {"float32": 66_900.0, "tf32": 494_500.0}
    details = DETAILS | {"datasheet_gflops": peaks, "measured_gb_per_s": 4_900.0}
    model = replace(H200, datasheet_gflops=peaks)
    flops, bytes_moved = 10**12, 10**9
    roof = roof_gflops(model, "float32", flops, bytes_moved, accuracy)
    problem = found[0].problem.model_copy(update={"options": {"accuracy": accuracy}})
    rates = {"gflops": roof / 2, "gb_per_s": roof / 2 * bytes_moved / flops, "roof_ratio": 0.5}
    chart = roofline([found[0].model_copy(update={"problem": problem, **rates})], details)
    (spot,) = series(chart, "gemm")["data"]
    name = re.search(r"50.% of the roof \(peak (.*)\)", spot["name"])[1]
    (start, height), (_, end) = [point["value"] for point in series(chart, f"peak {name}")["data"]]
    assert height == end == roof
    assert start == pytest.approx(roof / 4_800)  # the slope of the data sheet meets it there


def test_an_arrow_leads_from_the_default_straight_up_to_the_best(found):
    (arrow,) = series(roofline(found, DETAILS), "from the default")["data"]
    assert arrow["coords"] == [[10, 50], [10, 100]]


def test_a_point_says_what_it_is_and_leads_to_its_study(found):
    (spot,) = series(roofline(found, DETAILS), "gemm")["data"]
    assert spot["value"] == [10, 100]
    assert "m=256,n=100,k=784" in spot["name"]
    assert spot["href"] == f"/studies/{found[0].study_id}"


def test_roofs_have_labels_that_points_do_not_hide_and_stay_out_of_the_legend(found):
    chart = roofline(found, DETAILS)
    roofs = [one for one in chart["series"] if one["type"] == "line"]
    assert [one["name"] for one in roofs] == ["peak float32", "memory, data sheet", "memory, measured"]
    for one in roofs:
        assert one["z"] > series(chart, "gemm").get("z", 2)
        assert one["endLabel"]["textBorderColor"] == "--ground"
    assert [one["endLabel"]["formatter"] for one in roofs if one["endLabel"]["show"]] == ["{a}", "memory"]
    assert chart["legend"]["data"] == ["from the default", "gemm"]


def test_labels_of_peaks_that_are_close_lie_on_either_side(found):
    peaks = {"float64": 33_450.0, "float32": 66_900.0, "tf32": 494_500.0}  # three products of FP16 make two thirds
    chart = roofline(found, DETAILS | {"datasheet_gflops": peaks})
    below = {one["name"] for one in chart["series"] if one.get("endLabel", {}).get("offset") == [-10, 10]}
    assert below == {"peak float32, accuracy fp32"}


def test_axes_are_logarithmic_between_powers_of_ten_and_say_their_direction(found):
    chart = roofline(found, DETAILS)
    assert (chart["xAxis"]["min"], chart["xAxis"]["max"]) == (10, 100)
    assert (chart["yAxis"]["min"], chart["yAxis"]["max"]) == (10, 100_000)
    assert chart["yAxis"]["name"] == "GFLOP/s, higher is better"


def test_without_peaks_or_results_there_is_none(found, page, commit):
    assert roofline(found, {}) is None
    assert roofline([], DETAILS) is None
    commit(lambda rows: rows.device(CPU))
    assert "Roofline" not in page("/device-models/cpu%3Atest")
