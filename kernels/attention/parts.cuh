// K and V as two FP16 parts of each number, scaled: how they lie in the workspace and come to shared memory, in the order in which
// bulk copies and tensor cores read them. A tile has TILE_KEYS keys, in groups of eight; of a group come the first parts of up to 64
// numbers of each key, swizzled over 128 bytes, those of the next 64, then the second parts. Behind a tile's parts lies what
// is known of it: of K one factor a key, which takes its scale away, and whether K and V fit; of V one factor a column.
#pragma once
#include "problem.cuh"
#include "ptx/convert_half.cuh"
#include "ptx/half_pair.cuh"

#ifndef TILE_KEYS
#define TILE_KEYS 64        // keys of a step
#define MULTIPLIERS 2       // warpgroups of a block that multiply, 64 queries each
#define HEADS_TOGETHER 8    // heads whose tiles of queries take turns
#define BLOCKS 132          // blocks of the launch, at most
#endif

constexpr unsigned KEYS_TOGETHER = TILE_KEYS, TILES_K = tw::ceil_div(KEYS, KEYS_TOGETHER);
constexpr unsigned CHUNK = 8;                                      // numbers in 16 bytes of FP16
constexpr unsigned CHUNKS = tw::ceil_div(DEPTH, 16u) * 2;           // of a row, as products take them
constexpr unsigned ROW_LANES = CHUNKS <= 4 ? 4 : CHUNKS <= 8 ? 8 : 16;   // threads that read a row, a chunk each
constexpr unsigned PANELS = tw::ceil_div(DEPTH, 64u);
constexpr unsigned PART_BYTES = PANELS * 1024, GROUP_BYTES = 2 * PART_BYTES;   // of a group of eight keys
constexpr unsigned TILE_BYTES = TILE_KEYS / 8 * GROUP_BYTES;
constexpr unsigned KNOWN_K_BYTES = TILE_KEYS * 4 + 16, KNOWN_V_BYTES = DEPTH * 4;
constexpr unsigned STAGE_BYTES = TILE_BYTES + 1024;   // of K or V with what is known of it
static_assert(KNOWN_K_BYTES <= 1024 && KNOWN_V_BYTES <= 1024, "what is known of a tile fits behind it");

__device__ __forceinline__ unsigned char* packed_tile(unsigned char* workspace, unsigned kv_head, unsigned tile) {
  return workspace + (size_t{kv_head} * TILES_K + tile) * (2 * STAGE_BYTES);
}

// Eight neighbours of a row; zeros where the row or the place does not exist.
template <bool ALIGNED>
__device__ __forceinline__ void load_chunk(float (&x)[CHUNK], const float* row, unsigned chunk, bool exists) {
  exists = exists && chunk * CHUNK < DEPTH;
  if constexpr (ALIGNED) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      float4 quad = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (exists) quad = __ldg(reinterpret_cast<const float4*>(row + chunk * CHUNK + half * 4));
      x[half * 4] = quad.x, x[half * 4 + 1] = quad.y, x[half * 4 + 2] = quad.z, x[half * 4 + 3] = quad.w;
    }
  } else {
#pragma unroll
    for (unsigned i = 0; i < CHUNK; ++i) x[i] = exists ? __ldg(row + chunk * CHUNK + i) : 0.0f;
  }
}

// A magnitude as bits, in whose order infinity is behind all numbers and NaN behind infinity.
__device__ __forceinline__ unsigned magnitude_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// Whether a line's largest magnitude can be scaled at all: zero, or from 2^-60 to 2^60.
__device__ __forceinline__ bool has_scale(unsigned largest) {
  return largest == 0 || (largest >= (127u - 60) << 23 && largest < (127u + 60) << 23);
}

// The power of two that brings the largest into [2^14, 2^15), and the one that takes it back; 1 for zeros.
__device__ __forceinline__ float scale_for(unsigned largest) {
  return largest == 0 ? 1.0f : __uint_as_float((268u - (largest >> 23)) << 23);
}
__device__ __forceinline__ float scale_back(unsigned largest) {
  return largest == 0 ? 1.0f : __uint_as_float(((largest >> 23) - 14u) << 23);
}

// Whether a number is so far below the largest of its line, by more than so many powers of two.
__device__ __forceinline__ bool is_far_below(float x, unsigned largest, unsigned powers) {
  return magnitude_bits(x) + (powers << 23) < largest;
}

// Two numbers as two parts.
__device__ __forceinline__ void split_pair(float first, float second, unsigned& high, unsigned& low) {
  float a, b;
  high = cvt_rn_x2<false>(first, second);
  widen_x2(high, a, b);
  low = cvt_rn_x2<false>(first - a, second - b);
}

__device__ __forceinline__ void split_chunk(const float (&x)[CHUNK], uint4& high, uint4& low) {
  split_pair(x[0], x[1], high.x, low.x);
  split_pair(x[2], x[3], high.y, low.y);
  split_pair(x[4], x[5], high.z, low.z);
  split_pair(x[6], x[7], high.w, low.w);
}

// The largest magnitude of a row whose chunks ROW_LANES neighbours hold, and how many of its numbers are far below it: of two
// rows that each have more large numbers than others, one product at least is large.
constexpr unsigned FAR_IN_ROW = 6;
__device__ __forceinline__ unsigned largest_of_row(const float (&x)[CHUNK], unsigned chunk, bool& is_fit) {
  unsigned largest = 0, far = 0;
#pragma unroll
  for (unsigned i = 0; i < CHUNK; ++i) largest = tw::max(largest, magnitude_bits(x[i]));
#pragma unroll
  for (unsigned distance = ROW_LANES / 2; distance > 0; distance /= 2) {
    largest = tw::max(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  }
#pragma unroll
  for (unsigned i = 0; i < CHUNK; ++i) far += is_far_below(x[i], largest, FAR_IN_ROW) && chunk * CHUNK < DEPTH;
#pragma unroll
  for (unsigned distance = ROW_LANES / 2; distance > 0; distance /= 2) far += __shfl_xor_sync(0xffffffffu, far, distance);
  is_fit = has_scale(largest) && (largest == 0 || 2 * far < DEPTH);
  return largest;
}
