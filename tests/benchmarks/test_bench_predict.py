import math
from pathlib import Path

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
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


def test_layers_have_a_row_a_token_and_most_are_aligned(shapes_of):
    layers = shapes_of.random_layers(200, 4096)
    assert layers[:50] == shapes_of.random_layers(50, 4096)
    assert {1, 2} < {layer["m"] for layer in layers if layer["m"] <= 64}
    assert max(layer["m"] for layer in layers) <= 2048
    assert 0.6 < sum(layer["n"] % 8 == layer["k"] % 8 == 0 for layer in layers) / 200 < 0.9


def test_choices_as_they_were_answered_are_judged_and_those_without_a_time_counted(benchmark_module):
    table = benchmark_module("predictions.first_day")
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


def test_what_the_problem_has_no_room_for_is_no_failure(rows):
    configuration = Configuration.of("warp", {"ROWS": 4})
    assert rows.failures({configuration: Evaluation(Outcome.WRONG_RESULT)}) == [configuration.as_json()]
    assert rows.failures({configuration: Evaluation(Outcome.CONSTRAINT_VIOLATED)}) == []
    assert rows.geometric_mean([0.0, 1.0]) == 0


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
