from __future__ import annotations

import json
import sys

import pytest


@pytest.fixture(scope="module")
def stages(benchmark_module):
    return benchmark_module("compile_stages")


def told(stages, monkeypatch, capsys, *arguments):
    small = ["--variant", "tiled", "--shape", "64x64x64", "--configurations", "2", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["compile_stages.py", *small, *map(str, arguments)])
    stages.main()
    return capsys.readouterr().out.splitlines()


def test_the_stages_make_up_the_whole_and_other_machine_code_is_noticed(stages, monkeypatch, capsys, tmp_path):
    before = tmp_path / "before.json"
    row = json.loads(told(stages, monkeypatch, capsys, "--out", before)[0])
    assert sum(row["shares"].values()) == pytest.approx(1, abs=0.01)
    assert all(share > 0 for share in row["shares"].values())
    assert 0 < row["empty_kernel_cpu_ms"] < row["mean_cpu_ms"] <= row["slowest_cpu_ms"]

    document = json.loads(before.read_text())
    document["cubins"][1] = "another"
    before.write_text(json.dumps(document))
    assert told(stages, monkeypatch, capsys, "--against", before)[1].startswith("1 of 2 cubins are the same")
