"""Programs and kernels of others: adopted, and beside the gallery's."""

import importlib
import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

ADOPTION = Path(__file__).parents[2] / "benchmarks" / "adoption"
SCRIPT = '''
import numpy as np
from kernel_tuner import tune_kernel
source = """
__global__ void saxpy(float *y, const float *x, float a, int n) {
  int i = blockIdx.x * block_size_x + threadIdx.x;
  if (i < n) y[i] = a * x[i];
}
"""
x = np.random.randn(1000).astype(np.float32)
for _ in range(CALLS):
    tune_kernel("saxpy", source, 1000, [np.zeros_like(x), x, np.float32(3), np.int32(1000)], {"block_size_x": [32, 64]})
'''
STUB = """
import json, sys
for call in range(CALLS):
    print(json.dumps({"values": {"block_size_x": [32, 64]}}), flush=True)
    told = json.loads(sys.stdin.readline())
    if "skip" in told:
        continue
    assert told["seconds"] > 0 and told["fixed"] == {} and told["langs"] == ["CUPY"]
    fastest = [{"best": {"block_size_x": size}, "places": {}, "time_ms": size / 1e6} for size in SIZES]
    print(json.dumps({"seconds": 1, "measured": 2, "lang": "CUPY", "fastest": fastest}), flush=True)
"""


@pytest.fixture
def tuned(monkeypatch):
    monkeypatch.syspath_prepend(ADOPTION)
    yield importlib.import_module("tuned")
    for name in ("tuned", "tuned_script", "scripts"):
        sys.modules.pop(name, None)


@pytest.fixture
def ran(tuned, monkeypatch, tmp_path):
    def run(calls=1, sizes=(32,), out="rows.json"):
        (tmp_path / "saxpy.py").write_text(SCRIPT.replace("CALLS", str(calls)))
        (tmp_path / "stub.py").write_text(STUB.replace("CALLS", str(calls)).replace("SIZES", str(list(sizes))))
        monkeypatch.setattr(sys.modules["tuned_script"], "LIMITED_CALLS", tmp_path / "stub.py")
        script = tuned.Script(tmp_path / "saxpy.py", tmp_path / "adopted" / "saxpy")
        script.adopted()
        told = {"seconds": 0.5, "strategy": "any", "langs": "CUPY", "device": "cpu", "stop_after": 600}
        tuned.run([script], Namespace(**told, out=tmp_path / out))
        return json.loads((tmp_path / out).read_text())["rows"]

    return run


@pytest.mark.in_turn(2)
def test_both_winners_are_timed_and_a_row_is_not_made_twice(ran):
    [row] = ran(sizes=[4096, 32])
    assert row["ratio"] == pytest.approx(row["kernel_tuner_ms"] / row["ours_ms"], rel=0.5)
    assert (row["space"], row["trials"], row["kernel_tuner"]["block_size_x"]) == (2, 2, 32)
    assert row["is_in_our_space"]
    [skipped] = row["kernel_tuner_skipped"]
    assert skipped["configuration"]["block_size_x"] == 4096
    assert skipped["why"]
    assert ran(sizes=[4096]) == [row]


def test_a_side_without_a_time_says_why(ran):
    [row] = ran(sizes=[4096])
    assert row["reason"] == "Kernel Tuner: none of its 1 fastest is right"
    assert "ratio" not in row


@pytest.fixture
def bench(benchmark_module):
    return benchmark_module("gallery")


def test_a_row_is_written_for_each_kernel_that_is_asked_for(bench, tmp_path, capsys):
    out = tmp_path / "gallery.json"
    words = ["--device", "cpu", "--trials", "1", "--out", str(out), "--only", "transpose"]
    assert bench.main(words) == 0
    document = json.loads(out.read_text())
    (row,) = document["rows"]
    assert list(row) == list(bench.COLUMNS)
    assert (row["kernel"], row["shape"], row["library"]) == ("transpose", {"m": 61, "n": 37}, "CuPy's copy")
    assert row["time_ms"] > 0
    assert row["library_ms"] is row["speedup"] is row["percent_of_roof"] is row["reason"] is None
    assert document["command"].startswith("python benchmarks/gallery.py")
    assert not list(tmp_path.glob("*.partial"))


def test_a_kernel_that_has_no_configuration_gets_a_row_with_the_reason(bench, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "odd_shapes", lambda _kernel: [{"m": 1, "n": 1 << 30}])
    words = ["--device", "cpu", "--trials", "1", "--out", str(tmp_path / "gallery.json"), "--only", "transpose"]
    assert bench.main(words) == 1
    (row,) = json.loads((tmp_path / "gallery.json").read_text())["rows"]
    assert row["time_ms"] is None
    assert "OutOfMemoryError" in row["reason"]


def test_times_of_the_cpu_device_are_no_results(bench, capsys):
    with pytest.raises(SystemExit):
        bench.main(["--device", "cpu"])
    assert "--device cpu needs --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"kernel": "scan", "speedup": 0.95, "percent_of_roof": 40.0}, None),
        ({"kernel": "scan", "speedup": None, "percent_of_roof": 91.0}, None),
        ({"kernel": "scan", "speedup": None, "percent_of_roof": None}, None),
        ({"kernel": "scan", "speedup": 0.8, "percent_of_roof": 40.0}, "not explained yet"),
    ],
)
def test_a_row_below_the_goal_needs_a_reason(bench, row, reason):
    assert bench.reason_of(row) == reason


def test_whatever_has_a_reason_or_a_library_is_an_example(bench):
    names = set(bench.gallery().by_name)
    assert {*bench.REASONS, *bench.NAMES, *bench.MORE_SHAPES} <= names
    for name, shapes in bench.MORE_SHAPES.items():
        assert all(bench.gallery().get(name).problem(shape).stated_shape == shape for shape in shapes)


def test_a_kernel_with_a_check_of_its_own_has_a_row_without_bounds_and_flops(bench, tmp_path, capsys):
    out = tmp_path / "gallery.json"
    assert bench.main(["--device", "cpu", "--trials", "1", "--out", str(out), "--only", "pnpoly"]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["time_ms"] > 0
    assert row["percent_of_roof"] is None
