"""Kernels of one's own with an axis from the launch, and with an int output, inputs and a check of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright.kernels.own import own_kernel
from tilewright.kernels.space import Configuration
from tilewright.tuner.arrays import random_arrays, scalar_values
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.kernel_check.check import check_parameters
from tilewright.tuner.kernel_check.report import KernelCheckReport
from tilewright.tuner.kernel_check.sizes import check_sizes
from tilewright.tuner.loop.expected import expected_of
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.runtime import Runtime

SOURCE = """
#include "common/at_launch.cuh"
#ifndef SHAPE_N
#define SHAPE_N 1000
#endif
extern "C" __global__ void vector_add(float* c, const float* a, const float* b SIZE_PARAMETER) {
  unsigned i = blockIdx.x * block_size_x + threadIdx.x;
  if (i < SHAPE_N) c[i] = a[i] + b[i];
}
"""
DECLARATION = """
from tilewright.kernels.kernel import Kernel, Tensor, Variant, covering, shape_of
from tilewright.kernels.space import powers_of_two

BLOCK = powers_of_two("block_size_x", 32, 1024, default=128)
KERNEL = Kernel(
    name="vector_add",
    arguments=(
        Tensor("c", "output", shape_of("n")),
        Tensor("a", "input", shape_of("n")),
        Tensor("b", "input", shape_of("n")),
    ),
    variants=(
        Variant(
            "plain", "vector_add.cu", covering("n", block=("block_size_x",)), (BLOCK,),
            takes_size=lambda p: p.at_launch == "n",
        ),
    ),
    launch_axes=("n",),
    reference=lambda _problem, arrays, _scalars: arrays["a"] + arrays["b"],
    example_shape={"n": 1000},
)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "vector_add"
    made.mkdir()
    (made / "vector_add.cu").write_text(SOURCE)
    (made / "declaration.py").write_text(DECLARATION)
    return made


def checked(folder: Path) -> KernelCheckReport:
    kernel = own_kernel(folder)
    report, device = KernelCheckReport(kernel.name), CpuDevice()
    check_parameters(kernel, report)
    check_sizes(kernel, {"n": 83}, report, device)
    device.close()
    return report


def test_several_sizes_run_through_one_program(folder: Path) -> None:
    report = checked(folder)
    assert not report.findings
    assert report.verified == 4


def test_a_source_that_forgets_the_size_is_found(folder: Path) -> None:
    path = folder / "vector_add.cu"
    path.write_text(path.read_text().replace("i < SHAPE_N", "i < 83"))
    assert any("n=127, n at launch" in one.where for one in checked(folder).findings)


def test_a_source_without_the_parameter_does_not_run(folder: Path) -> None:
    path = folder / "vector_add.cu"
    path.write_text(path.read_text().replace(" SIZE_PARAMETER", ""))
    assert [one for one in checked(folder).findings if one.severity == "error"]


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.errors.UntunedWarning")
def test_the_launcher_takes_any_size_of_it(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.kernels.catalogue import Catalogue  # noqa: PLC0415 - beside its only use

    runtime = Runtime(kernels=Catalogue.load([folder]), answers=AnswerCache(tmp_path / "answers"))
    launch = runtime.best("vector_add", device="cpu")
    for n in (3, 1000, 20_000):
        a = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(launch(np.empty_like(a), a, a), 2 * a)


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
