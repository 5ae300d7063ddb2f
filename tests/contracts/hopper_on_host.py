"""Headers for the host in place of those with Hopper's instructions, so that tensor_sm90.cu runs on the CPU device.

Copies poison their target when they start and arrive when the thread arrives with them. Barriers are counted; who waits
lets other warps run. Products are computed at once, from the swizzled tile that the descriptor names.
"""

from contracts.register_on_host import GLOBAL_MEMORY

SHARED_MEMORY = r"""
#pragma once
inline unsigned shared_address(const void* pointer) { return (unsigned)((const char*)pointer - host_dynamic_shared); }
inline char* host_at(unsigned address) { return host_dynamic_shared + (int)address; }
template <unsigned BEHIND = 0>
inline void ld_shared(float& x, unsigned address) { memcpy(&x, host_at(address + BEHIND), 4); }
inline void ld_shared_v2(float& x, float& y, unsigned address) {
  if (address % 8) __builtin_trap();
  ld_shared(x, address), ld_shared(y, address + 4);
}
inline float4 ld_shared_v4(unsigned address) { return *(float4*)host_at(address); }
template <unsigned BEHIND>
inline void st_shared(unsigned address, float x) { memcpy(host_at(address + BEHIND), &x, 4); }
inline void st_shared_v2(unsigned address, float x, float y) {
  if (address % 8) __builtin_trap();
  st_shared<0>(address, x), st_shared<4>(address, y);
}
inline void st_shared_v4(unsigned address, unsigned x, unsigned y, unsigned z, unsigned w) {
  *(uint4*)host_at(address) = {x, y, z, w};
}
inline void ldmatrix_x4(float (&x)[4], unsigned address) {
  const unsigned lane = threadIdx.x % 32;
  for (unsigned i = 0; i < 4; ++i) ld_shared(x[i], __shfl_sync(0xffffffffu, address, i * 8 + lane / 4) + lane % 4 * 4);
}
template <unsigned BEHIND>
inline void st_shared_b16(unsigned address, unsigned short x) { *(unsigned short*)host_at(address + BEHIND) = x; }
"""

CP_ASYNC = r"""
#pragma once
#include <vector>
#include "ptx/mbarrier.cuh"
#include "ptx/shared_memory.cuh"
struct HostCopy { unsigned target; const void* source; unsigned size, bytes; };
static std::vector<HostCopy> host_copies[1024];
inline void host_copy(unsigned target, const void* source, unsigned size, unsigned bytes) {
  if (target % size || (bytes && (size_t)source % size)) __builtin_trap();
  memset(host_at(target), 0xff, size);
  host_copies[threadIdx.x].push_back({target, source, size, bytes});
}
inline void host_finish_copies() {
  for (const HostCopy& copy : host_copies[threadIdx.x]) {
    memset(host_at(copy.target), 0, copy.size);
    memcpy(host_at(copy.target), copy.source, copy.bytes);
  }
  host_copies[threadIdx.x].clear();
}
template <unsigned BYTES, unsigned INTO, long long FROM>
inline void cp_async(unsigned target, const void* source) {
  host_copy(target + INTO, (const char*)source + FROM, BYTES, BYTES);
}
template <unsigned BYTES, unsigned INTO>
inline void cp_async_zfill(unsigned target, const void* source, bool inside) {
  host_copy(target + INTO, source, BYTES, inside ? BYTES : 0);
}
inline void cp_async_zfill_16(unsigned target, const void* source, unsigned bytes) {
  host_copy(target, source, 16, bytes);
}
inline void cp_async_wait_all() { host_finish_copies(); }
inline void cp_async_mbarrier_arrive_noinc(unsigned barrier) {
  host_finish_copies();
  mbarrier_arrive(barrier);
}
"""

