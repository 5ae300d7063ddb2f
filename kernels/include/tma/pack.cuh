// Operands of 16 bits in the workspace, as copies and tensor cores read them in order, whichever way and however far apart
// their rows lie in memory: what goes ahead of a product whose rows no tensor map can name.
#pragma once
#include "ptx/dependent_launch.cuh"
#include "tma/parameters.cuh"

constexpr unsigned PACK_THREADS = 256;
constexpr unsigned CHUNK = 8, LINE_CHUNKS = LINE_BYTES / 16;   // numbers of 16 bytes; these of a line
constexpr unsigned GROUP = 8;                                  // lines that a swizzle spans
constexpr unsigned LINES_BEYOND = 512;                         // that a cluster's tile may read behind an operand

// An operand as it lies in memory: MATRICES of ROWS rows of LENGTH numbers, SIDE of which are a tile's side and the others k.
template <bool ALONG_K_, unsigned SIDE, unsigned LD_, size_t STRIDE_>
struct Packed {
  static constexpr bool ALONG_K = ALONG_K_;   // whether rows go along k
  static constexpr unsigned LD = LD_, MATRICES = STRIDE_ == 0 ? 1 : BATCH;
  static constexpr size_t STRIDE = STRIDE_;
  static constexpr unsigned ROWS = ALONG_K ? SIDE : K, LENGTH = ALONG_K ? K : SIDE;
  // With what is added to it: rows of a matrix, and pieces of 64 numbers of a row, which become lines.
  static constexpr unsigned ALL_ROWS = ALONG_K ? tw::ceil_div(SIDE, GROUP) * GROUP : STEPS * STEP_K;
  static constexpr unsigned PIECES = tw::ceil_div(LENGTH, STEP_K);
  static constexpr unsigned CHUNKS = MATRICES * ALL_ROWS * PIECES * LINE_CHUNKS;
  static constexpr unsigned PACK_BLOCKS = tw::ceil_div(CHUNKS, PACK_THREADS);
  static constexpr size_t BYTES =
      (static_cast<size_t>(PIECES) * ALL_ROWS * MATRICES + (ALONG_K ? LINES_BEYOND : 0)) * LINE_BYTES;

  // Where a line lies. Along k a step has the lines of all matrices one behind the other, so that a tile's are contiguous;
  // across it 64 columns of a matrix have those of all k.
  __device__ __forceinline__ static size_t line_at(unsigned matrix, unsigned piece, unsigned row) {
    const unsigned before = ALONG_K ? piece * MATRICES + matrix : matrix * PIECES + piece;
    return (static_cast<size_t>(before) * ALL_ROWS + row) * LINE_BYTES;
  }
};
typedef Packed<!TRANS_A, M, LDA, STRIDE_A> PackedA;
typedef Packed<TRANS_B, N, LDB, STRIDE_B> PackedB;

// Eight numbers from `source` on, wherever it begins, of those between `begin` and `end`: two loads of 16 bytes where both lie
// between these, else one of each number. Zeros behind the first `count`.
__device__ __forceinline__ uint4 eight_numbers(
    const unsigned short* source, unsigned count, const unsigned short* begin, const unsigned short* end) {
  const size_t address = reinterpret_cast<size_t>(source), aligned = address / 16 * 16;
  unsigned word[8] = {};
  if (count == CHUNK && aligned >= reinterpret_cast<size_t>(begin) && aligned + 32 <= reinterpret_cast<size_t>(end)) {
    const uint4* const both = reinterpret_cast<const uint4*>(aligned);
    const uint4 low = __ldg(both), high = __ldg(both + 1);
    const unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const unsigned by = static_cast<unsigned>(address - aligned);
#pragma unroll
    for (unsigned i = 0; i < 6; ++i) word[i] = by & 8 ? words[i + 2] : words[i];
#pragma unroll
    for (unsigned i = 0; i < 5; ++i) word[i] = by & 4 ? word[i + 1] : word[i];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) word[i] = __funnelshift_r(word[i], word[i + 1], by % 4 * 8);
  } else {
#pragma unroll
    for (unsigned i = 0; i < CHUNK; ++i) {
      const unsigned number = i < count ? __ldg(source + i) : 0;
      word[i / 2] |= number << i % 2 * 16;
    }
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

// One chunk of a line, zeros beyond the operand. Threads that are neighbours read what is.
template <class Operand>
__device__ __forceinline__ void pack_chunk(const Half* __restrict__ numbers, unsigned char* packed, unsigned item) {
  if (item >= Operand::CHUNKS) return;
  constexpr unsigned ROW_CHUNKS = Operand::PIECES * LINE_CHUNKS;
  const unsigned counted = item / ROW_CHUNKS, chunk = item % ROW_CHUNKS;
  const unsigned matrix = counted / Operand::ALL_ROWS, row = counted % Operand::ALL_ROWS, first = chunk * CHUNK;
  const unsigned short* const begin = reinterpret_cast<const unsigned short*>(numbers);
  const unsigned short* const end = begin + (Operand::MATRICES - 1) * Operand::STRIDE
      + static_cast<size_t>(Operand::ROWS - 1) * Operand::LD + Operand::LENGTH;
  const bool is_inside = row < Operand::ROWS && first < Operand::LENGTH;
  const unsigned count = is_inside ? tw::min(Operand::LENGTH - first, CHUNK) : 0;
  const unsigned short* const source = begin + matrix * Operand::STRIDE + static_cast<size_t>(row) * Operand::LD + first;
  unsigned char* const line = packed + Operand::line_at(matrix, chunk / LINE_CHUNKS, row);
  *reinterpret_cast<uint4*>(line + (chunk % LINE_CHUNKS ^ row % GROUP) * 16) = eight_numbers(source, count, begin, end);
}

// All of the launch, of so many blocks for either operand.
__device__ __forceinline__ void pack(const Half* __restrict__ A, const Half* __restrict__ B, unsigned char* workspace) {
  launch_dependents();
  wait_for_launch_before();   // which may read the workspace still
  if (blockIdx.x < PackedA::PACK_BLOCKS) {
    pack_chunk<PackedA>(A, workspace, blockIdx.x * PACK_THREADS + threadIdx.x);
  } else {
    const unsigned item = (blockIdx.x - PackedA::PACK_BLOCKS) * PACK_THREADS + threadIdx.x;
    pack_chunk<PackedB>(B, workspace + PackedA::BYTES, item);
  }
}
