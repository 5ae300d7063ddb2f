// The products of a tile, on the tensor cores.
#pragma once
#include "ptx/wgmma_half.cuh"
#include "tma/ring.cuh"

// Starts the products of a step, of so many parts of 16 k.
template <unsigned PARTS>
__device__ __forceinline__ void start_step(
    float (&sum)[ROW_BLOCKS][SUMS], unsigned stage, unsigned warpgroup, unsigned step) {
  constexpr unsigned ROWS_64 = 64 * LINE_BYTES;   // along k and across it
  const unsigned long long a = OperandA::descriptor(stage + warpgroup * (ROW_BLOCKS * ROWS_64));
  const unsigned long long b = OperandB::descriptor(stage + OperandA::BYTES);
  warpgroup_arrive();
#pragma unroll
  for (unsigned part = 0; part < PARTS; ++part) {
#pragma unroll
    for (unsigned block = 0; block < ROW_BLOCKS; ++block) {
      wgmma_k16<IS_BFLOAT16, OperandA::ACROSS, OperandB::ACROSS>(
          sum[block], a + block * (ROWS_64 / 16) + part * OperandA::NEXT_K16, b + part * OperandB::NEXT_K16, step + part);
    }
  }
  warpgroup_commit_batch();
}

// A stage may be written again, in this block and in those that load a share of its tiles.
__device__ __forceinline__ void release(unsigned empty, const Place& place) {
  __syncwarp();
  const unsigned lane = threadIdx.x % 32;
  if constexpr (CLUSTER_M * CLUSTER_N == 1) {
    if (lane == 0) mbarrier_arrive(empty);
  } else if (lane < CLUSTER_M) {
    mbarrier_arrive_cluster(empty, place.column * CLUSTER_M + lane);
  } else if (lane < CLUSTER_M + CLUSTER_N && lane - CLUSTER_M != place.column) {
    mbarrier_arrive_cluster(empty, place.row + (lane - CLUSTER_M) * CLUSTER_M);
  }
}

// The products of a tile's next `steps` steps, one or more; of the last of all k only what counts.
__device__ __forceinline__ void multiply_steps(
    float (&sum)[ROW_BLOCKS][SUMS], Ring& ring, unsigned warpgroup, const Place& place, unsigned steps, bool ends) {
  unsigned step = 0, before = 0;
#pragma unroll 1
  do {
    mbarrier_wait(ring.full + 8 * ring.at, ring.parity);
    if constexpr (IS_COPIED) fence_proxy_async();
    if (LAST_PARTS < STEP_K / 16 && ends && step + 1 == steps) start_step<LAST_PARTS>(sum, ring.stage(), warpgroup, step);
    else start_step<STEP_K / 16>(sum, ring.stage(), warpgroup, step);
    if (step > 0) {
      warpgroup_wait_but<1>();
      release(before, place);
    }
    before = ring.empty + 8 * ring.at;
    ring.advance();
  } while (++step < steps);
  warpgroup_wait_but<0>();
#pragma unroll
  for (unsigned block = 0; block < ROW_BLOCKS; ++block) fence_sums(sum[block]);
  release(before, place);
}
