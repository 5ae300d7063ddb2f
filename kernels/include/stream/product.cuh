// The variant `streamed_half_sm90` as a whole: few rows of A times a B that is read once, at the speed of memory.
#pragma once
#include "ptx/cluster.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/shared_memory.cuh"
#include "stream/ring.cuh"

// By the warpgroup: its sums to shared memory, columns of C side by side. A thread has columns lane / 4 and, 8 on, of rows
// lane % 4 * 2 and the next, eight on and so forth.
__device__ __forceinline__ void put_sums(float* sums, const float (&sum)[TILE_BLOCKS][SUMS]) {
  const unsigned lane = threadIdx.x % 32;
  float* const mine = sums + lane % 4 * 2 * PITCH + threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (unsigned block = 0; block < TILE_BLOCKS; ++block) {
#pragma unroll
    for (unsigned i = 0; i < SUMS; ++i) {
      const unsigned row = i / 4 * 8 + i % 2;
      if (M % 8 == 0 || row + lane % 4 * 2 < M) mine[row * PITCH + block * 64 + i / 2 % 2 * 8] = sum[block][i];
    }
  }
}

// Four neighbouring sums of a row, those of all blocks of the cluster added up, in a fixed order.
__device__ __forceinline__ Pack<4> add_up(unsigned address) {
  Pack<4> total = {};
#pragma unroll
  for (unsigned block = 0; block < SPLIT_K; ++block) {
    const Pack<4> part = ld_shared_cluster(SPLIT_K == 1 ? address : mapa(address, block));
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) total.lane[i] += part.lane[i];
  }
  return total;
}

// Finishes the tile's sums: each block of the cluster does a share of them.
template <class Epilogue>
__device__ __forceinline__ void finish(const Epilogue& epilogue, unsigned first_column, unsigned sums) {
  constexpr unsigned ROW_QUADS = TILE_N / 4, QUADS = M * ROW_QUADS, SHARE = tw::ceil_div(QUADS, unsigned{SPLIT_K});
  constexpr unsigned WIDTH = tw::gcd(DIVISOR_C, 4u);   // of stores
  const unsigned part = blockIdx.x % SPLIT_K;
#pragma unroll 2
  for (unsigned i = threadIdx.x; i < SHARE; i += THREADS) {
    const unsigned number = part * SHARE + i, row = number / ROW_QUADS, at = number % ROW_QUADS * 4;
    if (QUADS % SPLIT_K != 0 && number >= QUADS) break;
    const unsigned column = first_column + at;
    Pack<4> total = add_up(sums + (row * PITCH + at) * sizeof(float));
    if constexpr (PAIRED) {
      const Pack<4> second = add_up(sums + (row * PITCH + TILE_N + at) * sizeof(float));
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) total.lane[j] = Epilogue::combined(total.lane[j], second.lane[j]);
    }
#pragma unroll
    for (unsigned j = 0; j < 4; j += WIDTH) {
      if (N % TILE_N != 0 && column + j >= N) break;
      Pack<WIDTH> piece;
#pragma unroll
      for (unsigned lane = 0; lane < WIDTH; ++lane) piece.lane[lane] = total.lane[j + lane];
      epilogue.template write<WIDTH>(row, column + j, piece);
    }
  }
}

// All of the launch.
template <class EpilogueOf>
__device__ __forceinline__ void stream_product(
    const EpilogueOf& epilogue_of, const TensorMap& map_a, const TensorMap& map_b) {
  extern __shared__ unsigned char dynamic[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
  const unsigned start = (shared_address(dynamic) + 1023) / 1024 * 1024;
  Ring ring(start, shared_address(barriers));
  if (threadIdx.x >= MULTIPLYING) {
    ring.prepare();
  } else if (threadIdx.x == 0) {
    prefetch_tensor_map(map_b);
    prefetch_tensor_map(map_a);
  }
  __syncthreads();
  wait_for_launch_before();
  const Share share;
  if (threadIdx.x < MULTIPLYING) {
    float sum[TILE_BLOCKS][SUMS] = {};
    ring.multiply(sum, share.steps);
    warpgroup_sync(0);   // the ring is read to its end
    put_sums(static_cast<float*>(__cvta_shared_to_generic(start)), sum);
  } else {
    if (threadIdx.x == MULTIPLYING) ring.load(map_a, map_b, share);
    __syncwarp();
  }
  if constexpr (SPLIT_K > 1) cluster_sync();
  else __syncthreads();
  finish(epilogue_of(share.matrix), share.column, start);
  if constexpr (SPLIT_K > 1) cluster_sync();   // a block's shared memory ends with it
}
