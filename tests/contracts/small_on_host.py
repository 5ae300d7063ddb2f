"""gemm's `tensor3xfp16_small_sm90` on the CPU device: products of a warpgroup in ordinary C++, from swizzled lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from contracts.launches_on_host import needs_cpp_library
from contracts.register_on_host import HEADERS, beside
from contracts.tensor_on_host import PRODUCTS

from tilewright.kernels.kernel import Kernel

NAME, SOURCE = "tensor3xfp16_small_sm90", "tensor_fp16_small_sm90.cu"

HALF_PAIR = r"""
#pragma once
#include "ptx/mma_sync_half.cuh"
#include "ptx/shared_memory.cuh"
inline void widen_x2(unsigned pair, float& first, float& second) {
  first = half_of<false>(pair, 0), second = half_of<false>(pair, 1);
}
inline unsigned least_magnitude_x2(unsigned least, unsigned pair) {
  unsigned result = 0;
  for (unsigned half = 0; half < 32; half += 16) {
    const unsigned a = least >> half & 0xffff, b = pair >> half & 0x7fff;
    result |= (a > 0x7c00 ? a : b > 0x7c00 ? b : a < b ? a : b) << half;   // NaN stays
  }
  return result;
}
inline unsigned warp_max(unsigned x) {
  for (unsigned distance = 16; distance > 0; distance /= 2) {
    const unsigned other = __shfl_xor_sync(0xffffffffu, x, distance);
    x = x > other ? x : other;
  }
  return x;
}
inline void st_shared_b32(unsigned address, unsigned x) {
  if (address % 4) __builtin_trap();
  *(unsigned*)(host_base + (int)address) = x;
}
"""

LOAD_GLOBAL = r"""
#pragma once
#include <cstddef>
template <unsigned WIDTH>
inline void load_global(float* to, const float* from) {
  if ((size_t)from % (4 * WIDTH)) __builtin_trap();
  for (unsigned i = 0; i < WIDTH; ++i) to[i] = from[i];
}
"""

NAMED_BARRIER = r"""
#pragma once
struct HostNamed { unsigned arrived, phase; };
static HostNamed host_named[16];
template <unsigned COUNT>
inline void named_barrier_sync(unsigned number) {
  HostNamed& it = host_named[number];
  const unsigned phase = it.phase;
  __syncwarp();
  if (++it.arrived == COUNT) it.arrived = 0, ++it.phase;
  while (!__any_sync(0xffffffffu, it.phase != phase)) {}
}
"""

WGMMA = r"""
#pragma once
#include <cstring>
#include "ptx/mma_sync_half.cuh"
#include "ptx/shared_memory.cuh"
inline float host_number(unsigned long long tile, unsigned line, unsigned place) {
  const unsigned lines = (tile >> 32 & 0x3fff) * 16, start = (tile & 0x3fff) * 16;
  const unsigned at = start + line / 8 * lines + line % 8 * (lines / 8) + place * 2;
  return half_of<false>(*(unsigned short*)(host_base + (int)(at ^ (at >> 7 & 7) << 4)), 0);
}
static unsigned host_fragments[32][32][4];   // by warp and lane
template <bool ACROSS>
inline void wgmma_k16_columns_64(
    float (&sum)[32], const unsigned (&first)[4], unsigned long long second, unsigned add_to) {
  const unsigned lane = threadIdx.x % 32;
  unsigned (&warp)[32][4] = host_fragments[threadIdx.x / 32];
  memcpy(warp[lane], first, sizeof first);
  __syncwarp();
  float rows[2][16];
  for (unsigned k = 0; k < 16; ++k) {
    for (unsigned row = 0; row < 2; ++row)
      rows[row][k] = half_of<false>(warp[lane / 4 * 4 + k % 8 / 2][k / 8 * 2 + row], k % 2);
  }
  __syncwarp();
  for (unsigned i = 0; i < 32; ++i) {
    const unsigned column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    double total = add_to ? sum[i] : 0;
    for (unsigned k = 0; k < 16; ++k) {
      total += (double)rows[i / 2 % 2][k] * (ACROSS ? host_number(second, k, column) : host_number(second, column, k));
    }
    sum[i] = (float)total;
  }
}
inline void warpgroup_arrive() {}
inline void warpgroup_commit_batch() {}
template <unsigned PENDING>
inline void warpgroup_wait_but() {}
inline void fence_sums(float (&)[32]) {}
"""

MBARRIER = "#pragma once\ninline void fence_proxy_async() {}\n"  # without clusters nothing else is called

SMALL = {
    "ptx/half_pair.cuh": HALF_PAIR,
    "ptx/load_global.cuh": LOAD_GLOBAL,
    "ptx/mbarrier.cuh": MBARRIER,
    "ptx/named_barrier.cuh": NAMED_BARRIER,
    "ptx/wgmma_half_across.cuh": WGMMA,
}
SHARED = "unsigned char shared[];"


def small_on_host(kernel: Kernel, folder: Path) -> Kernel:
    """The kernel with this one variant, its sources copied to the folder; skips the test without C++'s library."""
    needs_cpp_library()
    here = beside(HEADERS | PRODUCTS | SMALL, kernel, folder)
    source = here / SOURCE
    text = source.read_text(encoding="utf-8")
    first, shared = '#include "epilogue.cuh"', f"{SHARED}\n  host_base = (char*)((size_t)shared & ~(size_t)1023);"
    text = text.replace(first, f'#include "common/half.cuh"\n{first}', 1).replace(SHARED, shared, 1)
    source.write_text(text, encoding="utf-8")
    variant = replace(kernel.variant(NAME), requires=frozenset())
    return replace(kernel, folder=here, variants=(variant,), default_variant=NAME)
