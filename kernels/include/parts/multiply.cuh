// The products of a step, on the tensor cores.
#pragma once
#include "parts/ring.cuh"
#include "parts/wgmma.cuh"
#include "ptx/warpgroup.cuh"

// The descriptor of lines that start at `address`, by PTX ISA, "Matrix Descriptor Format": the distance of eight lines
// and a swizzle of 64 bytes. In units of 16 bytes, so that adding 2 goes 16 k on, and adding 32 to the next part.
template <unsigned PARTS>
__device__ __forceinline__ unsigned long long descriptor(unsigned address) {
  constexpr unsigned long long GROUP_DISTANCE = PARTS * PART_BYTES / 16, SWIZZLE_64 = 2;
  return (address & 0x3ffff) / 16 | 1ull << 16 | GROUP_DISTANCE << 32 | SWIZZLE_64 << 62;
}

// Starts the products of a step with the `rows`-th 64 rows of the tile. ALL: those that count for FP32's accuracy, small ones
// first; else first parts only.
template <unsigned PARTS, bool ALL>
__device__ __forceinline__ void start_step(float (&sum)[SUMS], unsigned stage, unsigned rows, unsigned add) {
  constexpr bool BF16 = PARTS == WIDE_PARTS;
  constexpr unsigned PART = PART_BYTES / 16;
  const unsigned long long first_a = descriptor<PARTS>(stage + rows * (64 * STEP_K * 2 * PARTS));
  const unsigned long long first_b = descriptor<PARTS>(stage + Stage<PARTS>::A_BYTES);
  warpgroup_arrive();
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned long long a = first_a + 2 * half, b = first_b + 2 * half;
    if constexpr (ALL && BF16) {
      wgmma_k16<BF16>(sum, a, b + 2 * PART, half ? 1 : add);
      wgmma_k16<BF16>(sum, a + 2 * PART, b, 1);
      wgmma_k16<BF16>(sum, a + PART, b + PART, 1);
    }
    if constexpr (ALL) {
      wgmma_k16<BF16>(sum, a, b + PART, BF16 || half ? 1 : add);
      wgmma_k16<BF16>(sum, a + PART, b, 1);
    }
    wgmma_k16<BF16>(sum, a, b, ALL || half ? 1 : add);
  }
  warpgroup_commit_batch();
}

// A stage may be written again, in this block and those that its columns of B came from.
__device__ __forceinline__ void release(unsigned empty) {
  __syncwarp();
  if (threadIdx.x % 32 < CLUSTER) mbarrier_arrive_cluster(empty, threadIdx.x % 32);
}

// The sums over the next `steps` of the warpgroup's steps, on the tensor cores alone.
template <unsigned PARTS, bool ALL>
__device__ __forceinline__ void multiply_steps(
    float (&sum)[SUMS], Ring& ring, unsigned rows, unsigned steps) {
  unsigned before = 0;
#pragma unroll 1
  for (unsigned step = 0; step < steps; ++step) {
    mbarrier_wait(ring.full + 8 * ring.at, ring.parity);
    start_step<PARTS, ALL>(sum, ring.stage<PARTS>(), rows, step);
    if (step > 0) {
      warpgroup_wait_all_but_last();
      release(before);
    }
    before = ring.empty + 8 * ring.at;
    ring.advance<PARTS>(SHARERS);
  }
  warpgroup_wait(sum);
  release(before);
}
