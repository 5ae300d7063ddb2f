"""How far indices go is read from comparisons and from `row * width + column`; what is unclear stays open."""

import pytest

from tilewright.tuner.cuda_source.extents import Extents
from tilewright.tuner.cuda_source.tree import CudaSource

X = "int x = blockIdx.x * blockDim.x + threadIdx.x;"
Y = "const int y = threadIdx.y + blockDim.y * blockIdx.y;"


def extents_of(body, numbers=("w", "h", "k", "n")):
    [kernel] = CudaSource(f"__global__ void f(float* a, int w, int h, int k, int n) {{ {body} }}").kernels
    return Extents(kernel, numbers)


@pytest.mark.parametrize(
    ("body", "along"),
    [
        (f"{X} if (x < n) a[x] = 1;", {"x": ("n",)}),
        (f"{X} if (n <= x) return; a[x] = 1;", {"x": ("n",)}),
        (f"{X} {Y} if (x >= w || y >= h) return; a[y * w + x] = 1;", {"x": ("w",), "y": ("h",)}),
        (f"{X} if (x < w * h) a[x] = 1;", {"x": ("w", "h")}),
        (f"{X} if (x < (w - 1)) a[x] = 1;", {"x": ("w",)}),
        (f"{X} for (int i = x; i < n; i += gridDim.x * blockDim.x) a[i] = 1;", {"x": ("n",)}),
        (f"{X} {Y} int i = y * w + x; if (i > w * h - 1) return; a[i] = 1;", {"x": ("w",), "y": ("h",)}),
        (f"{X} unsigned int z; z = blockIdx.z; if (z < k) a[z * n + x] = 1;", {"x": ("n",), "z": ("k",)}),
        (f"{X} for (int i = 0; i < k; ++i) a[x + i] = 1;", {}),
    ],
)
def test_bounds_of_the_threads_along_each_axis(body, along):
    assert extents_of(body).along == along


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        ("y * w + x", ["h", "w"]),
        ("(y) * w + x", ["h", "w"]),
        ("x + w * y", ["h", "w"]),
        ("y * k + i", ["h", "k"]),
        ("i * w + x", ["k", "w"]),
        ("x", None),
        ("y * 4 + x", None),
        ("y * w + x + 1", None),
    ],
)
def test_the_shape_of_an_array_is_that_of_its_indices(index, shape):
    body = f"{X} {Y} if (x < w && y < h) for (int i = 0; i < k; ++i) a[{index}] = 1;"
    assert extents_of(body).shape_of("a") == shape


def test_an_array_with_indices_of_two_forms_has_no_shape():
    body = f"{X} {Y} if (x < w && y < h) a[y * w + x] = a[x * h + y];"
    assert extents_of(body).shape_of("a") is None


def test_loops_axes_and_steps_of_blocks():
    body = f"int x = blockIdx.x * TILE + threadIdx.x; {Y} if (x < w && y < h) for (int i = 0; i < k; ++i) a[i] = x;"
    found = extents_of(body)
    assert (found.loops, found.axes) == ({"k"}, ["x", "y"])
    assert (found.per_block("x"), found.per_block("y"), found.per_block("z")) == ("TILE", "blockDim", "")
