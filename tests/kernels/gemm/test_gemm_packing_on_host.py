"""What gemm's `tensor_half_packed_sm90` packs, on the host: numbers at their places, wherever rows begin."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from contracts.launches_on_host import needs_cpp_library
from contracts.packed_on_host import DEPENDENT_LAUNCH
from contracts.register_on_host import beside

from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.gemm.tensor_half_packed_sm90_space import TENSOR_HALF_PACKED_SM90, lies_along_k, packed_bytes
from tilewright.tuner.devices.cpu.build import LIBRARY, HostBuilder, default_cache
from tilewright.tuner.devices.cpu.compile import find_compiler

LINE, STEP, BEYOND = 64, 64, 512
HEADERS = {
    "ptx/dependent_launch.cuh": DEPENDENT_LAUNCH,
    "ptx/convert_half.cuh": r"""
#pragma once
template <bool IS_BFLOAT16> unsigned cvt_rn_x2(float, float);
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return (unsigned)(((unsigned long long)high << 32 | low) >> by);
}
""",
}
SOURCE = r"""
#include "hmma/element.cuh"
#include "tma/pack.cuh"
extern "C" __global__ void on_host(float, const Half* A, const Half* B, float, Stored*, unsigned char* workspace) {
  pack(A, B, workspace);
}
"""


@pytest.fixture(scope="module", autouse=True)
def compiler():
    """Nothing here goes without one."""
    needs_cpp_library()


def packed_by_source(problem, a, b, folder):
    """The workspace after a launch on these numbers of 16 bits, which may lie anywhere."""
    here = beside(HEADERS, KERNEL, folder)
    (here / TENSOR_HALF_PACKED_SM90.source).write_text(SOURCE, encoding="utf-8")
    variant = replace(TENSOR_HALF_PACKED_SM90, before=())
    kernel = replace(KERNEL, folder=here, entry="on_host", variants=(variant,), default_variant=variant.name)
    path, _ = HostBuilder(find_compiler(), default_cache()).program(kernel, problem, variant.space().default(), LIBRARY)
    workspace = np.full(packed_bytes(problem) // 2, 0xEEEE, np.uint16)
    addresses = [ctypes.c_void_p(one.ctypes.data) for one in (a, b, workspace)]
    cells = [ctypes.c_float(), *addresses[:2], ctypes.c_float(), ctypes.c_void_p(), addresses[2]]
    (_, launch), _ = TENSOR_HALF_PACKED_SM90.launches("gemm", variant.space().default().values, problem)
    sizes = (ctypes.c_uint * 6)(*launch.grid, *launch.block)
    ctypes.CDLL(str(path)).host_library_launch(sizes, (ctypes.c_void_p * 6)(*map(ctypes.addressof, cells)))
    return workspace


def packed_by_numpy(problem, x, matrices):
    """The same of one operand: units of eight rows or columns and 64 k, in whose lines along k chunks are swizzled."""
    count, rows, length = matrices.shape
    along_k = lies_along_k(problem, x)
    all_rows = -(-rows // 8) * 8 if along_k else -(-rows // STEP) * STEP
    all_length = -(-length // STEP) * STEP if along_k else -(-length // 8) * 8
    numbers = np.zeros((count, all_rows, all_length), np.uint16)
    numbers[:, :rows, :length] = matrices
    if not along_k:
        return numbers.reshape(count, all_rows // STEP, STEP, all_length // 8, 8).transpose(1, 0, 3, 2, 4).ravel()
    chunks = numbers.reshape(count, all_rows, all_length // STEP, 8, 8)
    places = np.arange(8) ^ np.arange(all_rows)[:, None] % 8
    return np.take_along_axis(chunks, places[None, :, None, :, None], axis=3).transpose(2, 0, 1, 3, 4).ravel()


@pytest.mark.parametrize("offset", [0, 1, 6])
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ({"m": 33, "n": 77, "k": 131}, {}),
        ({"m": 33, "n": 77, "k": 131}, {"trans_a": True, "trans_b": True}),
        ({"m": 65, "n": 71, "k": 130, "batch": 3, "stride_b": 0, "lda": 133}, {"trans_b": True}),
        ({"m": 9, "n": 129, "k": 64, "batch": 2, "ldb": 131}, {"trans_a": True}),
    ],
    ids=str,
)
def test_every_number_is_packed_at_its_place(sizes, options, offset, tmp_path):
    problem = KERNEL.problem(sizes, "bfloat16", options)
    generator, arrays, expected = np.random.default_rng(1), [], []
    for tensor in KERNEL.tensors[:2]:
        layout = tensor.layout(problem)
        shape = ((1,) * (3 - len(layout.own_shape)) + layout.own_shape)[-3:]
        strides = ((0,) * (3 - len(layout.strides)) + layout.strides)[-3:]
        span = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + 1
        memory = generator.integers(1, 1 << 16, offset + span, np.uint16)[offset:]
        arrays.append(memory)
        bytes_between = [2 * stride for stride in strides]
        matrices = np.lib.stride_tricks.as_strided(memory, shape, bytes_between)
        expected.append(packed_by_numpy(problem, tensor.name.lower(), matrices))
    workspace = packed_by_source(problem, *arrays, tmp_path)
    ends = [len(one) + BEYOND * LINE for one in expected]
    assert sum(ends) == len(workspace)
    assert np.array_equal(workspace[: len(expected[0])], expected[0])
    assert np.array_equal(workspace[ends[0] :][: len(expected[1])], expected[1])
