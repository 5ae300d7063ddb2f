"""Constant memory that a host program fills is found with its size; what has contents or no clear size stays."""

import pytest

from tilewright.tuner.cuda_source.constants import constant_arrays


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
