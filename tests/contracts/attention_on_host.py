"""attention's `tensor3xfp16_sm90` on the host, Hopper's instructions emulated: launches in order on NumPy's memory."""

from __future__ import annotations

from pathlib import Path

from contracts.launches_on_host import LaunchesOnHost
from contracts.packed_on_host import DEPENDENT_LAUNCH, HALF
from contracts.register_on_host import beside
from contracts.small_on_host import NAMED_BARRIER

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration

DYNAMIC = "extern __shared__ unsigned char dynamic[];"

SHARED_MEMORY = r"""
#pragma once
static char* host_base = nullptr;   // a multiple of 1024, so that descriptors hold all of an address
inline unsigned shared_address(const void* pointer) { return (unsigned)((const char*)pointer - host_base); }
inline char* host_at(unsigned address) { return host_base + (int)address; }
template <unsigned BEHIND = 0>
inline void ld_shared(float& x, unsigned address) { memcpy(&x, host_at(address + BEHIND), 4); }
inline void ld_shared_v2(float& x, float& y, unsigned address) {
  if (address % 8) __builtin_trap();
  ld_shared(x, address), ld_shared(y, address + 4);
}
inline void st_shared_v4(unsigned address, unsigned x, unsigned y, unsigned z, unsigned w) {
  if (address % 16) __builtin_trap();
  *(uint4*)host_at(address) = {x, y, z, w};
}
"""

# A phase is over when all have arrived and all bytes have come.
MBARRIER = r"""
#pragma once
#include "ptx/shared_memory.cuh"
struct HostBarrier { unsigned char expected, pending; unsigned short phase; int bytes; };
inline HostBarrier& host_barrier(unsigned barrier) { return *(HostBarrier*)host_at(barrier); }
inline void mbarrier_init(unsigned barrier, unsigned arrivals) {
  host_barrier(barrier) = {(unsigned char)arrivals, (unsigned char)arrivals, 0, 0};
}
inline void host_settle(HostBarrier& it) {
  if (it.pending == 0 && it.bytes == 0) it.pending = it.expected, ++it.phase;
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(unsigned barrier) {
  HostBarrier& it = host_barrier(barrier);
  if (it.pending == 0) __builtin_trap();
  --it.pending;
  host_settle(it);
}
inline void mbarrier_arrive_warp(unsigned barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}
inline void mbarrier_wait(unsigned barrier, unsigned parity) {
  while (!__any_sync(0xffffffffu, host_barrier(barrier).phase % 2 != parity)) {}
}
inline void fence_proxy_async() {}
"""

CP_ASYNC_BULK = r"""
#pragma once
#include "ptx/mbarrier.cuh"
inline void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes) {
  host_barrier(barrier).bytes += bytes;
  mbarrier_arrive(barrier);
}
inline void cp_async_bulk(unsigned target, const void* source, unsigned bytes, unsigned barrier) {
  if (target % 16 || (size_t)source % 16 || bytes % 16) __builtin_trap();
  memcpy(host_at(target), source, bytes);
  host_barrier(barrier).bytes -= bytes;
  host_settle(host_barrier(barrier));
}
inline void fence_proxy_async_global() {}
"""

CONVERT_HALF = f"""
#pragma once
#include "ptx/shared_memory.cuh"
{HALF}
template <bool>
inline unsigned cvt_rn_x2(float first, float second) {{ return host_half(first) | (unsigned)host_half(second) << 16; }}
"""

HALF_PAIR = r"""
#pragma once
#include "ptx/convert_half.cuh"
inline void widen_x2(unsigned pair, float& first, float& second) {
  first = host_of_half(pair & 0xffff), second = host_of_half(pair >> 16);
}
"""

EX2 = "#pragma once\ninline float ex2_approx(float x) { return exp2f(x); }\n"

