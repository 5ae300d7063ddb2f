"""Kernels on tensor cores on the CPU device: their asynchronous copies and products made of ordinary C++."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from contracts.host_compiler import needs_cpp_library
from contracts.register_on_host import HEADERS, beside

from tilewright.kernels.kernel import Kernel, Variant

CONVERT = r"""
#pragma once
#include <cmath>
#include <cstring>
inline float host_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
inline unsigned host_bits(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
#define __uint_as_float host_float
#define __float_as_uint host_bits
inline unsigned round_bf16(float x) {
  unsigned bits = host_bits(x);
  return std::isfinite(x) ? (bits + 0x7fffu + (bits >> 16 & 1)) >> 16 : bits >> 16;
}
inline unsigned cvt_rn_bf16x2(float first, float second) { return round_bf16(second) << 16 | round_bf16(first); }
"""

# Tensor cores for the host: lanes hand one another their parts by shuffles, and sums are made in double and cut off.
# Inputs are cut to the bits that the tensor core reads.
MMA_SYNC = r"""
#pragma once
#include "ptx/convert.cuh"
inline float cut_off(double x) {
  float y = (float)x;
  return std::isfinite(y) && std::fabs((double)y) > std::fabs(x) ? std::nextafterf(y, 0.0f) : y;
}
inline float tf32_of(unsigned bits, unsigned) { return host_float(bits & 0xffffe000u); }
inline float bf16_of(unsigned bits, unsigned half) { return host_float(bits >> (half * 16) << 16); }
template <unsigned HALVES, class Part>
inline void host_multiply(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2], Part part) {
  const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  double total[4] = {sum[0], sum[1], sum[2], sum[3]};
  for (unsigned p = 0; p < 8; ++p) {
    for (unsigned row = 0; row < 2; ++row) {
      const unsigned from_a = __shfl_sync(0xffffffffu, p / 4 ? a[2 + row] : a[row], g * 4 + p % 4);
      for (unsigned column = 0; column < 2; ++column) {
        const unsigned from_b = __shfl_sync(0xffffffffu, b[p / 4], (2 * t + column) * 4 + p % 4);
        for (unsigned half = 0; half < HALVES; ++half) {
          total[row * 2 + column] += (double)part(from_a, half) * part(from_b, half);
        }
      }
    }
  }
  for (unsigned q = 0; q < 4; ++q) sum[q] = cut_off(total[q]);
}
inline void mma_m16n8k8_tf32(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  host_multiply<1>(sum, a, b, tf32_of);
}
inline void mma_m16n8k16_bf16(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  host_multiply<2>(sum, a, b, bf16_of);
}
"""


def tensor_on_host(kernel: Kernel, variants: Iterable[Variant], folder: Path) -> Kernel:
    """The kernel with these variants, its sources copied to the folder; skips the test without C++'s library."""
    needs_cpp_library()
    here = beside(HEADERS | {"ptx/convert.cuh": CONVERT, "ptx/mma_sync.cuh": MMA_SYNC}, kernel, folder)
    ours = tuple(replace(variant, requires=frozenset()) for variant in variants)
    return replace(kernel, folder=here, variants=ours, default_variant=ours[0].name)
