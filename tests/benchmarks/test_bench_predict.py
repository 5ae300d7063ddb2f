import math
import time
from pathlib import Path

import pytest
from sampling import EXHAUSTIVE

import tilewright.tuner.loop.tune as tune_module
from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.loop.tune import Budget
from tilewright.tuner.outcome import Evaluation, Outcome
from tilewright.tuner.predict import shipped

SOFTMAX = catalogue().get("softmax")
TRIED = Budget(trials=8)


@pytest.fixture(scope="module")
def rows(benchmark_module):
    return benchmark_module("predictions.rows")


@pytest.fixture(scope="module")
def shapes_of(benchmark_module):
    return benchmark_module("predictions.shapes")


@pytest.fixture(scope="module")
def predict(benchmark_module, rows):
    return benchmark_module("predict")


def test_shapes_are_the_same_for_a_seed_and_all_different(shapes_of):
    shapes = shapes_of.random_shapes(SOFTMAX, 80)
    assert shapes == shapes_of.random_shapes(SOFTMAX, 80)
    assert shapes[:60] == shapes_of.random_shapes(SOFTMAX, 60)
    assert len({tuple(shape.items()) for shape in shapes}) == 80


def test_sizes_are_log_uniform_and_some_are_round(shapes_of):
    gemm = catalogue().get("gemm")
    sizes = [size for shape in shapes_of.random_shapes(gemm, 200) for size in shape.values()]
    middle = math.sqrt(shapes_of.SMALLEST * shapes_of.LARGEST)
    assert 0.4 < sum(size < middle for size in sizes) / len(sizes) < 0.6
    assert 0.3 < sum(size % 64 == 0 for size in sizes) / len(sizes) < 0.45
    assert max(sizes) <= shapes_of.LARGEST + 32


def test_layers_of_a_network_are_problems(shapes_of):
    conv2d = catalogue().get("conv2d")
    layers = [conv2d.problem(shape) for shape in shapes_of.random_shapes(conv2d, 100)]
    assert {layer.shape["kernel_h"] for layer in layers} == {1, 3}
    assert max(conv2d.flops(layer) for layer in layers) <= 2 * shapes_of.MOST_TERMS


def row(ratio, nearest, expected=0.1):
    return {
        "shape": {"m": 3, "n": 5},
        "ratio": ratio,
        "nearest_ratio": nearest,
        "expected_loss": expected,
        "times_ms": {"tuned": 1.0, "predicted": 1 / ratio, "nearest": 1 / nearest},
    }


def test_layers_have_a_row_a_token_and_most_are_aligned(shapes_of):
    layers = shapes_of.random_layers(200, 4096)
    assert layers[:50] == shapes_of.random_layers(50, 4096)
    assert {1, 2} < {layer["m"] for layer in layers if layer["m"] <= 64}
    assert max(layer["m"] for layer in layers) <= 2048
    assert 0.6 < sum(layer["n"] % 8 == layer["k"] % 8 == 0 for layer in layers) / 200 < 0.9


def test_choices_as_they_were_answered_are_judged_and_those_without_a_time_counted(benchmark_module):
    table = benchmark_module("predictions.first_day_table")
    wide, narrow = ({"variant": "tiled", "TILE_WIDTH": width} for width in (32, 8))
    rows = [
        {
            "shape": {"m": m, "n": 8, "k": 8},
            "chosen": {"as shipped": chosen, "default": narrow},
            "expected": {"as shipped": {"ms": 1.0, "loss": 0.1, "use_library": True}},
            "tried": [[wide, 1.0, 0], [narrow, 4.0, 0]],
            "timed": {"configurations": [], "library_ms": 2.0},
        }
        for m, chosen in ((1, wide), (2, {"variant": "naive", "BLOCK_X": 8, "BLOCK_Y": 8}))
    ]
    limits = {"compute_capability": [9, 0], "multiprocessors": 132, "memory_bytes": 1 << 36}
    result = {"kernel": "gemm", "limits": limits, "records": [], "rows": rows, "command": "day_one.py"}
    facts = dict.fromkeys(("written_at", "device_model", "environment", "seed", "sizes", "tuned", "trials"))
    judged = table.summary(facts | result)
    shipped_ones, default = judged["sets"]["as shipped"], judged["sets"]["default"]
    assert (shipped_ones["predicted"]["shapes"], shipped_ones["not_measured"]) == (1, 1)
    assert shipped_ones["predicted"]["geometric_mean"] == 1.0
    assert default["predicted"]["minimum"] == 0.25
    assert (default["predicted"]["slower_and_not_said"], default["not_measured"]) == (2, 0)


