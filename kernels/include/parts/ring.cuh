// The ring of steps in shared memory, and the thread that fills it.
#pragma once
#include "parts/scheduler.cuh"
#include "ptx/cp_async_bulk.cuh"
#include "ptx/mbarrier.cuh"

// Warpgroups: each has 64 rows of the tile, or, where these are all, every other step of k.
constexpr unsigned MULTIPLIERS = 2, SHARERS = TILE_M == 64 ? 2 : 1;   // of a tile's rows
constexpr unsigned THREADS = 128 * (MULTIPLIERS + 1);
constexpr unsigned QUADS = TILE_N / 8;   // of a thread's sums
constexpr unsigned FINAL_QUADS = tw::ceil_div(QUADS, SHARERS);   // that it finishes
constexpr unsigned EXCHANGED = SHARERS == 1 ? 0 : MULTIPLIERS * FINAL_QUADS * 128 * 16;   // bytes, behind the ring
constexpr bool PAIRS = N % 2 == 0 && LDC % 2 == 0 && (BATCH == 1 || STRIDE_C % 2 == 0);
constexpr bool ROWS_ALIGNED = N % 4 == 0 && LDC % 4 == 0 && (BATCH == 1 || STRIDE_C % 4 == 0);
constexpr unsigned MOST_SHARED = 227 * 1024 - 2048;   // of a block, less alignment and barriers
constexpr unsigned FINE_STAGE = (TILE_M + TILE_N) * STEP_K * 2 * FINE_PARTS;
// A warp's sums pass through shared memory behind the ring, 16 rows of 32 columns at a time, so that it stores whole rows of
// these: always where rows begin anywhere; else from a tile of 128 rows, where that leaves room for loads to run ahead. Floats,
// so that banks differ; bytes.
constexpr unsigned STAGED_ROW = 40, STAGED_WARP = 16 * STAGED_ROW * 4, STAGED_ALL = 4 * MULTIPLIERS * STAGED_WARP;
constexpr bool BY_ROWS = !PAIRS || (ROWS_ALIGNED && SHARERS == 1 && STAGED_ALL + 5 * FINE_STAGE <= MOST_SHARED);
constexpr unsigned STAGED = BY_ROWS ? STAGED_ALL : 0;
constexpr unsigned STAGES = tw::min((MOST_SHARED - EXCHANGED - STAGED) / FINE_STAGE, 8u);

// A stage with PARTS parts of each number.
template <unsigned PARTS>
struct Stage {
  static constexpr unsigned A_BYTES = TILE_M * STEP_K * 2 * PARTS, B_BYTES = TILE_N * STEP_K * 2 * PARTS;
  static constexpr unsigned BYTES = A_BYTES + B_BYTES;
  // Within a tile a stage always belongs to the same sharer: parities tell a phase only from the next one.
  static constexpr unsigned COUNT = STAGES * FINE_STAGE / BYTES / SHARERS * SHARERS;
  static_assert(COUNT > SHARERS, "a step is released only when the warpgroup's next has begun");
};

struct Ring {
  unsigned memory, full, empty;   // addresses: of the first stage, and of STAGES barriers each
  unsigned at = 0, parity = 0;

  __device__ __forceinline__ Ring(unsigned start, unsigned barriers)
      : memory(start), full(barriers), empty(barriers + 8 * STAGES) {}
  template <unsigned PARTS>
  __device__ __forceinline__ unsigned stage() const { return memory + at * Stage<PARTS>::BYTES; }
  template <unsigned PARTS>
  __device__ __forceinline__ void advance(unsigned steps = 1) {
    at += steps;
    parity ^= at / Stage<PARTS>::COUNT & 1;
    at %= Stage<PARTS>::COUNT;
  }
  __device__ __forceinline__ Ring skipping(unsigned steps, bool is_wide) const {
    Ring later = *this;
    if (is_wide) later.advance<WIDE_PARTS>(steps);
    else later.advance<FINE_PARTS>(steps);
    return later;
  }
};

// Where the parts of a tile's lines begin, of its first step or a later one.
template <class Operand, unsigned PARTS>
__device__ __forceinline__ const unsigned char* tile_at(
    const Memory& memory, unsigned matrix, unsigned first_group, unsigned step) {
  const size_t groups = all_groups<Operand>() * step + matrix * groups_of<Operand>() + first_group;
  return memory.packed<Operand, PARTS>() + groups * (PARTS * PART_BYTES);
}

// By one thread: every step of the block, each tile's `passes` times.
template <unsigned PARTS>
__device__ __forceinline__ void load_tiles(const Memory& memory, Ring ring, unsigned passes, unsigned rank) {
  typedef Stage<PARTS> S;
  constexpr unsigned SHARE = S::B_BYTES / CLUSTER;
  ring.parity = 1;
  for (TileScheduler tiles; tiles.is_valid(); tiles.advance()) {
    const Tile tile(tiles.tile(), rank);
    for (unsigned pass = 0; pass < passes; ++pass) {
      const unsigned char* a = tile_at<OperandA, PARTS>(
          memory, tile.matrix_of<OperandA>(), tile.row * (TILE_M / GROUP), tiles.first_step());
      const unsigned char* b = tile_at<OperandB, PARTS>(
          memory, tile.matrix_of<OperandB>(), tile.column * (TILE_N / GROUP), tiles.first_step()) + rank * SHARE;
#pragma unroll 1
      for (unsigned left = tiles.steps(); left > 0; --left) {
        const unsigned full = ring.full + 8 * ring.at;
        mbarrier_wait(ring.empty + 8 * ring.at, ring.parity);
        mbarrier_arrive_expect_tx(full, S::BYTES);
        cp_async_bulk(ring.stage<PARTS>(), a, S::A_BYTES, full);
        const unsigned target = ring.stage<PARTS>() + S::A_BYTES + rank * SHARE;
        if constexpr (CLUSTER == 1) cp_async_bulk(target, b, SHARE, full);
        else cp_async_bulk_multicast(target, b, SHARE, full, CLUSTER);
        a += all_groups<OperandA>() * (PARTS * PART_BYTES);
        b += all_groups<OperandB>() * (PARTS * PART_BYTES);
        ring.advance<PARTS>();
      }
    }
  }
}
