// The ring of tiles in shared memory, which a warp fills: of K the first, then of K and V in turn, of V the last.
#pragma once
#include "parts.cuh"
#include "ptx/cp_async_bulk.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_memory.cuh"

constexpr unsigned MULTIPLYING = 128 * MULTIPLIERS, THREADS = MULTIPLYING + 128, TILE_QUERIES = 64 * MULTIPLIERS;
constexpr unsigned TILES_Q = tw::ceil_div(QUERIES, TILE_QUERIES);
constexpr unsigned PANEL_Q_BYTES = 64 * 128, PART_Q_BYTES = PANELS * PANEL_Q_BYTES, Q_BYTES = 2 * PART_Q_BYTES;   // of a warpgroup
constexpr unsigned MOST_SHARED = 227 * 1024 - 4096;   // of a block, less alignment and what is declared beside
constexpr unsigned STAGES = tw::min((MOST_SHARED - MULTIPLIERS * Q_BYTES) / STAGE_BYTES, 8u);
static_assert(STAGES >= 2, "a tile of K and one of V are there at the same time");

struct Ring {
  unsigned memory, full, empty;   // addresses: of the first stage, and of STAGES barriers each
  unsigned at = 0, parity = 0;

  __device__ __forceinline__ Ring(unsigned start, unsigned barriers)
      : memory(start), full(barriers), empty(barriers + 8 * STAGES) {}
  __device__ __forceinline__ unsigned stage() const { return memory + at * STAGE_BYTES; }
  __device__ __forceinline__ void advance() {
    if (++at == STAGES) {
      at = 0;
      parity ^= 1;
    }
  }
};

// A tile that has come, by a warp that multiplies.
struct Arrived {
  unsigned stage, empty;
  __device__ __forceinline__ explicit Arrived(Ring& ring) : stage(ring.stage()), empty(ring.empty + 8 * ring.at) {
    mbarrier_wait(ring.full + 8 * ring.at, ring.parity);
    ring.advance();
  }
  // May be written again, by a copy: after the loads of what is known of it, which without the fence may still be under way.
  __device__ __forceinline__ void release() const {
    fence_proxy_async();
    mbarrier_arrive_warp(empty);
  }
};

// By a warp: tiles of K and V of a head.
__device__ __forceinline__ void load_tiles(unsigned char* workspace, Ring& ring, unsigned kv_head, unsigned tiles) {
#pragma unroll 1
  for (unsigned step = 0; step < 2 * tiles; ++step) {
    // K, then K and V by turns; the last is V.
    const bool is_value = step + 1 == 2 * tiles || (step > 0 && step % 2 == 0);
    const unsigned tile = step + 1 == 2 * tiles ? tiles - 1 : step == 0 ? 0 : is_value ? step / 2 - 1 : step / 2 + 1;
    const unsigned char* const source = packed_tile(workspace, kv_head, tile) + (is_value ? STAGE_BYTES : 0);
    const unsigned bytes = TILE_BYTES + (is_value ? KNOWN_V_BYTES : KNOWN_K_BYTES), full = ring.full + 8 * ring.at;
    mbarrier_wait(ring.empty + 8 * ring.at, ring.parity);
    if (threadIdx.x % 32 == 0) {
      mbarrier_arrive_expect_tx(full, bytes);
      cp_async_bulk(ring.stage(), source, bytes, full);
    }
    __syncwarp();
    ring.advance();
  }
}
