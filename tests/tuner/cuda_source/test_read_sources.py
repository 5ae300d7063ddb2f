"""What is read from a CUDA source: constants, how far indices go, how pointers are used, static shared memory."""

from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.tuner.cuda_source.constants import constant_arrays
from tilewright.tuner.cuda_source.extents import Extents
from tilewright.tuner.cuda_source.static_shared import static_shared_bytes
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


SOURCE = """
#define WIDTH (tile * block)
#ifndef tile
#define tile 7
#endif
#define PADDED WIDTH
#if (tile % 4 == 2) && \\
    defined WIDTH
#define EXTRA (32 - (WIDTH & 31) + 0x3u)
#undef PADDED
#define PADDED (WIDTH + EXTRA)
#endif
const int ROWS = tile * 2, other = 3;
#ifdef __CUDA_ARCH__
#define BY_ARCHITECTURE 3
#endif
#if tile == 3
#define PADDED sizeof(int)
#endif
#define PAD 1
#define TWICE 2
#undef TWICE
#define TWICE 3
"""


class Values:
    tile, block = 2, 32


@pytest.mark.parametrize(
    ("body", "right"),
    [
        ("float x[3];", 0),
        ("__shared__ float x[block];", 128),
        ("extern __shared__ float x[];", 0),
        ("__shared__ volatile double x[2][WIDTH + PAD];", 8 * 2 * 65),
        ("__shared__ float4 x[block / 5];", 16 * 6),
        ("__shared__ char x[5];\n__shared__ int n;", 16 + 16),
        ("#if tile == 2\n__shared__ int x[8];\n#else\n__shared__ int x[9];\n#endif\n__shared__ int y[1];", 36),
        ("#if tile > 2\n__shared__ int x[8];\n#else\n__shared__ int x[9];\n#endif", 36),
        (
            "#if tile > 2\n__shared__ int x[8];\n#elif defined(WIDTH)\n__shared__ int x[7];\n#else\n__shared__ T x;",
            28,
        ),
        ("__shared__ float x[ROWS][tile > 4 ? 3 : 5];", 4 * 4 * 5),
        ("__shared__ float x[min(tile, block)];", 8),
        ("const int own = block / 3;\n__shared__ float x[own];", 40),
        ("__shared__ int x[TWICE];", 12),
        ("#ifdef UNKNOWN\n__shared__ int x[8];\n#endif", 32),
    ],
)
def test_bytes_of_what_a_function_declares(body, right):
    text = static_shared_bytes(body, SOURCE, ["tile", "block"])
    assert eval(text or "0", {"c": Values}) == right  # noqa: S307


def test_macros_count_as_they_are_where_they_are_used():
    body = "__shared__ float x[PADDED];\n#undef PADDED\n#define PADDED 1\n__shared__ float y[PADDED];"
    text = static_shared_bytes(body, SOURCE.rpartition("#if tile == 3")[0], ["tile", "block"])
    right = {2: 4 * (64 + 32 + 3) + 4, 4: 4 * 128 + 4, 3: 4 * 96 + 4}
    for tile, size in right.items():
        assert eval(text, {"c": SimpleNamespace(tile=tile, block=32)}) == size  # noqa: S307
    several = SimpleNamespace(tile=np.array([*right]), block=np.array([32, 32, 32]))
    assert [*eval(text, {"c": several})] == [*right.values()]  # noqa: S307


@pytest.mark.parametrize(
    "body",
    [
        "__shared__ T x[8];",
        "__shared__ int x[BY_ARCHITECTURE];",
        "__shared__ int x[PADDED];",
        "__shared__ int x[width];",
        "__shared__ int x[f(tile)];",
    ],
)
def test_what_cannot_be_told(body):
    assert static_shared_bytes(body, SOURCE, ["tile", "block"]) is None
