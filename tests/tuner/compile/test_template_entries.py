"""A kernel whose entry is a C++ template, with flags and include folders of its own, on the CPU and for a GPU."""

from dataclasses import replace

import pytest
from contracts.variant import needs_nvrtc

from tilewright.kernels.kernel import Kernel, Launch, Tensor, Variant, shape_of
from tilewright.kernels.own import limits_of
from tilewright.kernels.space import choice
from tilewright.tuner.compile.compilation import Compilation, symbol_of
from tilewright.tuner.compile.compiler import compile_now
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.errors import TrialFailure

SOURCE = """
#include <factor.h>
#include "step.cuh"
namespace ours {
template <typename T, int Block>
__global__ void __launch_bounds__(Block) scaled(const T* x, T* y) {
  const int i = blockIdx.x * Block + threadIdx.x;
  if (i < SHAPE_N) y[i] = step(x[i]) * FACTOR;
}
}
"""


@pytest.fixture
def kernel(tmp_path):
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "factor.h").write_text("#define FACTOR (THREE - 1)\n")
    (tmp_path / "common" / "step.cuh").write_text("__device__ inline float step(float x) { return x + OFFSET; }\n")
    (tmp_path / "scaled.cu").write_text(SOURCE)
    return Kernel(
        name="scaled",
        entry="ours::scaled<REAL, block>",
        folder=tmp_path,
        arguments=(Tensor("x", "input", shape_of("n")), Tensor("y", "output", shape_of("n"))),
        variants=(
            Variant(
                "plain",
                "scaled.cu",
                lambda c, p: Launch((-(-p.shape["n"] // c.block), 1, 1), (c.block, 1, 1)),
                (choice("block", 64, 128),),
            ),
        ),
        reference=lambda _p, arrays, _s: 2 * (arrays["x"].astype("f8") + 1),
        flags=("-DTHREE=3", "-DOFFSET=1", "--fmad=false"),
        include_folders=(tmp_path / "common",),
        example_shape={"n": 1000},
    )


def test_the_cpu_device_runs_the_instance_of_the_configuration(kernel):
    device = CpuDevice()
    bench = device.bench(kernel, kernel.problem({"n": 301}), seed=1)
    try:
        for configuration in kernel.space(bench.problem, device.model.limits).feasible:
            assert bench.verify(bench.compile(configuration)).is_right
    finally:
        bench.close()
        device.close()


@needs_nvrtc
def test_a_cubin_holds_the_instance_under_the_name_that_is_found_in_it(kernel):
    problem = kernel.problem({"n": 301})
    small, large = kernel.space(problem, limits_of((7, 5))).feasible
    work = Compilation.of(kernel, problem, small, "sm_75", "nvrtc")
    compiled = compile_now(work)
    assert symbol_of(compiled.cubin, kernel.entry) == "_ZN4ours6scaledIfLi64EEEvPKT_PS1_"
    assert compiled.resources.registers
    other = compile_now(Compilation.of(kernel, problem, large, "sm_75", "nvrtc"))
    assert "Li128E" in symbol_of(other.cubin, kernel.entry)
    plain = Compilation("__global__ void scale(float* x) { *x = 1; }", (), "sm_75", "scale")
    assert symbol_of(compile_now(plain).cubin, "scale") == "_Z5scalePf"
    exported = compile_now(replace(plain, source=f'extern "C" {plain.source}'))
    assert symbol_of(exported.cubin, "scale") == "scale"
    assert symbol_of(exported.cubin, "cale") == "cale"  # there is none: the driver says so
    with pytest.raises(TrialFailure, match="is a template, which takes --compiler nvrtc"):
        compile_now(Compilation.of(kernel, problem, small, "sm_75", "pycuda"))


def test_flags_are_part_of_what_is_hashed(kernel):
    (variant,) = kernel.variants
    assert kernel.source(variant.name).endswith("// compiled with --fmad=false")
