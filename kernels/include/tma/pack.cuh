// Operands of 16 bits in the workspace, as copies and tensor cores read them in order, whichever way and however far apart
// their rows lie in memory: what goes ahead of a product whose rows no tensor map can name.
#pragma once
#include "ptx/dependent_launch.cuh"
#include "tma/parameters.cuh"

constexpr unsigned PACK_THREADS = 256;
constexpr unsigned CHUNK = 8, STEP_CHUNKS = STEP_K / CHUNK;   // numbers of 16 bytes
constexpr unsigned GROUP = 8;                                 // lines that a swizzle spans
constexpr unsigned LINES_BEYOND = 512;                        // that a cluster's tile may read behind an operand

// A line is what a sum runs along: a row of op(A), a column of op(B). An operand has MATRICES of LINES lines in memory.
struct PackedA {
  static constexpr unsigned LINES = M, LD = LDA, MATRICES = STRIDE_A == 0 ? 1 : BATCH;
  static constexpr size_t STRIDE = STRIDE_A;
  static constexpr bool ALONG_K = !TRANS_A;   // whether a line is contiguous
};
struct PackedB {
  static constexpr unsigned LINES = N, LD = LDB, MATRICES = STRIDE_B == 0 ? 1 : BATCH;
  static constexpr size_t STRIDE = STRIDE_B;
  static constexpr bool ALONG_K = TRANS_B;
};
template <class Operand>
constexpr unsigned MATRIX_LINES = tw::ceil_div(Operand::LINES, GROUP) * GROUP;
template <class Operand>
constexpr unsigned ALL_LINES = MATRIX_LINES<Operand> * Operand::MATRICES;   // of a step
template <class Operand>
constexpr size_t PACKED_BYTES = (static_cast<size_t>(STEPS) * ALL_LINES<Operand> + LINES_BEYOND) * LINE_BYTES;
template <class Operand>
constexpr unsigned PACK_BLOCKS = tw::ceil_div(STEPS * STEP_CHUNKS * ALL_LINES<Operand>, PACK_THREADS);

// Steps of k one behind the other; of a step all lines, 128 bytes each, their chunks swizzled. So a tile's are contiguous.
template <class Operand>
__device__ __forceinline__ size_t line_at(unsigned step, unsigned matrix, unsigned line) {
  return (static_cast<size_t>(step) * ALL_LINES<Operand> + matrix * MATRIX_LINES<Operand> + line) * LINE_BYTES;
}

// One chunk of a line, zeros beyond the operand. Threads that are neighbours read what is.
template <class Operand>
__device__ __forceinline__ void pack_chunk(const Half* __restrict__ numbers, unsigned char* packed, unsigned item) {
  constexpr unsigned LINE_CHUNKS = STEPS * STEP_CHUNKS;
  const unsigned counted = Operand::ALONG_K ? item / LINE_CHUNKS : item % ALL_LINES<Operand>;
  const unsigned chunk = Operand::ALONG_K ? item % LINE_CHUNKS : item / ALL_LINES<Operand>;
  if (counted >= ALL_LINES<Operand> || chunk >= LINE_CHUNKS) return;
  const unsigned matrix = counted / MATRIX_LINES<Operand>, line = counted % MATRIX_LINES<Operand>, k = chunk * CHUNK;
  const unsigned short* source = reinterpret_cast<const unsigned short*>(numbers) + matrix * Operand::STRIDE
      + (Operand::ALONG_K ? static_cast<size_t>(line) * Operand::LD + k : static_cast<size_t>(k) * Operand::LD + line);
  unsigned bits[CHUNK];
#pragma unroll
  for (unsigned i = 0; i < CHUNK; ++i) {
    const bool is_inside = line < Operand::LINES && k + i < K;
    bits[i] = is_inside ? __ldg(source + (Operand::ALONG_K ? i : static_cast<size_t>(i) * Operand::LD)) : 0;
  }
  const size_t target = line_at<Operand>(chunk / STEP_CHUNKS, matrix, line) + (chunk % STEP_CHUNKS ^ line % GROUP) * 16;
  *reinterpret_cast<uint4*>(packed + target) =
      make_uint4(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16, bits[4] | bits[5] << 16, bits[6] | bits[7] << 16);
}

// All of the launch, of PACK_BLOCKS for either operand.
__device__ __forceinline__ void pack(const Half* __restrict__ A, const Half* __restrict__ B, unsigned char* workspace) {
  launch_dependents();
  wait_for_launch_before();   // which may read the workspace still
  if (blockIdx.x < PACK_BLOCKS<PackedA>) {
    pack_chunk<PackedA>(A, workspace, blockIdx.x * PACK_THREADS + threadIdx.x);
  } else {
    const unsigned item = (blockIdx.x - PACK_BLOCKS<PackedA>) * PACK_THREADS + threadIdx.x;
    pack_chunk<PackedB>(B, workspace + PACKED_BYTES<PackedA>, item);
  }
}
