"""The example with an int output, inputs and a check of its own: right on the CPU device, and not easily deceived."""

from pathlib import Path

import numpy as np
import pytest

from tilewright.kernels.own import own_kernel
from tilewright.kernels.space import Configuration
from tilewright.tuner.arrays import random_arrays, scalar_values
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.loop.expected import expected_of
from tilewright.tuner.outcome import Outcome

PNPOLY = own_kernel(Path(__file__).parents[3] / "examples/pnpoly")
PROBLEM = PNPOLY.problem({"n": 301, "v": 17})


def test_both_ways_to_the_vertices_are_right_and_the_trial_says_who_judged():
    device = CpuDevice()
    bench = device.bench(PNPOLY, PROBLEM, seed=1)
    try:
        for in_shared in (0, 1):
            values = {"block_size_x": 64, "tile_size": 6, "between_method": in_shared, "vertices_in_shared": in_shared}
            evaluation = bench.evaluate(Configuration.of("crossings", values), "warm")
            assert evaluation.outcome is Outcome.MEASURED, evaluation.log
            assert (evaluation.log, evaluation.bound_ratio) == ("Verified by the kernel's own check.", None)
    finally:
        bench.close()
        device.close()


@pytest.fixture(scope="module")
def expected():
    arrays = random_arrays(PNPOLY, PROBLEM, 1)
    return expected_of(PNPOLY, PROBLEM, arrays, scalar_values(PNPOLY, PROBLEM))


def test_the_inputs_are_a_polygon_with_points_on_both_sides(expected):
    assert 30 < expected.returned["inside"].sum() < 270
    assert expected.returned["near"].sum() < 10


def test_a_point_on_the_wrong_side_is_named_unless_it_is_near_an_edge(expected):
    inside = expected.returned["inside"].astype(np.int32)
    assert expected.compare({"inside": inside}).is_right
    (far, *_), near = np.flatnonzero(~expected.returned["near"]), expected.returned["near"].copy()
    wrong = inside.copy()
    wrong[far] ^= 1
    said = f"the kernel's own check: 1 points are on the wrong side, the first is {far}: {wrong[far]}"
    assert expected.compare({"inside": wrong}).message() == said
    near[far] = True
    assert PNPOLY.check({"inside": wrong}, {**expected.returned, "near": near}) is None
    wrong[far] = 7
    assert PNPOLY.check({"inside": wrong}, {**expected.returned, "near": near}) is not None
