// The ring of STAGES buffers that numbers pass through, from the warpgroup that loads to those that multiply.
#pragma once
#include "ptx/cp_async.cuh"
#include "ptx/cp_async_bulk.cuh"
#include "ptx/mbarrier.cuh"
#include "wgmma/parameters.cuh"

// A place in the ring, with the parity of the turn around it.
struct PipelineState {
  unsigned stage = 0, phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// The ring's barriers, each an array of STAGES: copies are complete; low parts are written too; the buffer is free.
// Then whose turn it is to start products. Addresses in shared memory.
struct Pipeline {
  static constexpr unsigned COUNT = 3 * STAGES + 2;   // of barriers
  unsigned loaded, full, empty, turn;

  __device__ __forceinline__ explicit Pipeline(unsigned start)
      : loaded(start), full(PRODUCTS == 3 ? start + 8 * STAGES : start), empty(start + 16 * STAGES),
        turn(start + 24 * STAGES) {}

  __device__ __forceinline__ void initialize() const {
    for (unsigned stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(loaded + 8 * stage, LOADERS + (CLUSTER > 1 ? 1 : 0));   // who sends lines arrives once more
      if (PRODUCTS == 3) mbarrier_init(full + 8 * stage, 4);
      mbarrier_init(empty + 8 * stage, 4 * CONSUMERS * CLUSTER);
    }
    for (unsigned i = 0; i < 2; ++i) mbarrier_init(turn + 8 * i, 4);
    fence_mbarrier_init();
  }

  // The warpgroup that loads waits until nobody reads a buffer any more, and its copies arrive by themselves.
  __device__ __forceinline__ void wait_empty(const PipelineState& state) const {
    mbarrier_wait(empty + 8 * state.stage, state.phase ^ 1);
  }
  __device__ __forceinline__ void commit_loaded(const PipelineState& state) const {
    cp_async_mbarrier_arrive_noinc(loaded + 8 * state.stage);
  }

  // The one that converts waits for the copies.
  __device__ __forceinline__ void wait_loaded(const PipelineState& state) const {
    mbarrier_wait(loaded + 8 * state.stage, state.phase);
  }
  __device__ __forceinline__ void commit_full(const PipelineState& state) const {
    mbarrier_arrive_warp(full + 8 * state.stage);
  }

  // Those that multiply wait for all there is of a stage.
  __device__ __forceinline__ void wait_full(const PipelineState& state) const {
    mbarrier_wait(full + 8 * state.stage, state.phase);
    if (PRODUCTS == 1 && CLUSTER == 1) fence_proxy_async();   // else whoever converts has done so, or there is no need
  }

  // A warp has multiplied what a stage held: it may be written, here and by blocks that send lines.
  __device__ __forceinline__ void release(unsigned barrier) const {
    if constexpr (CLUSTER == 1) {
      mbarrier_arrive_warp(barrier);
    } else {
      __syncwarp();
      if (threadIdx.x % 32 < CLUSTER) mbarrier_arrive_cluster(barrier, threadIdx.x % 32);
    }
  }
};
