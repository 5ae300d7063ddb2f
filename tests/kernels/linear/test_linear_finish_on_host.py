"""The GPU's end of a layer's reference, compiled by the host's compiler, beside NumPy's."""

import ctypes
import math
import subprocess

import numpy as np
import pytest
from contracts.launches_on_host import needs_cpp_library

from tilewright.kernels.dtypes import SMALLEST_NORMAL, UNIT_ROUNDOFF
from tilewright.kernels.linear.declaration import FINISH, KERNEL
from tilewright.kernels.linear.reference import ACTIVATIONS, activated_sums
from tilewright.tuner.devices.cpu.compile import find_compiler

ROWS, COLUMNS, TERMS = 40, 70, 785

ONE_THREAD = r"""
#include <cmath>
#include <cstddef>
using namespace std;
#define __device__
#define __forceinline__ inline
#define __global__
static const struct { unsigned x; } gridDim{1}, blockDim{1}, blockIdx{0}, threadIdx{0};
"""


def drawn():
    """Sums, the sums of their sizes, and biases: small, large, infinite and NaN."""
    generator = np.random.default_rng(5)
    z = generator.standard_normal((ROWS, COLUMNS)) * np.exp2(generator.integers(-20, 8, (ROWS, COLUMNS)))
    z[0, :4] = 0.0, np.inf, -np.inf, np.nan
    return z, np.abs(z) * generator.uniform(1, 30, z.shape), generator.standard_normal(COLUMNS)


def finished(activation, folder, z, magnitude, b):
    """What `finish` makes of them, by one thread."""
    problem = KERNEL.problem({"m": ROWS, "n": COLUMNS, "k": TERMS - 1}, "float32", {"activation": activation})
    source, library = folder / "finish.cpp", folder / "finish.so"
    source.write_text(ONE_THREAD + FINISH.source.read_text(encoding="utf-8"), encoding="utf-8")
    macros = [f"-D{name}={value}" for name, value in FINISH.macros(problem).items()]
    command = [*find_compiler().command, "-std=c++17", "-shared", "-fPIC", *macros, str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    z, magnitude = z.copy(), magnitude.copy()
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (z, magnitude, b)]
    numbers = math.sqrt(TERMS), UNIT_ROUNDOFF["float32"], SMALLEST_NORMAL["float32"]
    counts = map(ctypes.c_ulonglong, (COLUMNS, z.size))
    ctypes.CDLL(str(library)).finish(*pointers, *counts, *map(ctypes.c_double, numbers))
    return problem, z, magnitude


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_gpu_finishes_a_layers_reference_as_numpy_does(activation, tmp_path):
    needs_cpp_library()
    z, magnitude, b = drawn()
    problem, value, size = finished(activation, tmp_path, z, magnitude, b)
    expected = activated_sums(problem, b, z, magnitude, TERMS)
    np.testing.assert_allclose(value, expected.value, rtol=1e-12, atol=0)
    np.testing.assert_allclose(size, expected.magnitude, rtol=1e-5, atol=0)
