"""A kernel of one's own whose axis has its size from the launch: several sizes through one program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright.kernels.own import own_kernel
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.kernel_check.check import check_parameters
from tilewright.tuner.kernel_check.report import KernelCheckReport
from tilewright.tuner.kernel_check.sizes import check_sizes
from tilewright.tuner.runtime.answers import AnswerCache
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
