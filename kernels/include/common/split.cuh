// One output computed by several blocks of one launch, in a fixed order: the same inputs give the same bits in every run.
//
// The blocks that share outputs leave partial sums in the workspace; the last of them to arrive adds them up. So no
// second launch is needed, and no block waits for another. A counter says who is last. It is 0 before a launch and after
// it, since atomicInc takes it back to 0 with the last arrival.
// CUDA C++ Programming Guide, "Memory Fence Functions", whose example this follows.
#pragma once
#include "common/at_launch.cuh"
#include "common/real.cuh"

// The workspace: a counter for each of `groups` groups of blocks, then partial sums from the next multiple of 16 bytes.
__device__ __forceinline__ Sum* partial_sums(unsigned char* start, size_t groups) {
#ifdef AT_LAUNCH
  return reinterpret_cast<Sum*>(start + SHARED_COUNTER_BYTES);   // where counters end must not depend on the size
#else
  return reinterpret_cast<Sum*>(start + (groups * sizeof(unsigned) + 15) / 16 * 16);
#endif
}

// Whether this block is the last of the `parts` blocks of its group, the same in all its threads. Before it, a block
// writes its partial sums; after it, the last one reads everybody's, past the L1 cache (__ldcg). Every thread must call it.
__device__ __forceinline__ bool arrives_last(unsigned char* start, unsigned group, unsigned parts) {
  __shared__ unsigned is_last;
  __syncthreads();   // the block's writes, before the fence below makes them everybody's
  if (threadIdx.x == 0) {
    __threadfence();
    is_last = atomicInc(reinterpret_cast<unsigned*>(start) + group, parts - 1) == parts - 1;
    __threadfence();
  }
  __syncthreads();
  return is_last != 0;
}

// Adds up PARTS times OUTPUTS partial sums, part after part in memory, and calls `write(output, sum)` once for each
// output. OUTPUTS and THREADS, those of the block, are powers of two; every thread must call it.
template <unsigned PARTS, unsigned OUTPUTS, unsigned THREADS, class Write>
__device__ __forceinline__ void add_parts(const Sum* partial, Write write) {
  constexpr unsigned SHARE = THREADS > OUTPUTS ? THREADS / OUTPUTS : 1;
  constexpr unsigned TEAM = SHARE < 32 ? SHARE : 32;   // threads that share an output
  const unsigned member = threadIdx.x % TEAM;
  for (unsigned output = threadIdx.x / TEAM; output < OUTPUTS; output += THREADS / TEAM) {   // whole warps stay together
    Sum sum = 0;
#pragma unroll 8
    for (unsigned part = member; part < PARTS; part += TEAM) {
      sum += __ldcg(partial + static_cast<size_t>(part) * OUTPUTS + output);
    }
#pragma unroll
    for (unsigned distance = TEAM / 2; distance > 0; distance /= 2) {
      sum += __shfl_down_sync(0xffffffffu, sum, distance, TEAM);
    }
    if (member == 0) write(output, sum);
  }
}
