import itertools

import numpy as np
import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.conv2d import reference as conv2d_reference
from tilewright.kernels.errors import InvalidProblemError
from tilewright.tuner.arrays import random_arrays

CONV2D = catalogue().get("conv2d")
IMAGE = {"batch": 2, "height": 7, "width": 9, "channels": 3, "filters": 5, "kernel_h": 3, "kernel_w": 2}
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
