// A warp's numbers of A and B, from memory to two FP16 parts each.
#pragma once
#include "ptx/convert_half.cuh"
#include "ptx/half_pair.cuh"
#include "ptx/load_global.cuh"
#include "small/work.cuh"

constexpr unsigned WIDTH_A = tw::gcd(DIVISOR_A, TRANS_A ? 2u : 4u), WIDTH_B = tw::gcd(DIVISOR_B, 4u);
constexpr float LEAST_NORMAL = 0x1p-14f, LOW_SCALE = 0x1p11f;
using Numbers = float[2 * K16][4];
using Parts = unsigned[2 * K16][2];   // pairs

// op(A)(row(half), k + 16 s + 4 t + i) is x[2 s + half][i]. What is outside is zero.
__device__ __forceinline__ void load_a(Numbers& x, const float* A, const Place& place, unsigned k) {
  const float* const first = A + index_a(place.row(0), k + 4 * place.t);
#pragma unroll
  for (unsigned s = 0; s < K16; ++s) {
#pragma unroll
    for (unsigned line = 0; line < (TRANS_A ? 4 : 2); ++line) {
      const size_t behind = static_cast<size_t>(TRANS_A ? 16 * s + line : 8 * line) * LDA + (TRANS_A ? 0 : 16 * s);
      float read[4] = {};
#pragma unroll
      for (unsigned i = 0; i < (TRANS_A ? 2 : 4); i += WIDTH_A) {
        const unsigned row = place.row(TRANS_A ? i : line), term = k + 16 * s + 4 * place.t + (TRANS_A ? line : i);
        if ((FULL_M || row < M) && (FULL_K || term < K)) load_global<WIDTH_A>(read + i, first + behind + i);
      }
#pragma unroll
      for (unsigned i = 0; i < (TRANS_A ? 2 : 4); ++i) x[2 * s + (TRANS_A ? i : line)][TRANS_A ? line : i] = read[i];
    }
  }
}

// Loads op(B), p = 4 (g / 2) + g % 2 + 2 j: across k in memory, x[2 s + j][i] has term k + 16 s + p and column 4 t + i, else
// term k + 16 s + 4 t + i and column p.
__device__ __forceinline__ void load_b(Numbers& x, const float* B, const Place& place, unsigned k) {
  const unsigned p = place.g / 2 * 4 + place.g % 2, term = k + (TRANS_B ? 4 * place.t : p);
  const unsigned column = place.column + (TRANS_B ? p : 4 * place.t);
  const float* const first = B + index_b(term, column);
#pragma unroll
  for (unsigned number = 0; number < 2 * K16; ++number) {
    const unsigned s = number / 2 * 16, j = number % 2 * 2;
    const size_t behind = TRANS_B ? static_cast<size_t>(j) * LDB + s : static_cast<size_t>(s + j) * LDB;
#pragma unroll
    for (unsigned i = 0; i < 4; i += WIDTH_B) {
      const bool inside = (FULL_N || column + (TRANS_B ? j : i) < N) && (FULL_K || term + s + (TRANS_B ? i : j) < K);
#pragma unroll
      for (unsigned more = 0; more < WIDTH_B; ++more) x[number][i + more] = 0;
      if (inside) load_global<WIDTH_B>(&x[number][i], first + behind + i);
    }
  }
}

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// The exponent of two that makes the largest of the warp's numbers 2^14 or more, below 2^15; whether it is safe: beyond 2^-46
// to 2^60 the scales of a product might not be numbers.
__device__ __forceinline__ int scale_of(const Numbers& x, bool& is_safe) {
  float largest[2] = {0, 0};   // two chains
#pragma unroll
  for (unsigned i = 0; i < K16 * 8; ++i) largest[i % 2] = fmaxf(largest[i % 2], fabsf(x[i / 4][i % 4]));
  const unsigned bits = warp_max(__float_as_uint(fmaxf(largest[0], largest[1]))), exponent = bits >> 23;
  const bool is_moderate = exponent - 81 < 106;
  is_safe = bits == 0 || is_moderate;
  return is_moderate ? 127 + 14 - static_cast<int>(exponent) : 0;
}

// Both parts of a warp's numbers, scaled, the low ones times LOW_SCALE; and whether they hold all of them: zeros, and what is
// 2^-14 or more, which misses its parts by 2^-22 of itself at most.
__device__ __forceinline__ bool split(const Numbers& x, int exponent, Parts& high, Parts& low) {
  const float scale = power_of_two(exponent), low_scale = scale * LOW_SCALE;
  unsigned least = 0x7bff7bffu;
#pragma unroll
  for (unsigned i = 0; i < K16 * 4; ++i) {
    const float* pair = &x[i / 2][i % 2 * 2];
    high[i / 2][i % 2] = cvt_rn_x2<false>(pair[0] * scale, pair[1] * scale);
    least = least_magnitude_x2(least, high[i / 2][i % 2]);
  }
  float first, second;
  widen_x2(least, first, second);
  bool is_held = first >= LEAST_NORMAL && second >= LEAST_NORMAL;
  if (!is_held) {   // zeros, or what is too small, or NaN
    is_held = true;
#pragma unroll
    for (unsigned i = 0; i < K16 * 8; ++i) {
      const float y = x[i / 4][i % 4];
      is_held = is_held && (y == 0.0f || fabsf(y) * scale >= LEAST_NORMAL);
    }
  }
#pragma unroll
  for (unsigned i = 0; i < K16 * 4; ++i) {
    const float* pair = &x[i / 2][i % 2 * 2];
    widen_x2(high[i / 2][i % 2], first, second);
    low[i / 2][i % 2] =
        cvt_rn_x2<false>(fmaf(first, -LOW_SCALE, pair[0] * low_scale), fmaf(second, -LOW_SCALE, pair[1] * low_scale));
  }
  return __all_sync(0xffffffffu, is_held);
}
