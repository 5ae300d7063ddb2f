import numpy as np
import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.conv2d.shape import posed_by
from tilewright.kernels.errors import InvalidLayoutError
from tilewright.kernels.fields.axes import Layout

CONV2D = catalogue().get("conv2d")
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
