// What warpgroups make of tiles of K and V in shared memory: scores, shares, and 64 queries' part of O (tensor_fp16_sm90.cu has the
// method).
#pragma once
#include "ptx/wgmma_f16.cuh"
#include "softmax.cuh"

// Descriptors by PTX ISA, "Matrix Descriptor Format", in units of 16 bytes, swizzled over 128: eight lines lie `lines` apart; across
// k the next 64 columns lie `columns` apart.
__device__ __forceinline__ unsigned long long descriptor(unsigned address, unsigned lines, unsigned columns) {
  return (address & 0x3ffff) / 16 | static_cast<unsigned long long>(columns / 16) << 16 |
         static_cast<unsigned long long>(lines / 16) << 32 | 1ull << 62;
}

// Starts the products of queries and the keys of a tile: small ones first.
__device__ __forceinline__ void start_scores(float (&score)[TILE_KEYS / 2], unsigned queries, unsigned stage) {
  if constexpr (PANELS > 1) fence_operand(queries);   // so that no registers hold what follows from it all the time
  const unsigned long long q = descriptor(queries, 1024, 16), k = descriptor(stage, GROUP_BYTES, 16);
  warpgroup_arrive();
#pragma unroll
  for (unsigned product = 0; product < 3; ++product) {   // low by high, high by low, high by high parts
#pragma unroll
    for (unsigned step = 0; step < CHUNKS / 2; ++step) {
      const unsigned in_panel = step % 4 * 2, panel = step / 4;
      const unsigned at_q = (panel * PANEL_Q_BYTES + (product == 0 ? PART_Q_BYTES : 0)) / 16 + in_panel;
      const unsigned at_k = (panel * 1024 + (product == 1 ? PART_BYTES : 0)) / 16 + in_panel;
      wgmma_k16_shared<TILE_KEYS>(score, q + at_q, k + at_k, product + step);
    }
  }
  warpgroup_commit_batch();
}

// Starts the products of shares and the values of a tile.
__device__ __forceinline__ void start_values(
    float (&part)[DEPTH / 2], const unsigned (&high)[TILE_KEYS / 4], const unsigned (&low)[TILE_KEYS / 4], unsigned stage) {
  const unsigned long long v = descriptor(stage, GROUP_BYTES, 1024);
  warpgroup_arrive();
#pragma unroll
  for (unsigned product = 0; product < 3; ++product) {
#pragma unroll
    for (unsigned step = 0; step < TILE_KEYS / 16; ++step) {
      const unsigned at = (step * 2 * GROUP_BYTES + (product == 1 ? PART_BYTES : 0)) / 16;
      wgmma_k16_registers<DEPTH>(part, (product == 0 ? low : high) + 4 * step, v + at, product + step);
    }
  }
  warpgroup_commit_batch();
}

// A warpgroup's part of its queries' result: sums over the tiles before, and the products that run.
struct Output {
  float sum[DEPTH / 2] = {}, part[DEPTH / 2] = {};

  // The sums so far become less by `since`, and those of the tile are added, its scales taken away.
  __device__ __forceinline__ void add(const float (&since)[2], unsigned factors) {
#pragma unroll
    for (unsigned i = 0; i < DEPTH / 8; ++i) {
      float first, second;
      ld_shared_v2(first, second, factors + (i * 8 + threadIdx.x % 4 * 2) * 4);
      sum[4 * i] = fmaf(part[4 * i], first, sum[4 * i] * since[0]);
      sum[4 * i + 1] = fmaf(part[4 * i + 1], second, sum[4 * i + 1] * since[0]);
      sum[4 * i + 2] = fmaf(part[4 * i + 2], first, sum[4 * i + 2] * since[1]);
      sum[4 * i + 3] = fmaf(part[4 * i + 3], second, sum[4 * i + 3] * since[1]);
    }
  }

  __device__ __forceinline__ void store(float* __restrict__ O, const Rows& rows, const Softmax& softmax) const {
#pragma unroll
    for (unsigned row = 0; row < 2; ++row) {
      const float inverse = softmax.inverse(row);
      if (rows.query(row) >= QUERIES) continue;
      float* const target = O + ROW_O * rows.query(row) + threadIdx.x % 4 * 2;
#pragma unroll
      for (unsigned i = 0; i < DEPTH / 8; ++i) {
        *reinterpret_cast<float2*>(target + 8 * i) =
            make_float2(sum[4 * i + 2 * row] * inverse, sum[4 * i + 2 * row + 1] * inverse);
      }
    }
  }
};