MBARRIER = r"""
#pragma once
#include "ptx/shared_memory.cuh"
struct HostBarrier { unsigned short expected, pending; unsigned phase; };
inline HostBarrier& host_barrier(unsigned barrier) { return *(HostBarrier*)host_at(barrier); }
inline void mbarrier_init(unsigned barrier, unsigned arrivals) {
  host_barrier(barrier) = {(unsigned short)arrivals, (unsigned short)arrivals, 0};
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(unsigned barrier) {
  HostBarrier& it = host_barrier(barrier);
  if (it.pending == 0) __builtin_trap();
  if (--it.pending == 0) it.pending = it.expected, ++it.phase;
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

WGMMA = r"""
#pragma once
#include "ptx/shared_memory.cuh"
enum class ScaleOut { Zero, One };
constexpr unsigned SUMS = TILE_S / 2;
inline float host_tf32(unsigned bits) { return __uint_as_float(bits & 0xffffe000u); }
inline float host_bf16(unsigned bits) { return __uint_as_float(bits << 16); }
inline unsigned host_swizzled(unsigned long long tile, unsigned line, unsigned byte) {
  const unsigned swizzle = tile >> 62, lines = (tile >> 32 & 0x3fff) * 16;   // 1: lines of 128 bytes, 2: of 64
  const unsigned start = (tile & 0x3fff) * 16;
  const unsigned at = start + line / 8 * lines + line % 8 * (lines / 8) + byte;
  return at ^ (at >> 7 & (swizzle == 1 ? 7 : 3)) << 4;
}
// Of a warp's fragments the 16 lines by DEPTH k, as `value(bits, k)` has them of the register that holds them.
static unsigned host_fragments[32][32][4];   // by warp and lane
template <ScaleOut SCALE, unsigned DEPTH, class Value, class Other>
inline void host_multiply(float (&sum)[SUMS], const unsigned (&fragment)[4], const Value& value, const Other& other) {
  const unsigned lane = threadIdx.x % 32;
  unsigned (&warp)[32][4] = host_fragments[threadIdx.x / 32];
  memcpy(warp[lane], fragment, sizeof fragment);
  __syncwarp();
  float lines[2][DEPTH];
  for (unsigned k = 0; k < DEPTH; ++k) {
    const unsigned holder = lane / 4 * 4 + (DEPTH == 8 ? k % 4 : k % 8 / 2);
    for (unsigned line = 0; line < 2; ++line) lines[line][k] = value(warp[holder][k / (DEPTH / 2) * 2 + line], k);
  }
  __syncwarp();
  for (unsigned i = 0; i < SUMS; ++i) {
    const unsigned column = i / 4 * 8 + lane % 4 * 2 + i % 2, line = i / 2 % 2;
    double total = SCALE == ScaleOut::Zero ? 0 : sum[i];
    for (unsigned k = 0; k < DEPTH; ++k) total += (double)lines[line][k] * other(column, k);
    sum[i] = (float)total;
  }
}
template <ScaleOut SCALE>
inline void wgmma_k8_tf32(float (&sum)[SUMS], const unsigned (&fragment)[4], unsigned long long tile) {
  host_multiply<SCALE, 8>(
      sum, fragment, [](unsigned bits, unsigned) { return host_tf32(bits); },
      [&](unsigned column, unsigned k) { return host_tf32(*(unsigned*)host_at(host_swizzled(tile, column, k * 4))); });
}
template <ScaleOut SCALE>
inline void wgmma_k16_bf16(float (&sum)[SUMS], const unsigned (&fragment)[4], unsigned long long tile) {
  host_multiply<SCALE, 16>(
      sum, fragment, [](unsigned bits, unsigned k) { return host_bf16(bits >> k % 2 * 16 & 0xffff); },
      [&](unsigned column, unsigned k) {
        return host_bf16(*(unsigned short*)host_at(host_swizzled(tile, column, k * 2)));
      });
}
template <unsigned LINE_BYTES = 128>
inline unsigned long long matrix_descriptor(unsigned address) {
  constexpr unsigned long long EIGHT_LINES = LINE_BYTES * 8 / 16, SWIZZLE = LINE_BYTES == 128 ? 1 : 2;
  return (address & 0x3ffff) / 16 | 1ull << 16 | EIGHT_LINES << 32 | SWIZZLE << 62;
}
inline void warpgroup_arrive() {}
inline void warpgroup_commit_batch() {}
inline void warpgroup_wait(float (&)[SUMS]) {}
"""

CONVERT = r"""
#pragma once
#include "ptx/shared_memory.cuh"
inline unsigned short cvt_rn_bf16(float x) {
  const unsigned bits = __float_as_uint(x);
  return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline unsigned cvt_rn_bf16x2(float first, float second) {
  return (unsigned)cvt_rn_bf16(second) << 16 | cvt_rn_bf16(first);
}
"""

WARPGROUP = r"""
#pragma once
#include "ptx/mbarrier.cuh"
template <unsigned> inline void warpgroup_reg_dealloc() {}
template <unsigned> inline void warpgroup_reg_alloc() {}
static HostBarrier host_named[2] = {{128, 128, 0}, {128, 128, 0}};
inline void warpgroup_sync(unsigned warpgroup) {
  HostBarrier& it = host_named[warpgroup];
  const unsigned phase = it.phase;
  __syncwarp();
  if (--it.pending == 0) it.pending = 128, ++it.phase;
  while (!__any_sync(0xffffffffu, it.phase != phase)) {}
}
inline void two_warpgroups_sync() {
  static HostBarrier it = {256, 256, 0};
  const unsigned phase = it.phase;
  __syncwarp();
  if (--it.pending == 0) it.pending = 256, ++it.phase;
  while (!__any_sync(0xffffffffu, it.phase != phase)) {}
}
inline bool warpgroup_any(unsigned warpgroup, bool predicate) {
  static unsigned any[2] = {0, 0};
  if (predicate) any[warpgroup] = 1;
  warpgroup_sync(warpgroup);
  const bool result = any[warpgroup];
  warpgroup_sync(warpgroup);
  any[warpgroup] = 0;
  warpgroup_sync(warpgroup);
  return result;
}
inline unsigned read_tid_x() { return threadIdx.x; }
inline void fence_operand(unsigned&) {}
"""

HEADERS = {
    "common/global_memory.cuh": GLOBAL_MEMORY,
    "ptx/convert.cuh": CONVERT,
    "ptx/cp_async.cuh": CP_ASYNC,
    "ptx/mbarrier.cuh": MBARRIER,
    "ptx/shared_memory.cuh": SHARED_MEMORY,
    "ptx/warpgroup.cuh": WARPGROUP,
    "ptx/wgmma.cuh": WGMMA,
}
