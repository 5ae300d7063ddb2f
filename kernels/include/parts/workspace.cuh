// Where a product of packed parts keeps what, and the tiles of its blocks (parts/product.cuh).
#pragma once
#include "common/integers.cuh"
#include "common/product.cuh"
#ifndef TILE_M
#define TILE_M 128    // rows of C that a block computes: 64 a warpgroup
#endif
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
#ifndef SPLIT_K
#define SPLIT_K 1     // blocks that share a tile, at most
#endif
#ifndef BLOCKS
#define BLOCKS 132    // of the grid
#endif
#ifndef PACKED_B
#define PACKED_B 0    // 1: B was packed ahead, into memory of its own
#endif

constexpr unsigned STEP_K = 32;       // 64 bytes of a line: a swizzle of the tensor cores
constexpr unsigned STEPS = tw::ceil_div(K, STEP_K);
constexpr unsigned GROUP = 8;         // lines that a swizzle spans
constexpr unsigned PART_BYTES = GROUP * STEP_K * 2;   // a part of the numbers of a group of lines and a step
constexpr unsigned FINE_PARTS = 2, WIDE_PARTS = 3;    // in FP16 and in BF16
constexpr unsigned SURVEY_THREADS = 256, PACK_THREADS = 256;

// What depends on the rows is a constant where the compiler knows them.
#ifdef M_AT_LAUNCH
#define PERHAPS_CONSTEXPR
#else
#define PERHAPS_CONSTEXPR constexpr
#endif

// A line is what a sum runs along: a row of op(A), a column of op(B). An operand has MATRICES of them in memory, lines()
// each, which lie in groups of GROUP. KNOWN_LINES is 0 where the launch says how many.
struct OperandA {
  static constexpr unsigned NUMBER = 0, KNOWN_LINES = KNOWN_M, LD = LDA, MATRICES = STRIDE_A == 0 ? 1 : BATCH;
  __device__ __forceinline__ static PERHAPS_CONSTEXPR unsigned lines() { return M; }
  static constexpr size_t STRIDE = STRIDE_A;
  static constexpr bool ALONG_K = !TRANS_A;   // whether a line is contiguous
};
struct OperandB {
  static constexpr unsigned NUMBER = 1, KNOWN_LINES = N, LD = LDB, MATRICES = STRIDE_B == 0 ? 1 : BATCH;
  __device__ __forceinline__ static constexpr unsigned lines() { return N; }
  static constexpr size_t STRIDE = STRIDE_B;
  static constexpr bool ALONG_K = TRANS_B;
};
template <class Operand>
__device__ __forceinline__ constexpr unsigned groups_of() { return tw::ceil_div(Operand::lines(), GROUP); }   // of a matrix
template <class Operand>
__device__ __forceinline__ constexpr size_t all_groups() { return static_cast<size_t>(groups_of<Operand>()) * Operand::MATRICES; }

// Lines that are neither contiguous nor short are surveyed in strips of STRIP, each by CHUNKS blocks.
constexpr unsigned STRIP = 128, MOST_CHUNKS = 32;
constexpr unsigned CHUNK_K = tw::ceil_div(tw::ceil_div(K, MOST_CHUNKS), 8u) * 8, CHUNKS = tw::ceil_div(K, CHUNK_K);
template <class Operand>
__device__ __forceinline__ constexpr unsigned strips() { return tw::ceil_div(Operand::lines(), STRIP) * Operand::MATRICES; }

// Facts about an operand that are found before anything is multiplied.
struct Summary {
  unsigned is_odd;        // whether there is an infinity or a NaN
  unsigned is_extreme;    // whether a scale is beyond what a product of two leaves normal
  unsigned zeros;         // most zeros of a line
  float deficit;          // most bits that a line's numbers lie below its largest, summed up
};

__device__ __forceinline__ constexpr size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

constexpr size_t MOST_BEYOND = 2 * 256 * 192;
// Bytes of an operand's parts, and what a tile that juts out may read behind them.
template <class Operand, unsigned PARTS>
__device__ __forceinline__ constexpr size_t packed_bytes() {
  return aligned(STEPS * all_groups<Operand>() * (PARTS * PART_BYTES) + MOST_BEYOND);
}
template <class Operand>
__device__ __forceinline__ constexpr size_t scale_bytes() {
  return aligned(static_cast<size_t>(4) * Operand::lines() * Operand::MATRICES);
}
template <class Operand>
__device__ __forceinline__ constexpr size_t partial_bytes() {
  return Operand::ALONG_K ? 0 : aligned(static_cast<size_t>(16) * Operand::lines() * Operand::MATRICES * CHUNKS);
}

