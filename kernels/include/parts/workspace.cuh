// Where a product of packed parts keeps what in its workspace, and the tiles of its blocks (parts/product.cuh).
#pragma once
#include "common/integers.cuh"
#include "common/product.cuh"
#ifndef TILE_N
#define TILE_N 128    // columns of C that a block computes
#endif
#ifndef CLUSTER
#define CLUSTER 1     // blocks, one below the other, that share columns of B
#endif
#ifndef PROMOTE_K
#define PROMOTE_K 256   // products that the tensor cores add up before FP32 registers do
#endif
#ifndef GROUP_M
#define GROUP_M 8     // row tiles that share columns of B in the L2 cache
#endif
#ifndef BLOCKS
#define BLOCKS 132    // of the grid
#endif

constexpr unsigned TILE_M = 128;
constexpr unsigned STEP_K = 32;       // 64 bytes of a line: a swizzle of the tensor cores
constexpr unsigned STEPS = tw::ceil_div(K, STEP_K);
constexpr unsigned GROUP = 8;         // lines that a swizzle spans
constexpr unsigned PART_BYTES = GROUP * STEP_K * 2;   // a part of the numbers of a group of lines and a step
constexpr unsigned FINE_PARTS = 2, WIDE_PARTS = 3;    // in FP16 and in BF16
constexpr unsigned SURVEY_THREADS = 256, PACK_THREADS = 256;

// A line is what a sum runs along: a row of op(A), a column of op(B).
struct OperandA {
  static constexpr unsigned NUMBER = 0, LINES = M;
  static constexpr bool ALONG_K = !TRANS_A;   // whether a line is contiguous
};
struct OperandB {
  static constexpr unsigned NUMBER = 1, LINES = N;
  static constexpr bool ALONG_K = TRANS_B;
};

// Lines that are not contiguous are surveyed in strips of STRIP, each by CHUNKS blocks.
constexpr unsigned STRIP = 128, MOST_CHUNKS = 32;
constexpr unsigned CHUNK_K = tw::ceil_div(tw::ceil_div(K, MOST_CHUNKS), 8) * 8, CHUNKS = tw::ceil_div(K, CHUNK_K);

__device__ constexpr size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Bytes of an operand's parts, and what a tile that juts out may read behind them.
template <class Operand>
__device__ constexpr size_t packed_bytes() {
  return static_cast<size_t>(STEPS) * tw::ceil_div(Operand::LINES, GROUP) * (WIDE_PARTS * PART_BYTES) + CLUSTER * 256 * 192;
}
template <class Operand>
__device__ constexpr size_t partial_bytes() {
  return Operand::ALONG_K ? 0 : aligned(static_cast<size_t>(16) * Operand::LINES * CHUNKS);
}

// What is known of both operands before anything is packed; all zero between launches.
struct Summary {
  unsigned finished;      // blocks of the last launch
  unsigned is_odd;        // whether there is an infinity or a NaN
  unsigned is_extreme;    // whether a scale is beyond what a product of two leaves normal
  unsigned zeros[2];      // most zeros of a line, for each operand
  float deficit[2];       // most bits that a line's numbers lie below its largest, summed up
};

constexpr size_t COUNTERS_AT = 256;
constexpr size_t SCALES_AT = COUNTERS_AT + aligned(4 * (static_cast<size_t>(tw::ceil_div(M, STRIP)) + tw::ceil_div(N, STRIP)));
constexpr size_t PARTIALS_AT = SCALES_AT + aligned(4 * (static_cast<size_t>(M) + N));
constexpr size_t PACKED_AT = PARTIALS_AT + partial_bytes<OperandA>() + partial_bytes<OperandB>();

template <class Operand>
__device__ __forceinline__ unsigned* counters(unsigned char* workspace) {
  return reinterpret_cast<unsigned*>(workspace + COUNTERS_AT) + (Operand::NUMBER ? tw::ceil_div(M, STRIP) : 0);
}

// For each line the exponent of two that its numbers are multiplied by.
template <class Operand>
__device__ __forceinline__ int* scales(unsigned char* workspace) {
  return reinterpret_cast<int*>(workspace + SCALES_AT) + (Operand::NUMBER ? M : 0);
}
template <class Operand>
__device__ __forceinline__ uint4* partials(unsigned char* workspace) {
  return reinterpret_cast<uint4*>(workspace + PARTIALS_AT + (Operand::NUMBER ? partial_bytes<OperandA>() : 0));
}

// Steps of k one behind the other; of a step, groups of lines; of a group, its parts; of a part, lines with their
// 16-byte chunks swizzled as the tensor cores read them. So the lines of any tile are contiguous.
template <class Operand>
__device__ __forceinline__ unsigned char* packed(unsigned char* workspace) {
  return workspace + PACKED_AT + (Operand::NUMBER ? aligned(packed_bytes<OperandA>()) : 0);
}

__device__ __forceinline__ Summary* summary(unsigned char* workspace) { return reinterpret_cast<Summary*>(workspace); }

// Whether two FP16 parts of each number are exact enough. Scaled, a line's largest number is at least 2^14, and a
// number's parts miss it by at most 2^-25 beyond FP32's own rounding. Of a sum of n products that is at most
// n 2^-38 a b, where a and b are the largest numbers of the two lines. The sum of magnitudes is, by the means of
// logarithms, at least n a b 2^-d, where d is how many bits the n pairs lie below a and b on the mean. So the error is
// within the bound for c = 1, sqrt(k) 2^-24 of the magnitudes, where d <= 14 + log2(k) / 2; half a bit is kept in reserve.
// Pairs with a zero say nothing, so n is at least k less the most zeros of a line of either operand.
__device__ __forceinline__ bool is_wide(const Summary& known) {
  const float deficit = known.deficit[0] + known.deficit[1];
  const float pairs = static_cast<float>(K) - static_cast<float>(known.zeros[0]) - static_cast<float>(known.zeros[1]);
  return deficit > 0 && !(pairs > 0 && deficit <= pairs * (13.5f + 0.5f * log2f(static_cast<float>(K))));
}