def test_the_summary_is_of_ratios_and_the_table_ends_with_it(predict):
    state = {"rows": [row(0.9, 0.5), row(0.4, 1.0, None)]}
    state["summary"] = predict.summary(state["rows"])
    assert state["summary"]["predicted"] == {"geometric_mean": pytest.approx(0.6), "minimum": 0.4}
    assert state["summary"]["nearest"] == {"geometric_mean": pytest.approx(math.sqrt(0.5)), "minimum": 0.5}
    assert state["summary"]["expected"] == pytest.approx(1 / 1.1)
    printed = predict.table(state).splitlines()
    assert len({line.count("|") for line in printed[:4]}) == 1
    assert printed[2].startswith("| 3x5 | 1 |")
    assert "geometric mean 0.600, minimum 0.400" in printed[-1]


@pytest.mark.exhaustive  # seconds: the parts of it have tests of their own
def test_a_run_goes_on_where_it_stopped(rows, shapes_of, predict, tmp_path, monkeypatch):
    monkeypatch.setattr(tune_module, "SHARE_OF_BUDGET", 2)  # so that few trials are enough for all starts
    path, device = tmp_path / "predict.json.state", CpuDevice()
    shapes = shapes_of.random_shapes(SOFTMAX, 5, largest=64)
    first = rows.Run(device, SOFTMAX, {"records": [], "rows": []}, path, time.monotonic() + 600)
    first.survey(shapes[:2], TRIED)
    state = predict.read_state(path)
    assert [record["shape"] for record in state["records"]] == shapes[:2]
    over = rows.Run(device, SOFTMAX, state, path, time.monotonic())
    over.survey(shapes[:4], TRIED)
    over.compare(shapes[4:], trials=2)
    assert len(state["records"]) == 2
    again = rows.Run(device, SOFTMAX, state, path, time.monotonic() + 600)
    again.survey(shapes[:4], TRIED)
    again.compare(shapes[4:], trials=2)
    again.compare(shapes[4:], trials=2)
    (found,) = predict.read_state(path)["rows"]
    assert found["shape"] == shapes[4]
    assert found["ratio"] > 0
    assert set(found["configurations"]) == set(found["times_ms"]) == {"tuned", "predicted", "nearest"}
    best = [rows.record_of(SOFTMAX, record) for record in state["records"]]
    asked = SOFTMAX.space(SOFTMAX.problem(shapes[4]), device.model.limits)
    known = any(c in asked for record in best for c in record.ranked)
    assert found["match"] == ("predicted" if known else "nearest")
    # Each shape has tried what was best for those before it, where its space has it.
    for place, record in enumerate(best):
        space = SOFTMAX.space(record.problem, device.model.limits)
        assert all(b.ranked[0] in record.times_ms for b in best[:place] if b.ranked[0] in space)