# Products are made at once, in double, and cut off as tensor cores do.
WGMMA = r"""
#pragma once
#include "ptx/half_pair.cuh"
inline float host_cut(double x) {
  const float y = (float)x;
  return y - y == 0 && fabs((double)y) > fabs(x) ? nextafterf(y, 0.0f) : y;
}
inline float host_number(unsigned long long tile, unsigned line, unsigned k, bool is_across) {
  const unsigned start = (tile & 0x3fff) * 16, columns = (tile >> 16 & 0x3fff) * 16, lines = (tile >> 32 & 0x3fff) * 16;
  const unsigned at = is_across ? start + line / 64 * columns + k / 8 * lines + k % 8 * 128 + line % 64 * 2
                                : start + line / 8 * lines + line % 8 * 128 + k * 2;
  return host_of_half(*(unsigned short*)host_at(at ^ (at >> 7 & 7) << 4));
}
template <unsigned COLUMNS>
inline void host_products(float (&sum)[COLUMNS / 2], const float (&rows)[2][16], unsigned long long second, bool add_to,
                          bool is_across) {
  for (unsigned i = 0; i < COLUMNS / 2; ++i) {
    const unsigned column = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    double total = add_to ? sum[i] : 0;
    for (unsigned k = 0; k < 16; ++k) total += (double)rows[i / 2 % 2][k] * host_number(second, column, k, is_across);
    sum[i] = host_cut(total);
  }
}
template <unsigned COLUMNS>
inline void wgmma_k16_shared(
    float (&sum)[COLUMNS / 2], unsigned long long first, unsigned long long second, unsigned add_to) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  float rows[2][16];
  for (unsigned i = 0; i < 32; ++i) {
    rows[i / 16][i % 16] = host_number(first, warp * 16 + lane / 4 + i / 16 * 8, i % 16, false);
  }
  host_products<COLUMNS>(sum, rows, second, add_to != 0, false);
}
static unsigned host_words[32][32][4];   // by warp and lane
template <unsigned COLUMNS>
inline void wgmma_k16_registers(
    float (&sum)[COLUMNS / 2], const unsigned* first, unsigned long long second, unsigned add_to) {
  const unsigned lane = threadIdx.x % 32;
  unsigned (&warp)[32][4] = host_words[threadIdx.x / 32];
  memcpy(warp[lane], first, 16);
  __syncwarp();
  float rows[2][16];
  for (unsigned k = 0; k < 16; ++k) {
    for (unsigned row = 0; row < 2; ++row) {
      const unsigned word = warp[lane / 4 * 4 + k % 8 / 2][k / 8 * 2 + row];
      rows[row][k] = host_of_half(k % 2 ? word >> 16 : word & 0xffff);
    }
  }
  __syncwarp();
  host_products<COLUMNS>(sum, rows, second, add_to != 0, true);
}
template <unsigned> inline void warpgroup_wait_but() {}
template <unsigned COUNT> inline void fence_sums(float (&)[COUNT]) {}
inline void fence_operand(unsigned&) {}
inline void warpgroup_arrive() {}
inline void warpgroup_commit_batch() {}
template <unsigned> inline void warpgroup_reg_dealloc() {}
template <unsigned> inline void warpgroup_reg_alloc() {}
"""

HEADERS = {
    "ptx/convert_half.cuh": CONVERT_HALF,
    "ptx/cp_async_bulk.cuh": CP_ASYNC_BULK,
    "ptx/dependent_launch.cuh": DEPENDENT_LAUNCH,
    "ptx/ex2.cuh": EX2,
    "ptx/half_pair.cuh": HALF_PAIR,
    "ptx/mbarrier.cuh": MBARRIER,
    "ptx/named_barrier.cuh": NAMED_BARRIER,
    "ptx/shared_memory.cuh": SHARED_MEMORY,
    "ptx/wgmma_f16.cuh": WGMMA,
}

# One program has all launches, since compiling takes longer than running.
ALL_LAUNCHES = r"""
extern "C" __global__ void on_host(PARAMETERS, unsigned number) {
  if (number == 0) attention_pack(scale, Q, K, V, M, O, workspace);
  else attention(scale, Q, K, V, M, O, workspace);
}
"""


def attention_on_host(kernel: Kernel, problem: Problem, configuration: Configuration, folder: Path) -> LaunchesOnHost:
    """One configuration of attention, and a workspace full of NaN."""
    folder.mkdir(exist_ok=True)
    copied = beside(HEADERS, kernel, folder)
    variant = kernel.variant(configuration.variant)
    shared_bytes = variant.launches(kernel.entry, configuration.values, problem)[-1][1].shared_bytes
    text = (copied / variant.source).read_text(encoding="utf-8")
    assert DYNAMIC in text
    shared = f"static __align__(1024) unsigned char dynamic[{shared_bytes}];\n  "
    text = text.replace(DYNAMIC, f"{shared}host_base = (char*)dynamic;") + ALL_LAUNCHES
    (copied / variant.source).write_text(text, encoding="utf-8")
    return LaunchesOnHost(kernel, problem, configuration, copied, 0xFF)
