"""Convolutions on a GPU: every variant with every kind of inputs, infinities, and cuDNN beside them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.arrays import random_arrays
from tilewright.tuner.library import cudnn
from tilewright.tuner.loop.verify import compare

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
CONV2D = catalogue().get("conv2d")
SQUARE = {
    "batch": 3,
    "height": 15,
    "width": 13,
    "channels": 64,
    "filters": 72,
    "kernel_h": 3,
    "kernel_w": 3,
    "padding": 1,
}
SHAPES = [
    SQUARE,
    SQUARE | {"stride": 2, "dilation_w": 2, "padding_w": 3},
    SQUARE | {"channels": 128, "kernel_h": 1, "kernel_w": 1, "padding": 0},
    SQUARE | {"channels": 7, "filters": 5, "kernel_w": 4},
]


def in_words(shape):
    """The sizes."""
    return ",".join(map(str, shape.values()))


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("shape", SHAPES, ids=in_words)
def test_every_variant_is_right_with_every_kind_of_inputs(device, shape, layout):
    problem = CONV2D.problem(shape, "float32", {"layout": layout, "activation": "relu"})
    bench = device.bench(CONV2D, problem, 1)
    for variant in CONV2D.usable_variants(problem, device.model.limits):
        feasible = CONV2D.space(problem, device.model.limits, only=[variant.name]).feasible
        for configuration in random.Random(1).sample(feasible, min(3, len(feasible))):
            for verification in bench.verify_each_kind(bench.compile(configuration)):
                assert verification.is_right, (configuration, verification)
    bench.close()


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("variant", ["implicit_gemm", "tensor3xtf32", "tensor3xfp16_sm90"])
def test_infinities_and_nan_come_out_as_in_fp32_and_leave_nothing_behind(device, variant, layout):
    problem = CONV2D.problem(SQUARE, "float32", {"layout": layout})
    if variant not in {v.name for v in CONV2D.usable_variants(problem, device.model.limits)}:
        pytest.skip("the variant is for another compute capability")
    bench = device.bench(CONV2D, problem, 1)
    configuration = CONV2D.space(problem, device.model.limits, only=[variant]).feasible[0]
    executable, arrays = bench.compile(configuration), random_arrays(CONV2D, problem, 5)
    finite = arrays["X"].copy()
    arrays["X"].reshape(-1)[[70, 4000, 9001]] = np.inf, -np.inf, np.nan
    for images in (arrays["X"], finite):
        case = arrays | {"X": images}
        for name, array in case.items():
            bench.device.upload(bench.arrays.addresses[name], np.ascontiguousarray(array))
        executable.enqueue()
        bench.device.synchronize()
        with np.errstate(invalid="ignore"):
            reference = CONV2D.reference(problem, case, {})
            out, expected = bench.output(), reference.value
        odd = ~np.isfinite(expected)
        assert odd.any() == (images is not finite)
        np.testing.assert_array_equal(out[odd], expected[odd])
        expected[odd] = out[odd] = reference.magnitude[odd] = 1
        assert compare(out, reference, "float32").wrong == 0
    bench.close()


@pytest.mark.parametrize("options", [{}, {"activation": "relu"}, {"activation": "gelu", "layout": "nchw"}], ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, SQUARE | {"filters": 2}], ids=in_words)
def test_cudnn_is_right_and_says_what_it_is(device, shape, options):
    if not cudnn.is_available():
        pytest.skip("cuDNN is not installed")
    depthwise = shape["filters"] == 2
    bench = device.bench(CONV2D, CONV2D.problem(shape, "float32", options | {"depthwise": depthwise}), 1)
    library = bench.library()
    assert library is not None
    assert str(bench.library_name()).startswith("cuDNN ")
    assert bench.verify_timed(library).is_right
    bench.close()
