// The ring of steps in shared memory of the variant `streamed_sm90`, which a thread fills by tensor maps. Of each step it has the
// tile's rows of W, 128 bytes of each, and behind them the rows of X, 64 k after 64.
#pragma once
#include "ptx/cp_async_bulk.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tensor_map.cuh"
#include "streamed_sm90_parameters.cuh"

// The block's share of the work: a tile, and the steps of it.
struct Share {
  unsigned part, row, first_step, steps;
  __device__ __forceinline__ Share() {
    part = blockIdx.x % SPLIT;
    row = blockIdx.x / SPLIT * TILE_N;
    first_step = part * STEPS / SPLIT;
    steps = (part + 1) * STEPS / SPLIT - first_step;
  }
};

// A place in the ring, from which one goes on by as many steps as take turns.
struct Place {
  unsigned at, parity;
  __device__ __forceinline__ void advance(unsigned by) {
    at += by;
    if (at >= STAGES) {
      at -= STAGES;
      parity ^= 1;
    }
  }
};

struct Ring {
  unsigned memory, full, empty;   // addresses: of the first stage, and of STAGES barriers each

  __device__ __forceinline__ Ring(unsigned start, unsigned barriers)
      : memory(start), full(barriers), empty(barriers + 8 * STAGES) {}
  __device__ __forceinline__ unsigned stage(unsigned at) const { return memory + at * STAGE_BYTES; }

  // By a warp, before all else. A stage is free when the warps of one warpgroup in each of the tile's blocks have read it.
  __device__ __forceinline__ void prepare() const {
    for (unsigned i = threadIdx.x % 32; i < STAGES; i += 32) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(empty + 8 * i, 4 * BLOCKS);
    }
    fence_mbarrier_init();
  }

  // By one thread: all steps of the share.
  __device__ __forceinline__ void load(const TensorMap& map_w, const TensorMap& map_x, const Share& share) const {
    Place place{0, 1};
#pragma unroll 1
    for (unsigned step = 0; step < share.steps; ++step) {
      mbarrier_wait(empty + 8 * place.at, place.parity);
      mbarrier_arrive_expect_tx(full + 8 * place.at, STAGE_BYTES);
      const unsigned now = share.first_step + step, boxes = stage(place.at) + BLOCKS * BLOCK_BYTES;
      load_box(stage(place.at), map_w, BoxStart{now * LINE_BYTES, share.row, 0}, full + 8 * place.at);
#pragma unroll
      for (unsigned i = 0; i < BOXES; ++i) {
        load_box(boxes + i * BOX_BYTES, map_x, BoxStart{now * STEP_K + i * 64, 0, 0}, full + 8 * place.at);
      }
      place.advance(1);
    }
  }
};
