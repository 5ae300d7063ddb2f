"""Kernels on tensor cores on the CPU device: their asynchronous copies and products made of ordinary C++."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from contracts.launches_on_host import needs_cpp_library
from contracts.register_on_host import HEADERS, beside

from tilewright.kernels.kernel import Kernel, Variant

CONVERT = r"""
#pragma once
#include <cmath>
#include <cstring>
inline float host_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
inline unsigned host_bits(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
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

# The same in FP64, where sums are FMAs', term after term.
MMA_SYNC_F64 = r"""
#pragma once
#include <cmath>
template <unsigned TERMS>
inline void mma_m16n8_f64(
    double& sum0, double& sum1, double& sum2, double& sum3,
    const double (&a)[TERMS / 2], const double (&b)[TERMS / 4]) {
  const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  double* const sums[4] = {&sum0, &sum1, &sum2, &sum3};
  for (unsigned p = 0; p < TERMS; ++p) {
    for (unsigned row = 0; row < 2; ++row) {
      const double from_a = __shfl_sync(0xffffffffu, a[p / 4 * 2 + row], g * 4 + p % 4);
      for (unsigned column = 0; column < 2; ++column) {
        const double from_b = __shfl_sync(0xffffffffu, b[p / 4], (2 * t + column) * 4 + p % 4);
        *sums[row * 2 + column] = std::fma(from_a, from_b, *sums[row * 2 + column]);
      }
    }
  }
}
"""

# The same in types of 16 bits, whose parts come by ldmatrix.
LDMATRIX = r"""
#pragma once
#include "ptx/shared_memory.cuh"
inline unsigned short host_element(unsigned address, unsigned place) {
  return ((const unsigned short*)(host_base + address))[place];
}
inline void host_ldmatrix(unsigned (&x)[4], unsigned address, bool is_transposed) {
  if (address % 16) __builtin_trap();
  const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  for (unsigned q = 0; q < 4; ++q) {
    const unsigned line = __shfl_sync(0xffffffffu, address, q * 8 + g);
    const unsigned first = __shfl_sync(0xffffffffu, address, q * 8 + 2 * t);
    const unsigned second = __shfl_sync(0xffffffffu, address, q * 8 + 2 * t + 1);
    x[q] = is_transposed ? host_element(first, g) | (unsigned)host_element(second, g) << 16
                         : host_element(line, 2 * t) | (unsigned)host_element(line, 2 * t + 1) << 16;
  }
}
inline void ldmatrix_x4(unsigned (&x)[4], unsigned address) { host_ldmatrix(x, address, false); }
inline void ldmatrix_x4_trans(unsigned (&x)[4], unsigned address) { host_ldmatrix(x, address, true); }
"""

MMA_SYNC_HALF = r"""
#pragma once
#include "common/half.cuh"
#include "ptx/mma_sync.cuh"
template <bool IS_BFLOAT16>
inline float half_of(unsigned bits, unsigned half) {
  const unsigned short part = bits >> (half * 16);
  return IS_BFLOAT16 ? host_float((unsigned)part << 16) : tw::float_of_float16(part);
}
template <bool IS_BFLOAT16>
inline void mma_m16n8k16(
    float& sum0, float& sum1, float& sum2, float& sum3, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  float sum[4] = {sum0, sum1, sum2, sum3};
  const unsigned b[2] = {b0, b1};
  host_multiply<2>(sum, a, b, half_of<IS_BFLOAT16>);
  sum0 = sum[0], sum1 = sum[1], sum2 = sum[2], sum3 = sum[3];
}
"""

CONVERT_HALF = r"""
#pragma once
#include "common/half.cuh"
template <bool IS_BFLOAT16>
inline unsigned cvt_rn_x2(float first, float second) {
  if (IS_BFLOAT16) return tw::bfloat16_of_float(first) | (unsigned)tw::bfloat16_of_float(second) << 16;
  return tw::float16_of_float(first) | (unsigned)tw::float16_of_float(second) << 16;
}
"""

FMA_HALF = r"""
#pragma once
#include "ptx/convert_half.cuh"
#include "ptx/mma_sync_half.cuh"
template <bool IS_BFLOAT16>
inline unsigned fma_rn_x2(unsigned a, unsigned b, unsigned c) {
  float sum[2];
  for (unsigned half = 0; half < 2; ++half) {   // a product of two halves is a float
    sum[half] = half_of<IS_BFLOAT16>(a, half) * half_of<IS_BFLOAT16>(b, half) + half_of<IS_BFLOAT16>(c, half);
  }
  return cvt_rn_x2<IS_BFLOAT16>(sum[0], sum[1]);
}
"""

# Blocks of one alone: nothing is ever pushed.
CLUSTER_PUSH = r"""
#pragma once
#include "ptx/cluster.cuh"
inline unsigned cluster_ctarank() { return 0; }
template <class Words>
inline void st_shared_cluster(unsigned, const Words&) {}
inline void cluster_arrive() {}
"""


PRODUCTS = {
    "ptx/cluster_push.cuh": CLUSTER_PUSH,
    "ptx/convert.cuh": CONVERT,
    "ptx/convert_half.cuh": CONVERT_HALF,
    "ptx/fma_half.cuh": FMA_HALF,
    "ptx/ldmatrix.cuh": LDMATRIX,
    "ptx/mma_sync.cuh": MMA_SYNC,
    "ptx/mma_sync_f64.cuh": MMA_SYNC_F64,
    "ptx/mma_sync_half.cuh": MMA_SYNC_HALF,
}


def tensor_on_host(kernel: Kernel, variants: Iterable[Variant], folder: Path) -> Kernel:
    """The kernel with these variants, its sources copied to the folder; skips the test without C++'s library."""
    needs_cpp_library()
    here = beside(HEADERS | PRODUCTS, kernel, folder)
    ours = tuple(replace(variant, requires=frozenset()) for variant in variants)
    return replace(kernel, folder=here, variants=ours, default_variant=ours[0].name)
