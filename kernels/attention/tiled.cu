// O = softmax(Q Kᵀ scale + mask) V for each head of a batch (problem.cuh has the layouts).
//
// LANES neighbouring threads share a query: each holds every LANES-th group of four numbers of its row of Q and of O. TILE_K
// keys at a time come to shared memory. Largest score and sum of a row are found as keys come; when a larger score comes, what
// was added up so far is multiplied by exp(old - new).
//   block (LANES * TILE_Q); grid (tiles of queries * heads * batch)
// Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Dao, Fu, Ermon, Rudra and Re, "FlashAttention"
// (2022), for doing so with tiles of K and V.
#include "problem.cuh"

#ifndef TILE_Q
#define TILE_Q 32   // queries of a block
#define TILE_K 32   // keys of a step
#define LANES 8     // threads that share a query
#endif

constexpr unsigned THREADS = LANES * TILE_Q, QUERIES_TOGETHER = TILE_Q, TILES_Q = tw::ceil_div(QUERIES, QUERIES_TOGETHER);
constexpr unsigned GROUPS = tw::ceil_div(DEPTH, 4u * LANES);   // of four numbers, of a thread
constexpr unsigned KEYS_TOGETHER = 4;                         // whose scores are made together
#if REAL_BYTES == 8
constexpr Sum LOWEST = -1.7976931348623157e+308;
#else
constexpr Sum LOWEST = -3.402823466e+38f;
#endif

// The sum over the threads that share a query, in each of them.
__device__ __forceinline__ Sum lanes_sum(Sum value) {
#pragma unroll
  for (unsigned distance = LANES / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

extern "C" __global__ void __launch_bounds__(THREADS)
attention(Sum scale, const REAL* __restrict__ Q, const REAL* __restrict__ K, const REAL* __restrict__ V,
          const REAL* __restrict__ M, REAL* __restrict__ O) {
  __shared__ REAL keys[TILE_K][DEPTH], values[TILE_K][DEPTH];
  const Head head(blockIdx.x / TILES_Q);
  const unsigned lane = threadIdx.x % LANES, first = blockIdx.x % TILES_Q * TILE_Q, query = first + threadIdx.x / LANES;
  const bool is_inside = query < QUERIES;
  Sum q[GROUPS][4], o[GROUPS][4], highest = LOWEST, sum = 0;
#pragma unroll
  for (unsigned g = 0; g < GROUPS; ++g) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned d = (g * LANES + lane) * 4 + i;
      o[g][i] = 0;
      q[g][i] = is_inside && d < DEPTH ? Sum(Q[head.q() + ROW_Q * query + d]) * scale : Sum(0);
    }
  }
  const unsigned end = IS_CAUSAL ? tw::min(KEYS, first + TILE_Q) : KEYS;
#pragma unroll 1
  for (unsigned start = 0; start < end; start += TILE_K) {
    __syncthreads();
    for (unsigned place = threadIdx.x; place < TILE_K * DEPTH; place += THREADS) {
      const unsigned row = place / DEPTH, d = place % DEPTH;
      const bool exists = start + row < KEYS;
      keys[row][d] = exists ? K[head.k() + ROW_K * (start + row) + d] : REAL(0);
      values[row][d] = exists ? V[head.v() + ROW_V * (start + row) + d] : REAL(0);
    }
    __syncthreads();
#pragma unroll 1
    for (unsigned key = 0; key < TILE_K; key += KEYS_TOGETHER) {
      Sum score[KEYS_TOGETHER], higher = highest;
      bool counts[KEYS_TOGETHER];
#pragma unroll
      for (unsigned j = 0; j < KEYS_TOGETHER; ++j) {
        Sum total = 0;
#pragma unroll
        for (unsigned g = 0; g < GROUPS; ++g) {
#pragma unroll
          for (unsigned i = 0; i < 4; ++i) {
            const unsigned d = (g * LANES + lane) * 4 + i;
            if (d < DEPTH) total += q[g][i] * Sum(keys[key + j][d]);
          }
        }
        score[j] = lanes_sum(total);
        const unsigned number = start + key + j;
        counts[j] = is_inside && number < KEYS && (!IS_CAUSAL || number <= query);
        if (HAS_MASK && counts[j]) score[j] += Sum(M[head.m() + ROW_M * query + number]);
        if (counts[j]) higher = max(higher, score[j]);
      }
      const Sum factor = exp(highest - higher);
      highest = higher;
      sum *= factor;
#pragma unroll
      for (unsigned j = 0; j < KEYS_TOGETHER; ++j) {
        score[j] = counts[j] ? exp(score[j] - highest) : Sum(0);
        sum += score[j];
      }
#pragma unroll
      for (unsigned g = 0; g < GROUPS; ++g) {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          const unsigned d = (g * LANES + lane) * 4 + i;
          o[g][i] *= factor;
          if (d < DEPTH) {
#pragma unroll
            for (unsigned j = 0; j < KEYS_TOGETHER; ++j) {
              if (counts[j]) o[g][i] += score[j] * Sum(values[key + j][d]);
            }
          }
        }
      }
    }
  }
  if (!is_inside) return;
#pragma unroll
  for (unsigned g = 0; g < GROUPS; ++g) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned d = (g * LANES + lane) * 4 + i;
      // The sum is 0 where every key is masked, and so is the result.
      if (d < DEPTH) O[head.o() + ROW_O * query + d] = sum == Sum(0) ? Sum(0) : o[g][i] / sum;
    }
  }
}
