"""What benchmarks of launches, first uses, rates and families make of their times."""

import json
import re
import sys
from pathlib import Path

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.devices.cpu.device import CpuDevice

GEMM = catalogue().get("gemm")
TINY = GEMM.problem({"m": 24, "n": 16, "k": 20})


@pytest.fixture
def rate(benchmark_module):
    return benchmark_module("rate")


@pytest.fixture
def device():
    device = CpuDevice()
    yield device
    device.close()


def test_the_rate_counts_unique_verified_configurations(rate, device):
    row = rate.ours(device, GEMM, TINY, GEMM.space(TINY, device.model.limits, ["naive"]), 4, seed=1)
    assert (row["configurations"], row["unique"], row["verified"]) == (4, 4, 4)
    assert row["outcomes"] == {"measured": 4}
    assert row["per_second"] == pytest.approx(4 / row["wall_s"], rel=0.05)


ROOT = Path(__file__).parents[2]


def test_the_page_on_the_launcher_says_what_was_measured():
    measured = json.loads((ROOT / "benchmarks/results/h200/dispatch.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/launcher.md").read_text(encoding="utf-8")
    stated = {
        name: (middle, over)
        for name, middle, over in re.findall(r"^\| `(.+?)` \| ([\d.]+) \| ([-+][\d.]+|) \|", page, re.MULTILINE)
    }
    for row in measured["rows"]:
        name = row["call"].removeprefix("PyCUDA ")
        over = f"{row['over_prepared_us']:+.1f}" if row["over_prepared_us"] else ""
        assert stated.pop(name) == (f"{row['median_us']:.1f}", over)
    assert not stated
    for fact in (measured["device"], measured["driver"], measured["date"][:10], measured["command"]):
        assert fact in page


SMALL = ["--device", "cpu", "--shape", "24x40", "--dtype", "float32", "--largest", "16", "--seconds", "0.3"]
SMALL += ["--table-seconds", "0.1", "--calls", "12", "--part", "tables", "--part", "rows", "--part", "at_launch"]
SMALL += ["--kernel", "gemm"]


@pytest.fixture
def families(benchmark_module):
    return benchmark_module("families")


def run(families, monkeypatch, out, *more):
    monkeypatch.setattr(sys, "argv", ["families.py", *SMALL, "--out", str(out), *more])
    families.main()
    return json.loads(out.read_text()) if out.exists() else None


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_slices_make_the_whole_document(families, monkeypatch, capsys, tmp_path):
    out = tmp_path / "families.json"
    assert run(families, monkeypatch, out, "--stop-after", "-1") is None
    assert "continue with --resume" in capsys.readouterr().err
    monkeypatch.setattr(families.tables, "UNSEEN", 2)
    document = run(families, monkeypatch, out)
    (table,) = document["tables"]
    assert table["configurations"] <= 8
    assert len(document["rows"]) == 2
    assert not {row["m"] for row in document["rows"]} & set(table["sizes"])
    assert all(row["ratio"] == row["exact_ms"] / row["time_ms"] and row["tried"] > 0 for row in document["rows"])
    assert {row["variant"] for row in document["at_launch"]} == {"naive", "tiled", "wpt"}
    monkeypatch.setattr(families.tables, "table", pytest.fail)  # what the file has is not measured again
    monkeypatch.setattr(families.exact, "row", pytest.fail)
    assert run(families, monkeypatch, out, "--resume", "--part", "trace")["rows"] == document["rows"]
    told = capsys.readouterr().out
    assert "1 families: at most" in told
    assert "trace float32" in told


def test_every_kernel_with_an_open_axis_is_measured_once_for_each_shape(families):
    others = families.launches.OTHERS
    with_axes = {kernel.name for kernel in catalogue().kernels() if kernel.launch_axes}
    assert with_axes - {"gemm", "linear"} == set(others)  # linear has the sources of gemm
    heads = [families.tables.head(family) for family in families.launches.others(others, None)]
    assert len({str(head) for head in heads}) == len(heads) == sum(map(len, others.values()))
    of_one = families.launches.others({"gemv"}, ["bfloat16"])
    assert [(family.kernel, family.dtype) for family in of_one] == [("gemv", "bfloat16")]
