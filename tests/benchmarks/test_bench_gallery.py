"""The gallery's benchmark, tried on the CPU device, where neither a GPU nor a library is."""

import json

import pytest


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
