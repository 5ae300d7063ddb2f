// The ring of steps in shared memory: a thread fills it by tensor maps, warpgroups multiply straight from it. Of each step it has
// the tile's columns of B, and behind them its rows of A. Blocks of a cluster that need the same take turns, a step each, to load
// it for all of them.
#pragma once
#include "turned/scheduler.cuh"   // before what names its instruction by the tile

#include "ptx/cp_async_bulk.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tensor_map.cuh"
#include "ptx/wgmma_half_any.cuh"

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

// Starts the copies of a tile's rows of A at one step. Where these run along k it is one box, else boxes of 64.
__device__ __forceinline__ void load_a(
    const TensorMap& map, unsigned target, unsigned barrier, const Tile& tile, unsigned k, unsigned sharers) {
  constexpr unsigned BOXES = TRANS_A ? tw::ceil_div(unsigned{TILE_M}, 64u) : 1;
  const unsigned matrix = STRIDE_A == 0 ? 0 : tile.matrix;
#pragma unroll
  for (unsigned box = 0; box < BOXES; ++box) {
    const BoxStart start = TRANS_A ? BoxStart{tile.m + box * 64, k, matrix} : BoxStart{k, tile.m, matrix};
    if constexpr (CLUSTER_N == 1) load_box(target + box * BLOCK_BYTES, map, start, barrier);
    else load_box_multicast(target + box * BLOCK_BYTES, map, start, barrier, sharers);
  }
}

// Calls `box(number, start)` for each box of a tile's columns of B at one step. PAIRED, blocks of 64 are of either matrix in turn.
template <class Box>
__device__ __forceinline__ void each_box_of_b(const Tile& tile, unsigned k, const Box& box) {
  constexpr unsigned BOXES = TRANS_B && !PAIRED ? 1 : tw::ceil_div(unsigned{TILE_N}, 64u);
  const unsigned matrix = STRIDE_B == 0 ? 0 : tile.matrix;
#pragma unroll
  for (unsigned number = 0; number < BOXES; ++number) {
    const unsigned column = tile.n + number / FACTORS * 64 + number % FACTORS * N;
    box(number, TRANS_B ? BoxStart{k, column, matrix} : BoxStart{column, k, matrix});
  }
}

// By one thread: every step of the block's tiles.
__device__ __forceinline__ void load_tiles(const TensorMap& map_a, const TensorMap& map_b, Ring ring, const Place& place) {
  const unsigned sharers_a = place.sharers_a(), sharers_b = place.sharers_b();
  const unsigned first = Tile::first_step(place.portion), end = Tile::first_step(place.portion + 1);
  unsigned turn = 0;
  ring.parity = 1;
#pragma unroll 1
  for (Tile tile; tile.is_valid(); tile.advance()) {
    tile.find(place);
#pragma unroll 1
    for (unsigned step = first; step < end; ++step, ++turn) {
      const unsigned full = ring.full + 8 * ring.at, b = ring.stage(), a = b + B_BYTES, k = step * STEP_K;
      mbarrier_wait(ring.empty + 8 * ring.at, ring.parity);
      mbarrier_arrive_expect_tx(full, STAGE_BYTES);
      if (CLUSTER_M == 1 || turn % CLUSTER_M == place.row) {
        each_box_of_b(tile, k, [&](unsigned number, const BoxStart& start) {
          if constexpr (CLUSTER_M == 1) load_box(b + number * BLOCK_BYTES, map_b, start, full);
          else load_box_multicast(b + number * BLOCK_BYTES, map_b, start, full, sharers_b);
        });
      }
      if (CLUSTER_N == 1 || turn % CLUSTER_N == place.column) {
        load_a(map_a, a, full, tile, k, sharers_a);
      }
      ring.advance();
    }
  }
}

// The descriptor of lines from `address` on, by PTX ISA, "Matrix Descriptor Format", in units of 16 bytes: eight lines are 1024 bytes
// apart, and the swizzle spans 128 bytes; across k, the next 64 lie behind all lines of these.
template <bool IS_ALONG_K>
__device__ __forceinline__ unsigned long long descriptor(unsigned address) {
  constexpr unsigned long long NEXT_64 = IS_ALONG_K ? 1 : BLOCK_BYTES / 16;
  return (address & 0x3ffff) / 16 | NEXT_64 << 16 | 8ull * LINE_BYTES / 16 << 32 | 1ull << 62;
}

// Starts the products of a step: C transposed.
__device__ __forceinline__ void start_step(
    float (&sum)[BLOCKS_N][SUMS], unsigned stage, unsigned warpgroup, unsigned step) {
  constexpr unsigned NEXT_A = TRANS_A ? 16 * LINE_BYTES / 16 : 2, NEXT_B = TRANS_B ? 2 : 16 * LINE_BYTES / 16;   // 16 k on
  const unsigned long long b = descriptor<TRANS_B>(stage + warpgroup * (BLOCKS_N * BLOCK_BYTES));
  const unsigned long long a = descriptor<!TRANS_A>(stage + B_BYTES);
  warpgroup_arrive();
#pragma unroll
  for (unsigned part = 0; part < STEP_K / 16; ++part) {
#pragma unroll
    for (unsigned block = 0; block < BLOCKS_N; ++block) {
      wgmma_k16<IS_BFLOAT16, !TRANS_B, TRANS_A>(
          sum[block], b + block * (BLOCK_BYTES / 16) + part * NEXT_B, a + part * NEXT_A, step + part);
    }
  }
  warpgroup_commit_batch();
}

// A stage may be written again, in this block and in those that load for it.
__device__ __forceinline__ void release(unsigned empty, const Place& place) {
  __syncwarp();
  const unsigned lane = threadIdx.x % 32;
  if constexpr (CLUSTER_M * CLUSTER_N == 1) {
    if (lane == 0) mbarrier_arrive(empty);
  } else if (lane < CLUSTER_M) {
    mbarrier_arrive_cluster(empty, place.rank_of(lane, place.column));
  } else if (lane < CLUSTER_M + CLUSTER_N && lane - CLUSTER_M != place.column) {
    mbarrier_arrive_cluster(empty, place.rank_of(place.row, lane - CLUSTER_M));
  }
}

// By a warpgroup: the products of a tile's next `steps` steps, one or more.
__device__ __forceinline__ void multiply_steps(
    float (&sum)[BLOCKS_N][SUMS], Ring& ring, unsigned warpgroup, const Place& place, unsigned steps) {
  unsigned step = 0, before = 0;
#pragma unroll 1
  do {
    mbarrier_wait(ring.full + 8 * ring.at, ring.parity);
    start_step(sum, ring.stage(), warpgroup, step);
    if (step > 0) {
      warpgroup_wait_but<1>();
      release(before, place);
    }
    before = ring.empty + 8 * ring.at;
    ring.advance();
  } while (++step < steps);
  warpgroup_wait_but<0>();
#pragma unroll
  for (unsigned block = 0; block < BLOCKS_N; ++block) fence_sums(sum[block]);
  release(before, place);
}
