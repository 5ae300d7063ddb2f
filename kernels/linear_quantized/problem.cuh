// The problem: Y = X dequantised(W)^T, baked in as constants. X: (m, k), Y: (m, n), row-major; W: (n, k) whole numbers of 8
// or 4 bits, S: (n, groups) their scales, and zero points beside them where the weights have some.
//
// A weight stands for (q - zero) * scale of its row's group of GROUP neighbours along k. Of 8 bits: q from -128 to 127,
// zero is 0. Of 4 bits, two in a byte, that of the even k in its lower half: q from 0 to 15, zero is 8 or a number from
// S, the second of each pair there.
#pragma once
#include "common/at_launch.cuh"
#include "common/integers.cuh"
#include "common/real.cuh"

#ifndef SHAPE_M
#define SHAPE_M 16     // rows of X and Y: tokens
#define SHAPE_N 4096   // columns of Y
#define SHAPE_K 4096   // columns of X; divides into 128
#endif
#if !defined(WEIGHTS_INT4) && !defined(WEIGHTS_INT4_ZEROS)
#define BITS 8
typedef signed char Weight;
#else
#define BITS 4
typedef unsigned char Weight;
#endif
#ifdef WEIGHTS_INT4_ZEROS
#define ZEROS 1
#else
#define ZEROS 0
#endif

#ifdef M_AT_LAUNCH
#define M SHAPE_M
#else
constexpr unsigned M = SHAPE_M;
#endif
constexpr unsigned N = SHAPE_N, K = SHAPE_K;
#ifdef GROUP_ROW
constexpr unsigned GROUP = K;
#else
constexpr unsigned GROUP = 128;
#endif
constexpr unsigned GROUPS = K / GROUP;
constexpr unsigned LOAD = 16 * 8 / BITS;   // weights of the widest load

// The 16 bytes of that number of a row. Weights are read once: the caches are for X.
__device__ __forceinline__ uint4 load_weights(const Weight* W, unsigned row, unsigned number) {
  return __ldcs(reinterpret_cast<const uint4*>(W + static_cast<size_t>(row) * (K / (8 / BITS))) + number);
}

// The scale and zero point that turn a stored number into a weight of a group.
struct Grid {
  float scale, zero;
  Grid() = default;
  template <class Element>
  __device__ __forceinline__ Grid(const Element* S, unsigned row, unsigned group) {
    const Element* own = S + (static_cast<size_t>(row) * GROUPS + group) * (1 + ZEROS);
    scale = own[0];
    zero = ZEROS ? static_cast<float>(own[ZEROS]) : BITS == 4 ? 8.0f : 0.0f;
  }
};
