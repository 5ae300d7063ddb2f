"""conv2d's sources for CUDA cores, run for real on the CPU device."""

import itertools
from contextlib import closing

import numpy as np
import pytest
from contracts.launches_on_host import SANITIZING, checked
from contracts.variant import verified
from faulty_kernels import with_change
from sampling import EXHAUSTIVE

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.conv2d import reference as conv2d_reference
from tilewright.kernels.conv2d.shape import posed_by
from tilewright.kernels.errors import InvalidLayoutError, InvalidProblemError
from tilewright.kernels.fields.axes import Layout
from tilewright.kernels.space import Configuration
from tilewright.tuner.arrays import random_arrays
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


IMAGE = {"batch": 2, "height": 7, "width": 9, "channels": 3, "filters": 5, "kernel_h": 3, "kernel_w": 2}


def arrays_of(problem):
    return {tensor.name: np.empty(tensor.shape(problem), np.float32) for tensor in CONV2D.tensors}


def as_torch(arrays):
    """Views with the channels second, as PyTorch's tensors in the format channels_last are."""
    return {name: np.moveaxis(array, -1, 1) if array.ndim == 4 else array for name, array in arrays.items()}


def posed(problem, arrays):
    layouts = {name: Layout(a.shape, tuple(step // a.itemsize for step in a.strides)) for name, a in arrays.items()}
    shape, options = posed_by(problem, layouts)
    return CONV2D.problem(shape, problem.dtype, options)


@pytest.mark.parametrize("asked", ["nhwc", "nchw"])
@pytest.mark.parametrize("stored", ["nhwc", "nchw"])
def test_the_layout_is_that_of_the_arrays(asked, stored):
    ask, store = (CONV2D.problem(IMAGE | {"padding": 1}, "float32", {"layout": word}) for word in (asked, stored))
    assert posed(ask, arrays_of(store)) == store


@pytest.mark.parametrize("depthwise", [False, True])
def test_tensors_in_channels_last_are_nhwc(depthwise):
    problem = CONV2D.problem(IMAGE, "float32", {"depthwise": depthwise})
    arrays = as_torch(arrays_of(problem))
    if depthwise:
        arrays["W"] = arrays["W"][:, None]
    assert posed(CONV2D.problem(IMAGE, "float32", {"layout": "nchw", "depthwise": depthwise}), arrays) == problem


@pytest.mark.parametrize("name", ["X", "W", "Y", "b"])
def test_an_array_that_is_not_dense_is_refused_by_name(name):
    problem = CONV2D.problem(IMAGE)
    arrays = arrays_of(problem)
    arrays[name] = np.repeat(arrays[name], 2, axis=0)[::2]
    with pytest.raises(InvalidLayoutError, match=f"^{name}: .*dense.*channels_last"):
        posed(problem, arrays)


MOVES = [
    {},
    {"padding": 1},
    {"stride": 2, "padding": 1},
    {"stride": 3, "stride_w": 1, "padding": 0, "padding_w": 4, "dilation": 2, "dilation_w": 1},
]


def patch_sums(problem, arrays):
    """The sums before the activation, patch by patch as (batch, height, width, channels)."""
    shape, nhwc = problem.shape, problem.options["layout"] == "nhwc"
    images = arrays["X"].astype(float) if nhwc else np.moveaxis(arrays["X"].astype(float), 1, -1)
    margins = [(shape["padding"],) * 2, (shape["padding_w"],) * 2]
    images = np.pad(images, [(0, 0), *margins, (0, 0)])
    extents = CONV2D.output.shape(problem)[1:3] if nhwc else CONV2D.output.shape(problem)[2:]
    out = np.zeros((shape["batch"], *extents, arrays["b"].size))
    for y, x in itertools.product(*map(range, extents)):
        rows = y * shape["stride"] + shape["dilation"] * np.arange(shape["kernel_h"])
        columns = x * shape["stride_w"] + shape["dilation_w"] * np.arange(shape["kernel_w"])
        patch = images[:, rows][:, :, columns]
        if problem.options["depthwise"]:
            patch = np.repeat(patch, shape["filters"], axis=-1)
            out[:, y, x] = np.einsum("nrsf,frs->nf", patch, arrays["W"].astype(float))
        else:
            out[:, y, x] = np.einsum("nrsc,frsc->nf" if nhwc else "nrsc,fcrs->nf", patch, arrays["W"].astype(float))
    out += arrays["b"]
    return out if nhwc else np.moveaxis(out, -1, 1)


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("moves", MOVES)
def test_the_reference_is_the_sum_over_each_patch(moves, layout, depthwise):
    problem = CONV2D.problem(IMAGE | moves, "float32", {"layout": layout, "depthwise": depthwise})
    arrays = random_arrays(CONV2D, problem, seed=3)
    reference = CONV2D.reference(problem, arrays, {})
    sizes = {name: np.abs(array) for name, array in arrays.items()}
    np.testing.assert_allclose(reference.value, patch_sums(problem, arrays), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(reference.magnitude, patch_sums(problem, sizes), rtol=1e-12)
    assert reference.terms == 3 * 2 * (1 if depthwise else 3) + 1


def test_row_by_row_the_reference_is_the_same(monkeypatch):
    problem = CONV2D.problem(IMAGE | {"padding": 1}, "float32")
    arrays = random_arrays(CONV2D, problem, seed=3)
    at_once = CONV2D.reference(problem, arrays, {})
    monkeypatch.setattr(conv2d_reference, "_BLOCK", 1)  # as where an image has more patches than fit
    np.testing.assert_allclose(CONV2D.reference(problem, arrays, {}).value, at_once.value, rtol=1e-12, atol=1e-12)


def test_the_output_is_activated():
    plain, activated = (CONV2D.problem(IMAGE, "float32", {"activation": word}) for word in ("none", "relu"))
    arrays = random_arrays(CONV2D, plain, seed=3)
    sums, outputs = (CONV2D.reference(problem, arrays, {}).value for problem in (plain, activated))
    assert (sums < 0).any()
    np.testing.assert_array_equal(outputs, np.maximum(sums, 0))


def test_steps_along_the_width_are_those_along_the_height_unless_stated():
    problem = CONV2D.problem(IMAGE | {"stride": 2, "padding": 1, "dilation": 2})
    stated = CONV2D.problem(
        IMAGE | {"stride": 2, "stride_w": 2, "padding": 1, "padding_w": 1, "dilation": 2, "dilation_w": 2}
    )
    assert problem.hash == stated.hash
    assert problem.shape["padding_w"] == 1


@pytest.mark.parametrize(
    ("moves", "field", "words"),
    [
        ({"kernel_h": 8}, "shape.kernel_h", "reaches over 8 pixels"),
        ({"dilation_w": 9}, "shape.kernel_w", "the padded width is 9"),
        ({"stride": 0}, "shape.stride", "from 1"),
        ({"padding": -1}, "shape.padding", "from 0"),
        ({"batch": 2**27, "height": 64}, "shape.batch", "output pixels"),
    ],
)
def test_what_is_no_convolution_is_refused_with_its_axis(moves, field, words):
    with pytest.raises(InvalidProblemError) as refusal:
        CONV2D.problem(IMAGE | moves)
    assert refusal.value.field == field
    assert words in str(refusal.value)


def test_work_counts_every_tap_and_each_number_once():
    problem = CONV2D.problem(CONV2D.example_shape)
    assert CONV2D.flops(problem) == 2 * 28 * 28 * 64 * 64 * 9
    assert CONV2D.bytes_moved(problem) == 4 * (2 * 28 * 28 * 64 + 64 * 64 * 9 + 64)
    assert CONV2D.flops(CONV2D.problem(CONV2D.example_shape | {"filters": 1}, "float32", {"depthwise": True})) == (
        2 * 28 * 28 * 64 * 9
    )


def test_infinities_and_nan_are_as_of_ieee_754_without_a_warning():
    problem = CONV2D.problem(IMAGE | {"padding": 1}, "float32")
    reference = CONV2D.reference(problem, random_arrays(CONV2D, problem, 3, "nonfinite"), {})
    assert not np.isfinite(reference.value).all()
    assert np.isfinite(reference.value).any()
