"""What is read from a CUDA source: constant arrays, how far indices go, how pointers are used."""

import pytest

from tilewright.tuner.cuda_source.constants import constant_arrays
from tilewright.tuner.cuda_source.extents import Extents
from tilewright.tuner.cuda_source.tree import CudaSource
from tilewright.tuner.cuda_source.uses import PointerUses


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("__constant__ float w[3];", [("w", "float32", (3,))]),
        ("__device__ __constant__ int w[2][4];", [("w", "int32", (2, 4))]),
        ("#define N 5\n__constant__ double w[N * N + 1];", [("w", "float64", (26,))]),
        ("__constant__ unsigned n;", [("n", "uint32", (1,))]),
        ("typedef float real;\n__constant__ real w[3];", [("w", "float32", (3,))]),
        ("__constant__ REAL w[3];", [("w", None, (3,))]),
        ("__constant__ float w[3] = {1, 2, 3};", []),
        ("__constant__ float w[];", []),
        ("__constant__ float w[sizeof(int)];", []),
        ("__constant__ float4 w[3];", []),
    ],
)
def test_arrays_without_contents_are_inputs(text, found):
    assert [(one.name, one.dtype, one.shape) for one in constant_arrays(text)] == found


def test_macros_that_a_size_is_made_of_are_named():
    text = "#define RADIUS 2\n#define SIZE (2 * RADIUS + 1)\n__constant__ float w[SIZE];"
    [array] = constant_arrays(text)
    assert (array.shape, array.macros) == ((5,), {"RADIUS", "SIZE"})


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


BESIDE = """
#define LOAD(x, i) __ldg(x + i)
#if CACHED
#define ANY(x, i) LOAD(x, i)
#else
#define ANY(x, i) x[i]
#endif
#define SET(x, i, v) x[i] = v
#define HIDDEN y
__device__ float first(const float* p) { return *p; }
__device__ float again(float* p, int n) { return n ? again(p, n - 1) : p[0]; }
__device__ void fill(float* p) { p[0] = 1; }
__device__ void by_reference(float& one) { one = 1; }
__device__ float by_value(float one) { return one; }
"""


@pytest.mark.parametrize(
    ("body", "uses"),
    [
        ("y[i] = 1;", "assigned"),
        ("y += 4; y[i] = 1;", "assigned"),
        ("y[i] += 1;", "other"),
        ("float a = y[i];", "read"),
        ("z[y[i]] = 1;", "read"),
        ("f(&y[i]);", "other"),
        ("atomicAdd(y + i, 1.0f);", "other"),
        ("y[i].x = 1;", "other"),
        ("++y[i];", "other"),
        ("if (y[i] == 1) y[i] = 2;", "read assigned"),
        ("float* q = y + 1; z[i] = q[i];", "read"),
        ("float* q = y + 1; *q++ = z[i];", "other"),
        ("float* q; q = &y[i]; fill(q);", "other"),
        ("const float& a = y[i]; z[i] = a;", "read"),
        ("float& a = y[i]; a = 1;", "other"),
        ("z[i] = __ldg(&y[i]) + *(y + i) + LOAD(y, i) + ANY(y, i);", "read"),
        ("SET(y, i, 1);", "assigned"),
        ("SET(z + i, y, 1);", "other"),
        ("fill(y);", "assigned"),
        ("fill(y + i);", "other"),
        ("HIDDEN[i] = 1;", "other"),
        ("z[i] = first(y + i) + again(y, i) + by_value(y[i]) + fabsf(y[i]);", "read"),
        ("by_reference(y[i]);", "other"),
        ("float4 a = reinterpret_cast<const float4*>(y)[i]; float2 b = ((float2*)y)[i];", "read"),
        ("reinterpret_cast<float4*>(y)[i] = a;", "assigned"),
        ("float** q = &y;", "other"),
        ("z[i] = 1;", ""),
    ],
)
def test_uses_of_a_pointer_are_told_apart(body, uses):
    source = CudaSource(BESIDE + "__global__ void k(float* y, float* z, int i) { " + body + " }")
    [kernel] = source.kernels
    assert PointerUses(source).of(kernel.node, "y") == set(uses.split())
