"""What a kernel does with a pointer is read from its tree, through macros, functions and other pointers."""

import pytest

from tilewright.tuner.cuda_source.tree import CudaSource
from tilewright.tuner.cuda_source.uses import PointerUses

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
