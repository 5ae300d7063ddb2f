// Operands of 16 bits in the workspace, as copies and tensor cores read them in order, whichever way and however far apart
// their rows lie in memory: what goes ahead of a product whose rows no tensor map can name.
#pragma once
#include "ptx/dependent_launch.cuh"
#include "tma/parameters.cuh"
#include "tma/shifted.cuh"

constexpr unsigned PACK_THREADS = 256, WARP_CHUNKS = 4;         // chunks of a row that a warp packs across k
constexpr unsigned CHUNK = 8, LINE_CHUNKS = LINE_BYTES / 16;   // numbers of 16 bytes; these of a line
constexpr unsigned GROUP = 8, UNIT_BYTES = GROUP * LINE_BYTES; // rows or columns of an operand; these for a step
constexpr unsigned UNITS_BEYOND = 64;                          // that a cluster's tile may read behind an operand

// An operand as it lies in memory: MATRICES of ROWS rows of LENGTH numbers, SIDE of which are a tile's side and the others k.
template <bool ALONG_K_, unsigned SIDE, unsigned LD_, size_t STRIDE_>
struct Packed {
  static constexpr bool ALONG_K = ALONG_K_;   // whether rows go along k
  static constexpr unsigned LD = LD_, MATRICES = STRIDE_ == 0 ? 1 : BATCH;
  static constexpr size_t STRIDE = STRIDE_;
  static constexpr unsigned ROWS = ALONG_K ? SIDE : K, LENGTH = ALONG_K ? K : SIDE;
  static constexpr unsigned UNITS = tw::ceil_div(SIDE, GROUP);   // of a matrix and step
  // Chunks, a thread each; across k a warp has WARP_CHUNKS of a row, some of which may be outside.
  static constexpr unsigned CHUNKS =
      STEPS * MATRICES * (ALONG_K ? UNITS : tw::ceil_div(UNITS, WARP_CHUNKS) * WARP_CHUNKS) * (UNIT_BYTES / 16);
  static constexpr unsigned PACK_BLOCKS = tw::ceil_div(CHUNKS, PACK_THREADS);
  static constexpr size_t BYTES = (static_cast<size_t>(STEPS) * MATRICES * UNITS + UNITS_BEYOND) * UNIT_BYTES;

  // Where a unit lies. A step has those of all matrices one behind the other, so that a tile's are contiguous.
  __device__ __forceinline__ static size_t unit_at(unsigned matrix, unsigned step, unsigned unit) {
    return (static_cast<size_t>(step * MATRICES + (MATRICES == 1 ? 0 : matrix)) * UNITS + unit) * UNIT_BYTES;
  }
};
typedef Packed<!TRANS_A, M, LDA, STRIDE_A> PackedA;
typedef Packed<TRANS_B, N, LDB, STRIDE_B> PackedB;

// Eight numbers from `source` on, wherever it begins, of those between `begin` and `end`: two loads of 16 bytes where both lie
// between these, else one of each number. Zeros behind the first `count`.
__device__ __forceinline__ uint4 eight_numbers(
    const unsigned short* source, unsigned count, const unsigned short* begin, const unsigned short* end) {
  const size_t address = reinterpret_cast<size_t>(source), aligned = address / 16 * 16;
  if (count == CHUNK && aligned >= reinterpret_cast<size_t>(begin) && aligned + 32 <= reinterpret_cast<size_t>(end)) {
    const uint4* const both = reinterpret_cast<const uint4*>(aligned);
    return shifted(__ldg(both), __ldg(both + 1), static_cast<unsigned>(address - aligned));
  }
  unsigned word[4] = {};
#pragma unroll
  for (unsigned i = 0; i < CHUNK; ++i) word[i / 2] |= (i < count ? __ldg(source + i) : 0u) << i % 2 * 16;
  return make_uint4(word[0], word[1], word[2], word[3]);
}

// One chunk of an operand, zeros beyond it. Threads that are neighbours read what is: along k a row, across it four chunks of
// eight rows, whose places are neighbours too. Along k a unit has lines of 64 k, swizzled; across it eight columns for each k.
template <class Operand>
__device__ __forceinline__ void pack_chunk(const Half* __restrict__ numbers, unsigned char* packed, unsigned item) {
  constexpr unsigned LINES = Operand::ALONG_K ? Operand::UNITS * GROUP : STEPS * STEP_K;   // rows, with those that are added
  constexpr unsigned ROW_CHUNKS = Operand::ALONG_K ? STEPS * LINE_CHUNKS : Operand::UNITS;
  constexpr unsigned TOGETHER = Operand::ALONG_K ? ROW_CHUNKS : WARP_CHUNKS, ROWS = Operand::ALONG_K ? 1 : 32 / WARP_CHUNKS;
  constexpr unsigned ROW_GROUPS = tw::ceil_div(ROW_CHUNKS, TOGETHER);
  const unsigned group = item / (TOGETHER * ROWS), chunk = group % ROW_GROUPS * TOGETHER + item % TOGETHER;
  const unsigned counted = group / ROW_GROUPS * ROWS + item / TOGETHER % ROWS;
  const unsigned matrix = counted / LINES, row = counted % LINES, first = chunk * CHUNK;
  const unsigned short* const begin = reinterpret_cast<const unsigned short*>(numbers);
  const unsigned short* const end = begin + (Operand::MATRICES - 1) * Operand::STRIDE
      + static_cast<size_t>(Operand::ROWS - 1) * Operand::LD + Operand::LENGTH;
  const bool is_inside = row < Operand::ROWS && first < Operand::LENGTH;
  const unsigned count = is_inside ? tw::min(Operand::LENGTH - first, CHUNK) : 0;
  const unsigned short* const source = begin + matrix * Operand::STRIDE + static_cast<size_t>(row) * Operand::LD + first;
  unsigned char* target = packed;
  if (Operand::ALONG_K) {
    target += Operand::unit_at(matrix, chunk / LINE_CHUNKS, row / GROUP) + row % GROUP * LINE_BYTES
        + (chunk % LINE_CHUNKS ^ row % GROUP) * 16;
  } else {
    target += Operand::unit_at(matrix, row / STEP_K, chunk) + row % STEP_K * 16;
  }
  wait_for_launch_before();   // which may read the workspace still
  if (item >= Operand::CHUNKS || chunk >= ROW_CHUNKS) return;
  *reinterpret_cast<uint4*>(target) = eight_numbers(source, count, begin, end);
}

// All of the launch, of so many blocks for either operand.
__device__ __forceinline__ void pack(const Half* __restrict__ A, const Half* __restrict__ B, unsigned char* workspace) {
  launch_dependents();
  if (blockIdx.x < PackedA::PACK_BLOCKS) {
    pack_chunk<PackedA>(A, workspace, blockIdx.x * PACK_THREADS + threadIdx.x);
  } else {
    const unsigned item = (blockIdx.x - PackedA::PACK_BLOCKS) * PACK_THREADS + threadIdx.x;
    pack_chunk<PackedB>(B, workspace + PackedA::BYTES, item);
  }
}
