// The variants of half types on wgmma, but for how steps come and results go: blocks of MULTIPLIERS warpgroups that multiply and
// one that loads, which stay for tile after tile, or share one.
#pragma once
#include "ptx/dependent_launch.cuh"
#include "ptx/shared_memory.cuh"
#include "tma/multiply.cuh"
#include "tma/share.cuh"

// All of the launch. One thread calls `begin` ahead of it; one, or where operands are copied LOADERS, `load(ring, place)`;
// warpgroups that multiply `multiply(ring, place, staging)`, where `staging` is behind the ring.
template <class Begin, class Load, class Multiply>
__device__ __forceinline__ void run_block(const Begin& begin, const Load& load, const Multiply& multiply) {
  extern __shared__ unsigned char dynamic[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
  const unsigned start = (shared_address(dynamic) + 1023) / 1024 * 1024, full = shared_address(barriers);
  if (threadIdx.x == 0) {
    begin();
    for (unsigned stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(full + 8 * stage, IS_COPIED ? LOADERS + 1 : 1);
      mbarrier_init(full + 8 * (STAGES + stage), 4 * MULTIPLIERS * (CLUSTER_M + CLUSTER_N - 1));
    }
    fence_mbarrier_init();
  }
  if constexpr (CLUSTER_M * CLUSTER_N == 1) __syncthreads();
  else cluster_sync();
  wait_for_launch_before();
  const Place place;
  const Ring ring(start, full);
  if (threadIdx.x < MULTIPLYING) {
    if constexpr (MOVES_REGISTERS) warpgroup_reg_alloc<MULTIPLYING_REGISTERS>();
    multiply(ring, place, start + STAGES * STAGE_BYTES);
  } else {
    if constexpr (MOVES_REGISTERS) warpgroup_reg_dealloc<LOADING_REGISTERS>();
    if (IS_COPIED || threadIdx.x == MULTIPLYING) load(ring, place);
    __syncwarp();
    if constexpr (SPLIT_K > 1) attend();
  }
  __syncwarp();
  if constexpr (CLUSTER_M * CLUSTER_N > 1) cluster_sync();   // until then another block's copies and arrivals may come in
}
