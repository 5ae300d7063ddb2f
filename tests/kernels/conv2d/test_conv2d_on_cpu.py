"""conv2d's sources for CUDA cores, run for real on the CPU device."""

from contextlib import closing

import pytest
from contracts.host_compiler import SANITIZING, checked
from contracts.variant import verified
from faulty_kernels import with_change
from sampling import EXHAUSTIVE

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.loop.verify import C_DEFAULT

CONV2D = catalogue().get("conv2d")
ODD = {"batch": 3, "height": 11, "width": 13, "channels": 7, "filters": 19, "kernel_h": 3, "kernel_w": 2, "padding": 1}
EVEN = {"batch": 2, "height": 8, "width": 9, "channels": 8, "filters": 24, "kernel_h": 3, "kernel_w": 3}
STEPS = {"stride": 2, "stride_w": 1, "padding": 2, "padding_w": 0, "dilation": 2, "dilation_w": 1}
WPT = Configuration.of(
    "implicit_gemm",
    {"TILE_M": 32, "TILE_N": 16, "TILE_K": 16, "WPT_M": 4, "WPT_N": 2, "VECTOR_WIDTH": 4, "MIN_BLOCKS": 1},
)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize(
    ("variant", "shape", "dtype", "options"),
    [
        ("direct", ODD, "float32", {"activation": "relu"}),
        ("direct", EVEN | STEPS | {"filters": 2}, "float64", {"depthwise": True}),
        ("implicit_gemm", ODD | STEPS, "float64", {"activation": "tanh"}),
        ("implicit_gemm", EVEN | STEPS, "float32", {"activation": "gelu", "accuracy": "fp32-fma"}),
        ("implicit_gemm", EVEN | {"kernel_h": 1, "kernel_w": 1}, "float32", {}),
        ("depthwise", EVEN | STEPS | {"filters": 1}, "float32", {"depthwise": True, "activation": "relu"}),
        ("depthwise", ODD | {"filters": 3}, "float64", {"depthwise": True}),
    ],
)
@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=EXHAUSTIVE)], ids=["some", "all"])
def test_convolutions_are_right(device, *, variant, shape, dtype, options, layout, is_whole):
    """In every run the corners of a space in one layout and its middle in the other."""
    problem = CONV2D.problem(shape, dtype, options | {"layout": layout})
    feasible = CONV2D.space(problem, device.model.limits, only=[variant]).feasible
    places = (0, len(feasible) // 2, len(feasible) - 1)
    for place in places if is_whole else places[::2] if layout == "nhwc" else places[1:2]:
        found = verified(device, CONV2D, problem, feasible[place])
        assert found.wrong == 0, feasible[place]
        assert found.bound_ratio < C_DEFAULT


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize(("variant", "depthwise"), [("direct", False), ("implicit_gemm", False), ("depthwise", True)])
def test_padding_is_zeros_also_where_filters_are_infinite(device, variant, depthwise, layout):
    """0 times infinity is NaN: kinds of inputs with such filters must come out as by the reference, as all others."""
    problem = CONV2D.problem(ODD, "float32", {"layout": layout, "depthwise": depthwise})
    configuration = CONV2D.space(problem, device.model.limits, only=[variant]).feasible[-1]
    with closing(device.bench(CONV2D, problem, seed=5)) as bench:
        for found in bench.verify_each_kind(bench.compile(configuration)):
            assert found.is_right, found.message()


@SANITIZING
@pytest.mark.parametrize("mode", ["address", pytest.param("thread", marks=EXHAUSTIVE)])
def test_patches_at_the_edges_are_clean_under_sanitizers(device, mode):
    problem = CONV2D.problem(EVEN | STEPS)
    assert WPT in CONV2D.space(problem, device.model.limits)
    bench = device.bench(CONV2D, problem, seed=5)
    assert checked(bench, WPT, mode).is_clean
    bench.close()


@pytest.mark.parametrize(
    ("file", "text", "bug"),
    [
        ("../conv/patches.cuh", "* STRIDE_H) -", "* STRIDE_W) -"),
        ("../conv/patches.cuh", "static_cast<unsigned>(y) < IMAGE_H", "static_cast<unsigned>(y) < IMAGE_H - 2"),
        ("../conv/patches.cuh", "number / KERNEL_W * DILATION_H", "number / KERNEL_W"),
        ("epilogue.cuh", "sum.lane[i] + out.lane[i]", "sum.lane[i]"),
    ],
)
def test_a_bug_is_found(device, tmp_path, file, text, bug):
    """The verification that tuning runs sees what one changed line does."""
    broken = with_change(CONV2D, tmp_path, file, text, bug)
    assert verified(device, broken, CONV2D.problem(EVEN | STEPS), WPT).wrong > 0
