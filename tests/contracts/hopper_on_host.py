"""Headers for the host in place of those with Hopper's instructions, so that tensor_sm90.cu runs on the CPU device.

Copies poison their target when they start and arrive when the thread arrives with them. Barriers are counted; who waits
lets other warps run. Products are computed at once, from the swizzled tile that the descriptor names.
"""

from contracts.register_on_host import HOST_STORE

ASYNC_COPY = r"""
#include <vector>
inline unsigned shared_address(const void* pointer) { return (unsigned)((const char*)pointer - host_dynamic_shared); }
inline char* host_at(unsigned address) { return host_dynamic_shared + (int)address; }
inline unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
inline float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long both = (unsigned long long)y << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= (unsigned)(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return result;
}
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
inline void copy_async(unsigned target, const void* source) {
  host_copy(target + INTO, (const char*)source + FROM, BYTES, BYTES);
}
template <unsigned BYTES, unsigned INTO>
inline void copy_async_or_zero(unsigned target, const void* source, bool inside) {
  host_copy(target + INTO, source, BYTES, inside ? BYTES : 0);
}
"""

MBARRIER = r"""
struct HostBarrier { unsigned short expected, pending; unsigned phase; };
inline HostBarrier& host_barrier(unsigned barrier) { return *(HostBarrier*)host_at(barrier); }
inline void initialize_barrier(unsigned barrier, unsigned arrivals) {
  host_barrier(barrier) = {(unsigned short)arrivals, (unsigned short)arrivals, 0};
}
inline void publish_barriers() {}
inline void arrive(unsigned barrier) {
  HostBarrier& it = host_barrier(barrier);
  if (it.pending == 0) __builtin_trap();
  if (--it.pending == 0) it.pending = it.expected, ++it.phase;
}
inline void arrive_as_warp(unsigned barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(barrier);
}
inline void arrive_with_copies(unsigned barrier) {
  host_finish_copies();
  arrive(barrier);
}
inline void wait(unsigned barrier, unsigned parity) {
  while (!__any_sync(0xffffffffu, host_barrier(barrier).phase % 2 != parity)) {}
}
static HostBarrier host_named[2] = {{128, 128, 0}, {128, 128, 0}};
inline void synchronize_warpgroup(unsigned warpgroup) {
  HostBarrier& it = host_named[warpgroup];
  const unsigned phase = it.phase;
  __syncwarp();
  if (--it.pending == 0) it.pending = 128, ++it.phase;
  while (!__any_sync(0xffffffffu, it.phase != phase)) {}
}
inline void show_to_tensor_cores() {}
struct RingPlace {
  unsigned stage = 0, parity = 0;
  inline void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};
"""

WGMMA = r"""
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
template <bool FIRST, unsigned DEPTH, class Value, class Other>
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
    double total = FIRST ? 0 : sum[i];
    for (unsigned k = 0; k < DEPTH; ++k) total += (double)lines[line][k] * other(column, k);
    sum[i] = (float)total;
  }
}
template <bool FIRST>
inline void multiply_tf32(float (&sum)[SUMS], const unsigned (&fragment)[4], unsigned long long tile) {
  host_multiply<FIRST, 8>(
      sum, fragment, [](unsigned bits, unsigned) { return host_tf32(bits); },
      [&](unsigned column, unsigned k) { return host_tf32(*(unsigned*)host_at(host_swizzled(tile, column, k * 4))); });
}
template <bool FIRST>
inline void multiply_bf16(float (&sum)[SUMS], const unsigned (&fragment)[4], unsigned long long tile) {
  host_multiply<FIRST, 16>(
      sum, fragment, [](unsigned bits, unsigned k) { return host_bf16(bits >> k % 2 * 16 & 0xffff); },
      [&](unsigned column, unsigned k) {
        return host_bf16(*(unsigned short*)host_at(host_swizzled(tile, column, k * 2)));
      });
}
template <bool NARROW = false>
inline unsigned long long tile_at(unsigned address) {
  constexpr unsigned long long EIGHT_LINES = (NARROW ? 512 : 1024) / 16, SWIZZLE = NARROW ? 2 : 1;
  return (address & 0x3ffff) / 16 | 1ull << 16 | EIGHT_LINES << 32 | SWIZZLE << 62;
}
inline void begin_products() {}
inline void commit_products() {}
inline void wait_products(float (&)[SUMS]) {}
"""

WARPGROUP_PTX = r"""
inline void copy_async_some(unsigned target, const void* source, unsigned bytes) {
  host_copy(target, source, 16, bytes);
}
inline void wait_for_all_copies() { host_finish_copies(); }
template <unsigned BEHIND = 0>
inline void read_one(float& x, unsigned address) { memcpy(&x, host_at(address + BEHIND), 4); }
inline void read_two(float& x, float& y, unsigned address) {
  if (address % 8) __builtin_trap();
  read_one(x, address), read_one(y, address + 4);
}
inline float4 read_four(unsigned address) { return *(float4*)host_at(address); }
template <unsigned BEHIND>
inline void write_one(unsigned address, float x) { memcpy(host_at(address + BEHIND), &x, 4); }
inline void write_four(unsigned address, unsigned x, unsigned y, unsigned z, unsigned w) {
  *(uint4*)host_at(address) = {x, y, z, w};
}
inline void read_matrices(float (&x)[4], unsigned address) {
  const unsigned lane = threadIdx.x % 32;
  for (unsigned i = 0; i < 4; ++i) read_one(x[i], __shfl_sync(0xffffffffu, address, i * 8 + lane / 4) + lane % 4 * 4);
}
inline unsigned host_to_bf16(float x) {
  const unsigned bits = __float_as_uint(x);
  return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline unsigned pack_bf16(float first, float second) { return host_to_bf16(second) << 16 | host_to_bf16(first); }
template <unsigned BEHIND>
inline void write_bf16(unsigned address, float x) { *(unsigned short*)host_at(address + BEHIND) = host_to_bf16(x); }
template <unsigned> inline void release_registers() {}
template <unsigned> inline void take_registers() {}
inline unsigned thread_number() { return threadIdx.x; }
inline void pin(unsigned&) {}
"""

HEADERS = {
    "async_copy.cuh": ASYNC_COPY + HOST_STORE,
    "mbarrier.cuh": MBARRIER,
    "wgmma.cuh": WGMMA,
    "warpgroup_ptx.cuh": WARPGROUP_PTX,
}
