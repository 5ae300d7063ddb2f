// Adds up and stores the warps' sums, for the variant `streamed`.
#pragma once
#include "ptx/cluster_push.cuh"
#include "ptx/shared_memory.cuh"
#include "streamed_parameters.cuh"
#include "whole_numbers.cuh"

// A warp's sums to the shared memory of the block that adds them up: rows of W side by side.
__device__ __forceinline__ void put_sums(float* shared, const Sums& sum, unsigned part) {
  const unsigned warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (unsigned i = 0; i < ROWS * COLUMNS * 4; ++i) {
    const unsigned m = i / 4 % COLUMNS * 8 + 2 * t + i % 2;
    const unsigned row = (warp / WARPS_K * ROWS + i / 4 / COLUMNS) * 16 + i % 4 / 2 * 8 + g;
    float* const place = shared + (part * M_ROWS + m) * PITCH + row / 4 / SPLIT * 4 + row % 4;
    if (m >= M_ROWS) continue;
    const float x = sum[i / 4 / COLUMNS][i / 4 % COLUMNS][i % 4];
    if constexpr (SPLIT > 1) st_shared_cluster(mapa(shared_address(place), row / 4 % SPLIT), x);
    else *place = x;
  }
}

// Adds up and writes the block's rows of a tile.
__device__ __forceinline__ void finish(const float* shared, Half* Y, unsigned tile, unsigned rank) {
  for (unsigned at = threadIdx.x; at < M_ROWS * OWN_ROWS / 4; at += THREADS) {
    const unsigned m = at / (OWN_ROWS / 4), four = at % (OWN_ROWS / 4), row = (four * SPLIT + rank) * 4;
    const unsigned whole_m = blockIdx.y * M_ROWS + m, n = tile * TILE_N + row;
    if ((M % M_ROWS != 0 && whole_m >= M) || (OWN_ROWS * SPLIT != TILE_N && row >= TILE_N)) continue;
    Pack<4> total = {};
#pragma unroll
    for (unsigned part = 0; part < PARTS; ++part) {
      const Pack<4> some = load_pack<4>(shared + (part * M_ROWS + m) * PITCH + four * 4);
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) total.lane[i] += some.lane[i] / UNIT;
    }
    Half* const target = Y + static_cast<size_t>(whole_m) * N + n;
    if (N % 4 == 0) {
      if (N % TILE_N == 0 || n < N) store_floats<4>(target, total);
    } else {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        if (n + i < N) target[i] = Half(total.lane[i]);
      }
    }
  }
}

__device__ __forceinline__ void arrive() {
  if constexpr (SPLIT > 1) cluster_arrive();
}
__device__ __forceinline__ void wait() {
  if constexpr (SPLIT > 1) cluster_wait();
  else __syncthreads();
}
