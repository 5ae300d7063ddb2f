"""The roofline, as the data that it is."""

import re
from dataclasses import replace

import pytest
from factories import CPU, H200, SHAPE

from tilewright.service.dashboard.charts.roofline import roofline
from tilewright.service.operations.best.results import results
from tilewright.service.operations.transaction import transaction
from tilewright.tuner.roofline import roof_gflops

DETAILS = {"datasheet_gflops": {"float32": 66_900.0}, "datasheet_gb_per_s": 4_800.0, "measured_gb_per_s": 4_200.0}


@pytest.fixture
def found(commit):
    """The answers of one best, twice as fast as the default: 100 GFLOP/s at 10 FLOP per byte."""
    commit(lambda rows: rows.best(SHAPE, 1.0, model=H200))
    with transaction() as session:
        return results(session).items


def series(chart, name):
    return next(one for one in chart["series"] if one["name"] == name)


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
