// Last launch of a product of packed parts: blocks of two warpgroups that multiply 64 rows each, or the same 64 rows and every
// other step, so that one multiplies while the other adds to its registers; and one that loads. CLUSTER blocks, one below
// the other, load a share of their columns of B each and send it to all.
#pragma once
#include "parts/finish.cuh"
#include "parts/multiply.cuh"
#include "parts/pack.cuh"
#include "ptx/cluster.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/shared_memory.cuh"

// Facts about both operands.
struct Known {
  bool is_wide, is_odd, is_extreme;
  __device__ __forceinline__ explicit Known(const Memory& memory) {
    const Summary a = *memory.summary<OperandA>(), b = *memory.summary<OperandB>();
    is_wide = ::is_wide(a, b);
    is_odd = a.is_odd || b.is_odd;
    is_extreme = a.is_extreme || b.is_extreme;
  }
};

// By a warpgroup that multiplies: all that the block has to do. The tensor cores cut off what they add, so that FP32
// registers take over every PROMOTE_K products, or half as many where each number counts for twice as many.
template <class Epilogue>
__device__ __forceinline__ void multiply_tiles(
    const Epilogue& epilogue, const Memory& memory, Ring ring, const Known& known, unsigned rank, unsigned exchange,
    unsigned* is_last) {
  constexpr unsigned PROMOTED = PROMOTE_K / STEP_K;
  const unsigned warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  const unsigned rows = SHARERS == 1 ? warpgroup : 0, share = SHARERS == 1 ? 0 : warpgroup;
  float sum[SUMS], recent[SUMS];
#pragma unroll 1
  for (TileScheduler tiles; tiles.is_valid(); tiles.advance()) {
    const unsigned all = tiles.steps(), promoted = known.is_wide && PROMOTED > 1 ? PROMOTED / 2 : PROMOTED;
    const unsigned steps = SHARERS == 1 ? all : (all + 1 - share) / 2;   // the warpgroup's own
    Ring own = ring.skipping(share, known.is_wide);
    const TileWriter<Epilogue> writer(epilogue, memory, Tile(tiles.tile(), rank), exchange);
#pragma unroll
    for (unsigned i = 0; i < SUMS; ++i) sum[i] = recent[i] = 0.0f;   // `recent`, so that it takes no registers between tiles
#pragma unroll 1
    for (unsigned step = 0; step < steps; step += promoted) {
      const unsigned next = tw::min(steps - step, promoted);
      if (known.is_wide) multiply_steps<WIDE_PARTS, true>(recent, own, rows, next);
      else multiply_steps<FINE_PARTS, true>(recent, own, rows, next);
#pragma unroll
      for (unsigned i = 0; i < SUMS; ++i) sum[i] += recent[i];
    }
    // Where a factor is infinite or NaN, products with small parts made the sum NaN. First parts alone give what FP32
    // arithmetic gives: the right infinity, or NaN.
    if (known.is_odd) {
      if (SHARERS > 1) two_warpgroups_sync();   // before stages change hands
      ring = ring.skipping(all, known.is_wide);
      own = ring.skipping(share, known.is_wide);
      if (steps > 0) {   // the only step may be the other warpgroup's
        if (known.is_wide) multiply_steps<WIDE_PARTS, false>(recent, own, rows, steps);
        else multiply_steps<FINE_PARTS, false>(recent, own, rows, steps);
      }
#pragma unroll
      for (unsigned i = 0; i < SUMS; ++i) sum[i] = fabsf(sum[i]) <= 0x1.fffffep127f ? sum[i] : recent[i];
    }
    ring = ring.skipping(all, known.is_wide);
    float4 quads[FINAL_QUADS];
    final_quads(sum, exchange, share, quads);
    if (SPLIT_K == 1 || all == STEPS) finish(writer, known.is_extreme, quads);
    else finish_part(writer, memory, tiles.tile(), rank, warpgroup, is_last, quads);
  }
}

// Clears the facts about the operands, by one thread of the block that is the last to have read them.
__device__ __forceinline__ void forget(const Memory& memory) {
  __threadfence();
  if (atomicInc(memory.finished(), gridDim.x - 1) < gridDim.x - 1) return;
  *memory.summary<OperandA>() = Summary{};
  if (!PACKED_B) *memory.summary<OperandB>() = Summary{};
  memory.drawn()[0] = memory.drawn()[1] = 0;
}

// All of the launch.
template <class Epilogue>
__device__ __forceinline__ void multiply_packed(
    const Epilogue& epilogue, const float* __restrict__ A, const float* __restrict__ B, const Memory& memory) {
  extern __shared__ unsigned char dynamic[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
  __shared__ unsigned is_last[MULTIPLIERS];
  const unsigned start = (shared_address(dynamic) + 1023) / 1024 * 1024, full = shared_address(barriers);
  const unsigned exchange = start + STAGES * FINE_STAGE;
  const unsigned rank = CLUSTER == 1 ? 0 : cluster_ctarank();
  if (threadIdx.x == 0) {
    for (unsigned stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      mbarrier_init(full + 8 * (STAGES + stage), 4 * (MULTIPLIERS / SHARERS) * CLUSTER);
    }
    fence_mbarrier_init();
  }
  cluster_sync();
  wait_for_launch_before();
  const Known known(memory);
  pack_the_rest(A, B, memory, known.is_wide);
  __syncthreads();
  if (threadIdx.x == THREADS - 32) forget(memory);   // of a warp that has nothing else to do
  const Ring ring(start, full);
  if (threadIdx.x < 128 * MULTIPLIERS) {
    warpgroup_reg_alloc<240>();
    multiply_tiles(epilogue, memory, ring, known, rank, exchange, is_last);
  } else {
    warpgroup_reg_dealloc<24>();
    const unsigned passes = known.is_odd ? 2 : 1;
    if (threadIdx.x == 128 * MULTIPLIERS) {
      if (known.is_wide) load_tiles<WIDE_PARTS>(memory, ring, passes, rank);
      else load_tiles<FINE_PARTS>(memory, ring, passes, rank);
    }
  }
  __syncwarp();
  if (CLUSTER > 1) cluster_sync();   // until then another block's copies and arrivals may come in
}
