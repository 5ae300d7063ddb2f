// The first launch: a block packs a tile of K or of V.
#pragma once
#include "parts.cuh"
#include "ptx/cp_async_bulk.cuh"

constexpr unsigned PACK_THREADS = 256, PACK_ROWS = PACK_THREADS / ROW_LANES;   // rows of a turn
constexpr unsigned PACK_TURNS = tw::ceil_div(KEYS_TOGETHER, PACK_ROWS);
constexpr unsigned FAR_IN_COLUMN = 12, LOST_IN_COLUMN = 26;   // powers of two below the largest of a column

// Where a chunk's first parts lie in a tile.
__device__ __forceinline__ unsigned chunk_place(unsigned row, unsigned chunk) {
  return row / 8 * GROUP_BYTES + chunk / 8 * 1024 + row % 8 * 128 + (chunk % 8 ^ row % 8) * 16;
}

__device__ __forceinline__ void store_parts(unsigned char* tile, unsigned row, unsigned chunk, const float (&x)[CHUNK]) {
  uint4 high, low;
  split_chunk(x, high, low);
  unsigned char* const target = tile + chunk_place(row, chunk);
  *reinterpret_cast<uint4*>(target) = high;
  *reinterpret_cast<uint4*>(target + PART_BYTES) = low;
}

// Each key by its own scale. Returns whether this thread's keys fit; such as do not become zeros.
__device__ __forceinline__ bool pack_keys(const float* __restrict__ K, unsigned first, unsigned char* tile) {
  const unsigned chunk = threadIdx.x % ROW_LANES, row = threadIdx.x / ROW_LANES;
  float* const factors = reinterpret_cast<float*>(tile + TILE_BYTES);
  float x[PACK_TURNS][CHUNK];
  bool all_fit = true;
#pragma unroll
  for (unsigned turn = 0; turn < PACK_TURNS; ++turn) {
    const unsigned at = turn * PACK_ROWS + row;
    load_chunk<K_ALIGNED>(x[turn], K + ROW_K * (first + at), chunk, at < TILE_KEYS && first + at < KEYS);
  }
#pragma unroll
  for (unsigned turn = 0; turn < PACK_TURNS; ++turn) {
    const unsigned at = turn * PACK_ROWS + row;
    bool is_fit;
    const unsigned largest = largest_of_row(x[turn], chunk, is_fit);
    const float scale = is_fit ? scale_for(largest) : 1.0f;
#pragma unroll
    for (unsigned i = 0; i < CHUNK; ++i) x[turn][i] = is_fit ? x[turn][i] * scale : 0.0f;
    all_fit = all_fit && is_fit;
    if (at < TILE_KEYS && chunk < CHUNKS) store_parts(tile, at, chunk, x[turn]);
    if (at < TILE_KEYS && chunk == 0) factors[at] = is_fit ? scale_back(largest) : 1.0f;
  }
  return all_fit;
}

