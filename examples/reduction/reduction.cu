// y[0] = sum of x.  x: (n).
//
// A thread adds up every BLOCKS * BLOCK-th of the VECTOR-wide packs, ITEMS of them under way at a time, each into a sum of
// its own: their loads and additions do not wait for one another. The block adds its threads' sums by shuffles and leaves
// one partial sum in the workspace. Who adds those is what the variants differ in:
//   LAST_BLOCK 0: a launch behind it, of one block.  LAST_BLOCK 1: the block that arrives last.
// Either way the order is fixed: the same input gives the same bits in every run.
//   reduction_partial, or with LAST_BLOCK reduction: block (BLOCK); grid (BLOCKS)
//   without LAST_BLOCK then reduction: block (BLOCK); grid (1)
// Harris, "Optimizing Parallel Reduction in CUDA" (NVIDIA, 2007).
#include "common/reduction.cuh"
#include "common/split.cuh"
#ifndef SHAPE_N
#define SHAPE_N 67108864   // length of x
#endif
#ifndef LAST_BLOCK
#define LAST_BLOCK 1
#endif
#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef BLOCKS
#define BLOCKS 1024
#endif
#ifndef ITEMS
#define ITEMS 4            // packs of a thread that are under way at a time
#endif
#ifndef VECTOR
#define VECTOR 4            // elements of one load
#endif

constexpr unsigned N = SHAPE_N, PACKS = N / VECTOR, STRIDE = BLOCKS * BLOCK;

__device__ __forceinline__ REAL pack_sum(const Pack<VECTOR>& pack) {
  REAL sum = pack.lane[0];
#pragma unroll
  for (unsigned k = 1; k < VECTOR; ++k) sum += pack.lane[k];
  return sum;
}

// The sum of a thread's share of x.
__device__ __forceinline__ REAL thread_sum(const REAL* __restrict__ x) {
  REAL sums[ITEMS] = {};
  unsigned i = blockIdx.x * BLOCK + threadIdx.x;
  for (; i + (ITEMS - 1) * STRIDE < PACKS; i += ITEMS * STRIDE) {
    Pack<VECTOR> packs[ITEMS];
#pragma unroll
    for (unsigned item = 0; item < ITEMS; ++item) {
      packs[item] = load_pack<VECTOR>(x + static_cast<size_t>(i + item * STRIDE) * VECTOR);
    }
#pragma unroll
    for (unsigned item = 0; item < ITEMS; ++item) sums[item] += pack_sum(packs[item]);
  }
  for (; i < PACKS; i += STRIDE) sums[0] += pack_sum(load_pack<VECTOR>(x + static_cast<size_t>(i) * VECTOR));
  if (N % VECTOR != 0 && blockIdx.x == 0 && threadIdx.x < N % VECTOR) sums[0] += x[PACKS * VECTOR + threadIdx.x];
  REAL sum = sums[0];
#pragma unroll
  for (unsigned item = 1; item < ITEMS; ++item) sum += sums[item];
  return sum;
}

// The sum over the block, in thread 0. Every thread must call it.
__device__ __forceinline__ REAL block_sum(REAL value) {
  __shared__ REAL of_warps[BLOCK / 32];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x >= 32) return 0;
  return warp_sum(threadIdx.x < BLOCK / 32 ? of_warps[threadIdx.x] : REAL(0));
}

// The sum of the partial sums, in thread 0 of the block that calls it.
__device__ __forceinline__ REAL sum_of_parts(const REAL* partial) {
  REAL sum = 0;
  for (unsigned i = threadIdx.x; i < BLOCKS; i += BLOCK) sum += __ldcg(partial + i);
  return block_sum(sum);
}

#if LAST_BLOCK
extern "C" __global__ void __launch_bounds__(BLOCK)
reduction(const REAL* __restrict__ x, REAL* __restrict__ y, unsigned char* __restrict__ workspace) {
  REAL* const partial = partial_sums(workspace, 1);
  const REAL sum = block_sum(thread_sum(x));
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
  if (!arrives_last(workspace, 0, BLOCKS)) return;
  const REAL total = sum_of_parts(partial);
  if (threadIdx.x == 0) y[0] = total;
}
#else
extern "C" __global__ void __launch_bounds__(BLOCK)
reduction_partial(const REAL* __restrict__ x, REAL* __restrict__, unsigned char* __restrict__ workspace) {
  const REAL sum = block_sum(thread_sum(x));
  if (threadIdx.x == 0) partial_sums(workspace, 0)[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
reduction(const REAL* __restrict__, REAL* __restrict__ y, unsigned char* __restrict__ workspace) {
  const REAL total = sum_of_parts(partial_sums(workspace, 0));
  if (threadIdx.x == 0) y[0] = total;
}
#endif
