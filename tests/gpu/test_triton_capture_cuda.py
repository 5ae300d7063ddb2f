"""Triton programs captured on a GPU: what is adopted of them is tuned, and takes the place of their own search."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.kernels.own import own_kernel
from tilewright.kernels.space import Constraint
from tilewright.tuner.capture.adopt import adopt_launch
from tilewright.tuner.capture.capture import capture
from tilewright.tuner.loop.study import Knowledge
from tilewright.tuner.loop.tune import Budget, tune
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches.devices import place_of, resolved

pytestmark = pytest.mark.gpu
pytest.importorskip("triton")
pytest.importorskip("torch")

APP = Path(__file__).parents[1] / "tuner" / "capture" / "triton_app.py"
NAMES = ("matmul", "softmax", "summed", "masked")


@pytest.fixture(scope="module")
def captured(gpu, tmp_path_factory):
    return capture([sys.executable, str(APP)], tmp_path_factory.mktemp("triton") / "seen")


@pytest.fixture(scope="module")
def folders(captured, tmp_path_factory):
    target = tmp_path_factory.mktemp("made")
    return {name: adopt_launch(captured, name, target=target).folder for name in NAMES}


def test_launches_are_counted_and_timed_without_those_of_the_search(captured):
    calls = {row["name"]: row["calls"] for row in captured.launches}
    once = ("matmul", "matmul_2", "summed", "masked", "masked_2", "doubled", "doubled_2")
    assert calls == dict.fromkeys(once, 1) | {"softmax": 3}
    assert all(0 < row["time_ms"] / row["calls"] < 50 for row in captured.launches)  # compiling is not part of it


@pytest.mark.parametrize("name", NAMES)
def test_what_is_adopted_is_right_where_it_was_launched_so(device, folders, name):
    kernel = own_kernel(folders[name])
    problem = kernel.problem(kernel.example_shape)
    bench = device.bench(kernel, problem, seed=1)
    try:
        program = bench.compile(kernel.default_configuration(kernel.space(problem, device.model.limits)))
        assert [v.message() for v in bench.verify_each_kind(program) if not v.is_right] == []
    finally:
        bench.close()


def test_what_is_tuned_takes_the_place_of_the_search(device, folders, tmp_path):
    kernel = own_kernel(folders["matmul"])
    answers = AnswerCache(tmp_path / "cache" / "answers")
    blocks = Constraint("other blocks than the program has", lambda c, _p, _d: c.BLOCK_M == 64)
    [variant] = kernel.variants
    values = variant.space().default().values
    parameters = tuple(replace(one, default=64) if one.name == "BLOCK_M" else one for one in variant.parameters)
    other = replace(variant, constraints=(*variant.constraints, blocks), parameters=parameters)
    assert values["BLOCK_M"] in {16, 32}
    for sizes in ((64, 48, 80), (32, 96, 64)):
        problem = kernel.problem(dict(zip("mnk", sizes, strict=True)))
        narrowed = replace(kernel, variants=(other,))
        bench = device.bench(narrowed, problem, seed=1)
        try:
            space = narrowed.space(problem, device.model.limits)
            result = tune(bench, narrowed, space, Budget(trials=6), seed=1, knowledge=Knowledge())
        finally:
            bench.close()
        best = result.best.configuration
        known = {"variant": best.variant, "configuration": dict(best.items), "match": "exact"}
        place = place_of(resolved("cuda:0"))
        answers.put(problem, place, known | {"source_hash": kernel.source_hash(best.variant)})
    environment = os.environ | {
        "TILEWRIGHT_KERNEL_FOLDERS": str(folders["matmul"]),
        "TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache"),
        "TILEWRIGHT_DATA_DIR": str(tmp_path),
    }
    command = [sys.executable, "-m", "tilewright.service.cli", "run", "--", sys.executable, str(APP)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "blocks 64" in ran.stdout