// Each column by its own scale. Returns whether all columns fit; else all is zero.
__device__ __forceinline__ bool pack_values(const float* __restrict__ V, unsigned first, unsigned char* tile) {
  __shared__ unsigned largest_of[8 * ROW_LANES], far_in[8 * ROW_LANES];
  const unsigned chunk = threadIdx.x % ROW_LANES, row = threadIdx.x / ROW_LANES;
  float* const factors = reinterpret_cast<float*>(tile + TILE_BYTES);
  for (unsigned i = threadIdx.x; i < 8 * ROW_LANES; i += PACK_THREADS) largest_of[i] = far_in[i] = 0;
  float x[PACK_TURNS][CHUNK];
  unsigned largest[CHUNK] = {}, far[CHUNK] = {}, exist = 0;
#pragma unroll
  for (unsigned turn = 0; turn < PACK_TURNS; ++turn) {
    const unsigned at = turn * PACK_ROWS + row;
    load_chunk<V_ALIGNED>(x[turn], V + ROW_V * (first + at), chunk, at < TILE_KEYS && first + at < KEYS);
  }
#pragma unroll
  for (unsigned turn = 0; turn < PACK_TURNS; ++turn) {
#pragma unroll
    for (unsigned i = 0; i < CHUNK; ++i) largest[i] = tw::max(largest[i], magnitude_bits(x[turn][i]));
  }
#pragma unroll
  for (unsigned i = 0; i < CHUNK; ++i) {
#pragma unroll
    for (unsigned distance = 16; distance >= ROW_LANES; distance /= 2) {
      largest[i] = tw::max(largest[i], __shfl_xor_sync(0xffffffffu, largest[i], distance));
    }
  }
  __syncthreads();
  if (threadIdx.x % 32 < ROW_LANES) {
#pragma unroll
    for (unsigned i = 0; i < CHUNK; ++i) atomicMax(&largest_of[chunk * CHUNK + i], largest[i]);
  }
  __syncthreads();
#pragma unroll
  for (unsigned i = 0; i < CHUNK; ++i) largest[i] = largest_of[chunk * CHUNK + i];
  bool is_fit = true;
#pragma unroll
  for (unsigned turn = 0; turn < PACK_TURNS; ++turn) {
    exist += turn * PACK_ROWS + row < TILE_KEYS && first + turn * PACK_ROWS + row < KEYS;
#pragma unroll
    for (unsigned i = 0; i < CHUNK; ++i) {
      const bool is_there = magnitude_bits(x[turn][i]) != 0;
      far[i] += is_there && is_far_below(x[turn][i], largest[i], FAR_IN_COLUMN);
      is_fit = is_fit && !(is_there && is_far_below(x[turn][i], largest[i], LOST_IN_COLUMN));
    }
  }
#pragma unroll
  for (unsigned i = 0; i < CHUNK; ++i) {
    is_fit = is_fit && has_scale(largest[i]);
    if (far[i] > 0) atomicAdd(&far_in[chunk * CHUNK + i], far[i]);
  }
  const unsigned keys = tw::min(KEYS_TOGETHER, KEYS - first);
  __syncthreads();
#pragma unroll
  for (unsigned i = 0; i < CHUNK; ++i) is_fit = is_fit && far_in[chunk * CHUNK + i] <= tw::max(2u, keys / 8);
  is_fit = __syncthreads_or(!is_fit) == 0;
#pragma unroll
  for (unsigned turn = 0; turn < PACK_TURNS; ++turn) {
    const unsigned at = turn * PACK_ROWS + row;
#pragma unroll
    for (unsigned i = 0; i < CHUNK; ++i) x[turn][i] = is_fit ? x[turn][i] * scale_for(largest[i]) : 0.0f;
    if (at < TILE_KEYS && chunk < CHUNKS) store_parts(tile, at, chunk, x[turn]);
  }
  if (threadIdx.x < ROW_LANES && chunk * CHUNK < DEPTH) {
#pragma unroll
    for (unsigned i = 0; i < CHUNK; ++i) factors[chunk * CHUNK + i] = is_fit ? scale_back(largest[i]) : 1.0f;
  }
  return is_fit;
}

// All of the launch: every other block packs a tile of K, or of V. Either writes a word of what is known of K.
__device__ __forceinline__ void pack(
    const float* __restrict__ K, const float* __restrict__ V, unsigned char* __restrict__ workspace) {
  const bool is_value = blockIdx.x % 2;
  const unsigned kv_head = blockIdx.x / 2 / TILES_K, tile = blockIdx.x / 2 % TILES_K, first = tile * TILE_KEYS;
  const size_t batch = kv_head / KV_HEADS, head = kv_head % KV_HEADS;
  unsigned char* const target = packed_tile(workspace, kv_head, tile);
  const bool is_fit = is_value ? pack_values(V + BATCH_V * batch + HEAD_V * head, first, target + STAGE_BYTES)
                               : pack_keys(K + BATCH_K * batch + HEAD_K * head, first, target);
  const bool is_unfit = __syncthreads_or(!is_fit) != 0;
  if (threadIdx.x == 0) reinterpret_cast<unsigned*>(target + TILE_BYTES)[TILE_KEYS + is_value] = is_unfit;
  fence_proxy_async_global();
}
