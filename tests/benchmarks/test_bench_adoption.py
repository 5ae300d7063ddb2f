"""Kernel Tuner's scripts beside ours, on the CPU device; a process of its protocol stands for Kernel Tuner."""

from __future__ import annotations

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
    def run(calls=1, sizes=(32,), shard="0/1", out="rows.json"):
        (tmp_path / "saxpy.py").write_text(SCRIPT.replace("CALLS", str(calls)))
        (tmp_path / "stub.py").write_text(STUB.replace("CALLS", str(calls)).replace("SIZES", str(list(sizes))))
        monkeypatch.setattr(sys.modules["tuned_script"], "LIMITED_CALLS", tmp_path / "stub.py")
        script = tuned.Script(tmp_path / "saxpy.py", tmp_path / "adopted" / "saxpy")
        script.adopted()
        told = {"seconds": 0.5, "strategy": "any", "langs": "CUPY", "shard": shard, "device": "cpu", "stop_after": 600}
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


@pytest.mark.in_turn(3)
def test_the_calls_of_a_long_script_are_shared_out(ran):
    parts = [[row["call"] for row in ran(calls=5, shard=f"{part}/2", out=f"{part}.json")] for part in (0, 1)]
    assert parts == [[1, 3, 5], [2, 4]]
