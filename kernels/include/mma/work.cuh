// What a block of the variants `tensor3xtf32` and `tensor1xtf32` works on: the parameters of its tile, and which steps
// of it.
#pragma once
#include "common/product.cuh"
#include "common/real.cuh"
#include "common/work.cuh"

#ifndef PRODUCTS
#ifdef ACCURACY_TF32
#define PRODUCTS 1
#else
#define PRODUCTS 3     // 3: of high and low parts; 1: of the high parts alone
#endif
#endif
#ifndef SMALL_BF16
#define SMALL_BF16 0   // 1: the two small products in BF16
#endif
#ifndef PROMOTE_K
#define PROMOTE_K 16   // terms that the tensor core adds up by itself
#endif
#ifndef TILE_K
#define TILE_K 32
#endif
#ifndef WARPS_M
#define WARPS_M 2
#endif
#ifndef WARPS_N
#define WARPS_N 2
#endif
#ifndef WARP_M
#define WARP_M 32
#endif
#ifndef WARP_N
#define WARP_N 32
#endif
#ifndef SLICES
#define SLICES 1       // groups of warps with a tile of sums each: they share the terms of a step
#endif
#ifndef RESIDENT
#define RESIDENT 0     // above 0: the launch begins early, and blocks of a cluster send each other sums
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1   // of a multiprocessor, that registers must suffice for
#endif
#ifndef SPLIT_K
#define SPLIT_K 1
#endif
#ifndef BY_CLUSTER
#define BY_CLUSTER 0   // 1: of the SPLIT_K blocks up to 8 are a cluster, as many as divide them
#endif
#define CLUSTER (!BY_CLUSTER || SPLIT_K % 2 ? 1 : SPLIT_K % 4 ? 2 : SPLIT_K % 8 ? 4 : 8)
#define SPLIT (SPLIT_K / CLUSTER)
#include "common/workspace.cuh"

constexpr bool PUSHES = RESIDENT > 0 && CLUSTER > 1;
constexpr unsigned TILE_M = WARPS_M * WARP_M;
constexpr unsigned TILE_N = WARPS_N * WARP_N;
constexpr unsigned SLICE_WARPS = WARPS_M * WARPS_N, SLICE_THREADS = SLICE_WARPS * 32, THREADS = SLICES * SLICE_THREADS;
constexpr unsigned FRAGMENTS_M = WARP_M / 16, FRAGMENTS_N = WARP_N / 8;   // a warp's mma.sync of the same terms
constexpr unsigned WPT_M = WARP_M / 8, WPT_N = WARP_N / 4;   // rows and columns of which a thread has the sums
constexpr unsigned TERMS = 16;      // of k, that a warp reads at a time
constexpr unsigned SLICE_TERMS = TILE_K / SLICES;   // of a step, that are a warp's
static_assert(SLICES == 1 || SLICE_TERMS % PROMOTE_K == 0, "what a warp adds up is its own");
constexpr unsigned GROUP_M = 8;     // row tiles that share columns of B in the L2 cache
constexpr unsigned STEPS = tw::ceil_div(K, unsigned{TILE_K});
// Steps of a block, at most; how many of them are on their way before the first is computed on, and buffers for them: all,
// where these suffice.
constexpr unsigned MOST_STEPS = tw::ceil_div(STEPS, unsigned{SPLIT_K});
constexpr unsigned IN_FLIGHT = MOST_STEPS <= STAGES ? MOST_STEPS : STAGES - 1;
constexpr unsigned BUFFERS = tw::min(MOST_STEPS, unsigned{STAGES});
#define MATRIX_TILES (tw::ceil_div(M, TILE_M) * tw::ceil_div(N, unsigned{TILE_N}))

__device__ __forceinline__ Work work_of(unsigned block) {
  Work work = numbered_work<SPLIT_K>(block);
  place_tile<TILE_M, TILE_N, GROUP_M>(work);
  share_steps<STEPS, SPLIT_K>(work);
  return work;
}