@pytest.mark.exhaustive  # seconds: the parts of it have tests of their own
def test_in_the_end_every_shape_has_tried_what_was_best_for_the_others(rows, shapes_of, tmp_path):
    device, shapes = CpuDevice(), shapes_of.random_shapes(SOFTMAX, 4, largest=64)
    state = {"records": [], "rows": []}
    run = rows.Run(device, SOFTMAX, state, tmp_path / "state", time.monotonic() + 600)
    run.survey(shapes, Budget(trials=4))
    before = [len(record["tried"]) for record in state["records"]]
    best = [record.ranked[0] for record in run.records()]
    run.share()
    for record in run.records():
        space = SOFTMAX.space(record.problem, device.model.limits)
        assert all(c in record.times_ms for c in best if c in space)
    after = [len(record["tried"]) for record in state["records"]]
    assert [a - b for a, b in zip(after, before, strict=True)] == [record["shared"] for record in state["records"]]
    run.share()
    assert [len(record["tried"]) for record in state["records"]] == after


def test_a_prediction_that_fails_is_worth_nothing(rows):
    configuration = Configuration.of("warp", {"ROWS": 4})
    assert rows.failures({configuration: Evaluation(Outcome.WRONG_RESULT)}) == [configuration.as_json()]
    assert rows.failures({configuration: Evaluation(Outcome.CONSTRAINT_VIOLATED)}) == []
    assert rows._ratio({"tuned": [1.0, 1.0]}, "predicted") == 0
    assert rows.geometric_mean([0.0, 1.0]) == 0


@EXHAUSTIVE
def test_a_whole_run_writes_rows_and_their_summary(predict, tmp_path, capsys, monkeypatch):
    words = "predict.py --device cpu --kernel softmax --largest 64 --tuned 4 --unseen 2 --trials 8"
    monkeypatch.setattr("sys.argv", [*words.split(), "--out", str(tmp_path / "whole.json")])
    assert predict.main() == 0
    found = predict.read_state(tmp_path / "whole.json")
    assert all("shared" in record for record in found["records"])
    assert len({tuple(row["shape"].values()) for row in found["rows"]}) == 2
    assert found["summary"] == predict.summary(found["rows"])
    assert capsys.readouterr().out.endswith(predict.table(found) + "\n")


def test_own_shapes_displace_the_nearest_shipped_ones(shapes_of, benchmark_module, rows):
    first_day = benchmark_module("predictions.first_day")
    records = [{"shape": shape} for shape in shapes_of.random_shapes(SOFTMAX, 60)]
    sets = first_day.record_sets(records)
    assert {name: len(chosen) for name, chosen in sets.items()} == {
        "all": 60,
        "shipped + 5": 40,
        "own 5": 5,
        "shipped + 20": 40,
        "own 20": 20,
    }
    assert sets["shipped + 5"][:5] == records[40:45]


def test_records_are_shipped_as_they_are_read(benchmark_module, tmp_path, monkeypatch):
    result = Path(__file__).parents[2] / "benchmarks/results/h200/day_one_gemv.json.gz"
    state = benchmark_module("day_one").read(result)
    out = tmp_path / "nvidia-h200.json.gz"
    benchmark_module("predictions.records").ship([state], out)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    gemv = catalogue().get("gemv")
    (series,) = shipped.shipped_series(gemv, gemv.problem({"m": 9, "n": 9}))
    assert 0 < len(series.records) <= len(state["records"])
    times_ms = {Configuration.from_json(c): ms for c, ms, _ in state["records"][1]["tried"]}
    record = next(r for r in series.records if dict(r.problem.axes) == state["records"][1]["shape"])
    assert record.times_ms == {c: pytest.approx(times_ms[c], rel=1e-3) for c in record.times_ms}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kernel", "dtype"), [("linear", "float32"), ("gemm", "float32"), ("linear", "bfloat16")])
def test_shipped_predictions_that_claim_a_gain_mostly_have_it(benchmark_module, kernel, dtype):
    rows = list(benchmark_module("calibration").judged(kernel, dtype, {}, "nvidia-h200"))
    claims = [row for row in rows if row.is_claim]
    assert len(rows) >= 20
    assert sum(row.real > 1 for row in claims) >= min(0.95 * len(claims), len(claims) - 1)