// The workspace: the count of blocks that have read what is known, both summaries, and counts of what is packed, which are
// zero between launches; what strips count in; scales, partial surveys, parts; at last what blocks that share a tile leave
// (parts/finish.cuh). Where the launch says the rows, all sizes share one workspace: what is zero between launches has a place
// of its own at the start, and B's partial surveys come first, so that they are found without the rows. A's lines are
// contiguous then, and have neither strips nor partial surveys.
constexpr size_t COUNTERS_AT = 256;
#ifdef M_AT_LAUNCH
constexpr size_t PARTIALS_AT = SHARED_COUNTER_BYTES, SCALES_AT = PARTIALS_AT + partial_bytes<OperandB>();
[[maybe_unused]] constexpr unsigned STRIPS_BEFORE_B = 0;
static_assert(COUNTERS_AT + 4 * strips<OperandB>() <= SHARED_COUNTER_BYTES / 2, "counters of strips, then those of tiles");
#else
constexpr size_t SCALES_AT = COUNTERS_AT + aligned(4 * (static_cast<size_t>(strips<OperandA>()) + strips<OperandB>()));
constexpr size_t PARTIALS_AT = SCALES_AT + scale_bytes<OperandA>() + scale_bytes<OperandB>();
[[maybe_unused]] constexpr unsigned STRIPS_BEFORE_B = strips<OperandA>();
#endif
__device__ __forceinline__ constexpr size_t packed_at() {
#ifdef M_AT_LAUNCH
  return SCALES_AT + scale_bytes<OperandA>() + scale_bytes<OperandB>();
#else
  return PARTIALS_AT + partial_bytes<OperandA>() + partial_bytes<OperandB>();
#endif
}
__device__ __forceinline__ constexpr size_t shared_tiles_at() {
  return packed_at() + packed_bytes<OperandA, WIDE_PARTS>() + packed_bytes<OperandB, WIDE_PARTS>();
}
#ifdef M_AT_LAUNCH
#define TILE_COUNTERS_AT (SHARED_COUNTER_BYTES / 2)
#else
#define TILE_COUNTERS_AT shared_tiles_at()
#endif
constexpr size_t KEPT_PARTS_AT = 256 + scale_bytes<OperandB>();   // in what is kept of a B that was packed ahead

// The memory that the launches share. With PACKED_B, `kept` has B's summary, scales and FP16 parts; the workspace has
// its BF16 parts where they are needed.
struct Memory {
  unsigned char* workspace;
  unsigned char* kept;

  template <class Operand>
  static constexpr bool IS_KEPT = PACKED_B && Operand::NUMBER == 1;

  __device__ __forceinline__ unsigned* finished() const { return reinterpret_cast<unsigned*>(workspace); }
  // How many items were drawn to be packed, and how many of them are (parts/pack.cuh).
  __device__ __forceinline__ unsigned* drawn() const { return reinterpret_cast<unsigned*>(workspace + 128); }
  template <class Operand>
  __device__ __forceinline__ Summary* summary() const {
    return reinterpret_cast<Summary*>(IS_KEPT<Operand> ? kept : workspace + 16 + Operand::NUMBER * sizeof(Summary));
  }
  template <class Operand>
  __device__ __forceinline__ unsigned* counters() const {
    return reinterpret_cast<unsigned*>(workspace + COUNTERS_AT) + (Operand::NUMBER ? STRIPS_BEFORE_B : 0);
  }
  // For each line the exponent of two that its numbers are multiplied by.
  template <class Operand>
  __device__ __forceinline__ int* scales() const {
    return reinterpret_cast<int*>(
        IS_KEPT<Operand> ? kept + 256 : workspace + SCALES_AT + (Operand::NUMBER ? scale_bytes<OperandA>() : 0));
  }
  template <class Operand>
  __device__ __forceinline__ uint4* partials() const {
    return reinterpret_cast<uint4*>(workspace + PARTIALS_AT + (Operand::NUMBER ? partial_bytes<OperandA>() : 0));
  }
  // Steps of k one behind the other; of a step, groups of lines; of a group, its parts; of a part, lines with their
  // 16-byte chunks swizzled as the tensor cores read them. So the lines of any tile are contiguous.
  template <class Operand, unsigned PARTS>
  __device__ __forceinline__ unsigned char* packed() const {
    if (IS_KEPT<Operand> && PARTS == FINE_PARTS) return kept + KEPT_PARTS_AT;
    return workspace + packed_at() + (Operand::NUMBER ? packed_bytes<OperandA, WIDE_PARTS>() : 0);
  }
};

// Whether two FP16 parts of each number are exact enough. Scaled, a line's largest number is at least 2^14, and a
// number's parts miss it by at most 2^-25 beyond FP32's own rounding. Of a sum of n products that is at most
// n 2^-38 a b, where a and b are the largest numbers of the two lines. The sum of magnitudes is, by the means of
// logarithms, at least n a b 2^-d, where d is how many bits the n pairs lie below a and b on the mean. So the error is
// within the bound for c = 1, sqrt(k) 2^-24 of the magnitudes, where d <= 14 + log2(k) / 2; half a bit is kept in reserve, and
// more where sums are short, because of the twice that the bound admits what the tensor cores cut off takes more.
// Pairs with a zero say nothing, so n is at least k less the most zeros of a line of either operand.
__device__ __forceinline__ bool is_wide(const Summary& a, const Summary& b) {
  const float deficit = a.deficit + b.deficit;
  const float pairs = static_cast<float>(K) - static_cast<float>(a.zeros) - static_cast<float>(b.zeros);
  constexpr float RESERVE = K >= 128 ? 0.5f : 1.5f;
  return deficit > 0 && !(pairs > 0 && deficit <= pairs * (14.0f - RESERVE + 0.5f * log2f(static_cast<float>(K))));
}