// A head, and the arrays, as a warpgroup reads them beside its tiles: rarely, so that no register holds where the head begins.
struct Arrays {
  const float *Q, *K, *V, *M;
  Head head;
};

// Scores that have been made become shares; K's tile is given back. Returns whether V does not fit.
template <typename Tile>
__device__ __forceinline__ bool make_shares(
    float (&score)[TILE_KEYS / 2], Softmax& softmax, float (&since)[2], const Rows& rows, const Arrays& arrays,
    const Tile& keys, unsigned tile) {
  const unsigned factors = keys.stage + TILE_BYTES;
  float key_word, value_word;
  ld_shared_v2(key_word, value_word, factors + TILE_KEYS * 4);
  unscale(score, factors);
  keys.release();
  if (rows.are_unfit || __float_as_uint(key_word) != 0) exact_scores(score, rows, arrays.Q + arrays.head.q(), arrays.K + arrays.head.k(), tile * TILE_KEYS);
  mask_scores(score, rows, HAS_MASK ? arrays.M + arrays.head.m() : arrays.M, tile * TILE_KEYS);
  softmax.take(score, rows, since);
  return __float_as_uint(value_word) != 0;
}

// Shares are split; where V does not fit, what they add to the result is added at once, and `since` has been counted then.
__device__ __forceinline__ void split_shares(
    const float (&share)[TILE_KEYS / 2], unsigned (&high)[TILE_KEYS / 4], unsigned (&low)[TILE_KEYS / 4], Output& output,
    float (&since)[2], bool is_unfit, const Arrays& arrays, unsigned tile) {
#pragma unroll
  for (unsigned i = 0; i < TILE_KEYS / 4; ++i) split_pair(share[2 * i], share[2 * i + 1], high[i], low[i]);
  if (is_unfit) {
#pragma unroll
    for (unsigned i = 0; i < DEPTH / 2; ++i) output.sum[i] *= since[i / 2 % 2];
    since[0] = since[1] = 1.0f;
    add_exact_values(output.sum, share, arrays.V + arrays.head.v(), tile * TILE_KEYS);
  }
}

// By a warpgroup that multiplies: 64 queries of a head. `source` has the tiles of K and V in shared memory, in the order K of the
// first, then K of each other and V of the one before, V of the last; of the `loaded` that come only `tiles` are needed.
template <typename Source>
__device__ __forceinline__ void multiply(
    Source source, const Rows& rows, const Arrays& arrays, unsigned queries, unsigned tiles, unsigned loaded, float* O) {
  Output output;
  Softmax softmax;
  float score[TILE_KEYS / 2] = {}, since[2];
  unsigned high[TILE_KEYS / 4], low[TILE_KEYS / 4];
  {
    const auto keys = source.keys(0);
    start_scores(score, queries, keys.stage);
    warpgroup_wait_but<0>();
    fence_sums(score);
    const bool is_unfit = make_shares(score, softmax, since, rows, arrays, keys, 0);
    split_shares(score, high, low, output, since, is_unfit, arrays, 0);
  }
#pragma unroll 1
  for (unsigned tile = 1; tile < tiles; ++tile) {
    const auto keys = source.keys(tile);
    start_scores(score, queries, keys.stage);
    const auto values = source.values(tile - 1);
    start_values(output.part, high, low, values.stage);
    warpgroup_wait_but<1>();
    fence_sums(score);
    float next[2];
    const bool is_unfit = make_shares(score, softmax, next, rows, arrays, keys, tile);
    warpgroup_wait_but<0>();
    fence_sums(output.part);
    output.add(since, values.stage + TILE_BYTES);
    values.release();
    since[0] = next[0], since[1] = next[1];
    split_shares(score, high, low, output, since, is_unfit, arrays, tile);
  }
  unsigned left = 2 * (loaded - tiles);
  if (left > 0) {   // the next tile of K comes ahead of the last of V
    source.keys(tiles).release();
    --left;
  }
  const auto values = source.values(tiles - 1);
  start_values(output.part, high, low, values.stage);
  warpgroup_wait_but<0>();
  fence_sums(output.part);
  output.add(since, values.stage + TILE_BYTES);
  values.release();
  for (; left > 0; --left) source.values(tiles).release();
  output.store(O + arrays.head.o(), rows, softmax);
}

// Tiles of keys that count for a query or one before it.
__device__ __forceinline__ unsigned tiles_until(unsigned query) {
  return IS_CAUSAL ? tw::min(query / TILE_KEYS + 1, TILES_K) : TILES_K;
}
