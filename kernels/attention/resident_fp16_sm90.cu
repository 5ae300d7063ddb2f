// O = softmax(Q Kᵀ scale + mask) V for heads with few keys, in one launch without a workspace; tensor_fp16_sm90.cu has the method.
//
// A block has a head at a time. It splits all of K and V into FP16 parts in its shared memory; then each warpgroup has 64 queries by
// turns. What the first launch of the other variant writes and blocks read again, here nobody writes.
//   block  MULTIPLIERS warpgroups, which pack and multiply
//   grid   (BLOCKS, or as many as there are heads): a block has heads by turns, and fetches the next to the L2 cache
#define RESIDENT
#include "multiply.cuh"
#include "pack.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/prefetch_line.cuh"

#define PARAMETERS \
  float scale, const float* __restrict__ Q, const float* __restrict__ K, const float* __restrict__ V, \
      const float* __restrict__ M, float* __restrict__ O

constexpr unsigned LINE = 32;   // numbers in 128 bytes

// Tiles that are all there.
struct ResidentTiles {
  struct Place {
    unsigned stage;
    __device__ __forceinline__ void release() const {}
  };
  unsigned start;
  __device__ __forceinline__ Place keys(unsigned tile) const { return {start + tile * 2 * STAGE_BYTES}; }
  __device__ __forceinline__ Place values(unsigned tile) const { return {keys(tile).stage + STAGE_BYTES}; }
};

// By all threads of a block: the head's tiles, and behind each tile of K whether it and that of V fit.
__device__ __forceinline__ void pack_head(const Arrays& arrays, unsigned char* memory) {
#pragma unroll 1
  for (unsigned tile = 0; tile < TILES_K; ++tile) {
    unsigned char* const target = memory + tile * 2 * STAGE_BYTES;
    const bool keys_fit = pack_keys(arrays.K + arrays.head.k(), tile * TILE_KEYS, target);
    const bool keys_are_unfit = __syncthreads_or(!keys_fit) != 0;
    const bool values_fit = pack_values(arrays.V + arrays.head.v(), tile * TILE_KEYS, target + STAGE_BYTES);
    if (threadIdx.x == 0) {
      unsigned* const words = reinterpret_cast<unsigned*>(target + TILE_BYTES) + TILE_KEYS;
      words[0] = keys_are_unfit, words[1] = !values_fit;
    }
  }
}

// Fetches the rows of K and V of a head to the L2 cache.
__device__ __forceinline__ void prefetch_head(const Arrays& arrays) {
  constexpr unsigned LINES = tw::ceil_div(DEPTH, LINE);
  for (unsigned i = threadIdx.x; i < KEYS * LINES; i += MULTIPLYING) {
    const unsigned row = i / LINES, first = i % LINES * LINE;
    prefetch_line(arrays.K + arrays.head.k() + ROW_K * row + first);
    prefetch_line(arrays.V + arrays.head.v() + ROW_V * row + first);
  }
}

extern "C" __global__ void __launch_bounds__(MULTIPLYING, 1) attention(PARAMETERS) {
  extern __shared__ unsigned char dynamic[];
  __shared__ float scales[TILE_QUERIES];
  const unsigned begin = shared_address(dynamic), start = (begin + 1023) / 1024 * 1024;
  unsigned char* const memory = dynamic + (start - begin) + MULTIPLIERS * Q_BYTES;
  launch_dependents();
  wait_for_launch_before();
  const unsigned warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), queries = start + warpgroup * Q_BYTES;
#pragma unroll 1
  for (unsigned number = blockIdx.x; number < BATCH * HEADS; number += gridDim.x) {
    const Arrays arrays{Q, K, V, M, Head(number)};
    pack_head(arrays, memory);
    fence_proxy_async();
    __syncthreads();
    if (number + gridDim.x < BATCH * HEADS) prefetch_head({Q, K, V, M, Head(number + gridDim.x)});
#pragma unroll 1
    for (unsigned first = warpgroup * 64; first < QUERIES; first += TILE_QUERIES) {
      named_barrier_sync<128>(1 + warpgroup);   // until then the queries before may be read
      const Rows rows = pack_queries(Q + arrays.head.q(), scale, first, queries, scales + warpgroup * 64);
      fence_proxy_async();
      named_barrier_sync<128>(1 + warpgroup);
      const unsigned tiles = tiles_until(tw::min(first + 63, QUERIES - 1));
      multiply(ResidentTiles{start + MULTIPLIERS * Q_BYTES}, rows, arrays, queries, tiles, tiles, O);
    }
    __syncthreads();   // all have read the tiles
  }
}
