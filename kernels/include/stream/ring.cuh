// The ring of steps in shared memory: a thread fills it by tensor maps, a warpgroup multiplies straight from it. Of each
// step it has the tile's columns of B, 64 after 64, and behind them the rows of A.
#pragma once
#include "ptx/cp_async_bulk.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tensor_map.cuh"
#include "ptx/wgmma_half_narrow.cuh"
#include "stream/parameters.cuh"

// The block's share of the work: a tile, and the steps of it.
struct Share {
  unsigned column, matrix, first_step, steps;
  __device__ __forceinline__ Share() {
    constexpr unsigned TILES_N = tw::ceil_div(N, unsigned{TILE_N});
    const unsigned tile = blockIdx.x / SPLIT_K, part = blockIdx.x % SPLIT_K;
    matrix = BATCH == 1 ? 0 : tile / TILES_N;
    column = (BATCH == 1 ? tile : tile % TILES_N) * TILE_N;
    first_step = part * STEPS / SPLIT_K;
    steps = (part + 1) * STEPS / SPLIT_K - first_step;
  }
};

struct Ring {
  unsigned memory, full, empty;   // addresses: of the first stage, and of STAGES barriers each
  unsigned at = 0, parity = 0;

  __device__ __forceinline__ Ring(unsigned start, unsigned barriers)
      : memory(start), full(barriers), empty(barriers + 8 * STAGES) {}
  __device__ __forceinline__ void advance() {
    if (++at == STAGES) {
      at = 0;
      parity ^= 1;
    }
  }

  // By a warp, before all else.
  __device__ __forceinline__ void prepare() const {
    for (unsigned stage = threadIdx.x % 32; stage < STAGES; stage += 32) {
      mbarrier_init(full + 8 * stage, 1);
      mbarrier_init(empty + 8 * stage, MULTIPLYING / 32);
    }
    fence_mbarrier_init();
  }

  // By one thread: all steps of the share.
  __device__ __forceinline__ void load(const TensorMap& map_a, const TensorMap& map_b, const Share& share) {
    const unsigned matrix_a = STRIDE_A == 0 ? 0 : share.matrix, matrix_b = STRIDE_B == 0 ? 0 : share.matrix;
    // An odd number of steps on from tile to tile, so that blocks do not all read the same place of their lines, nor of A's.
    unsigned turned = WALK == 1 ? blockIdx.x / SPLIT_K * 11 % share.steps : 0;
    parity = 1;
#pragma unroll 1
    for (unsigned step = 0; step < share.steps; ++step) {
      const unsigned barrier = full + 8 * at, stage = memory + at * STAGE_BYTES, k = (share.first_step + turned) * STEP_K;
      turned = turned + 1 == share.steps ? 0 : turned + 1;
      mbarrier_wait(empty + 8 * at, parity);
      mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);
      if constexpr (TRANS_B) {   // a box has all columns of a matrix
#pragma unroll
        for (unsigned i = 0; i < FACTORS; ++i) {
          load_box(stage + i * (TILE_N * LINE_BYTES), map_b, BoxStart{k, share.column + i * N, matrix_b}, barrier);
        }
      } else {
#pragma unroll
        for (unsigned i = 0; i < TILE_BLOCKS; ++i) {
          load_box(stage + i * BLOCK_BYTES, map_b, BoxStart{share.column + i * 64, k, matrix_b}, barrier);
        }
      }
      load_box(stage + TILE_BLOCKS * BLOCK_BYTES, map_a, BoxStart{k, 0, matrix_a}, barrier);
      advance();
    }
  }

  // By the warpgroup: the products of all steps, one or more.
  __device__ __forceinline__ void multiply(float (&sum)[TILE_BLOCKS][SUMS], unsigned steps) {
    unsigned step = 0, before = 0;
#pragma unroll 1
    do {
      mbarrier_wait(full + 8 * at, parity);
      start_step(sum, memory + at * STAGE_BYTES, step);
      if (step > 0) {
        warpgroup_wait_but<1>();
        mbarrier_arrive_warp(before);
      }
      before = empty + 8 * at;
      advance();
    } while (++step < steps);
    warpgroup_wait_but<0>();
#pragma unroll
    for (unsigned block = 0; block < TILE_BLOCKS; ++block) fence_sums(sum[block]);
  }

 private:
  // The descriptor of a tile from `address` on (PTX ISA, "Matrix Descriptor Format", units of 16 bytes): eight lines are 1024
  // bytes apart, and the swizzle spans 128 bytes. Across k, 64 columns are as many as a product takes.
  __device__ __forceinline__ static unsigned long long descriptor(unsigned address) {
    return (address & 0x3ffff) / 16 | 1ull << 16 | 8ull * LINE_BYTES / 16 << 32 | 1ull << 62;
  }

  // Starts the products of a step: C transposed, since B has the many columns.
  __device__ __forceinline__ static void start_step(float (&sum)[TILE_BLOCKS][SUMS], unsigned stage, unsigned step) {
    constexpr unsigned NEXT_K16 = TRANS_B ? 2 : 16 * LINE_BYTES / 16;
    const unsigned long long b = descriptor(stage), a = descriptor(stage + TILE_BLOCKS * BLOCK_BYTES);
    warpgroup_arrive();
#pragma unroll
    for (unsigned part = 0; part < STEP_K / 16; ++part) {
#pragma unroll
      for (unsigned block = 0; block < TILE_BLOCKS; ++block) {
        wgmma_k16<IS_BFLOAT16, !TRANS_B>(
            sum[block], b + block * (BLOCK_BYTES / 16) + part * NEXT_K16, a + part * 2, step + part);
      }
    }
    warpgroup_commit_batch();
  }
};
