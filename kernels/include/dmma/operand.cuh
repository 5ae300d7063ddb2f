// A block's walk through A or B along k, by asynchronous copies into a ring of buffers in shared memory that keep the
// matrix's own order, and a thread's share of the terms of a product on FP64 tensor cores.
//
// A line is what is contiguous in memory: TILE_K terms of one x where ALONG_K, else TILE_X neighbours of one k. Shared
// memory serves half a warp's doubles at a time: four neighbours of each of four lines. The 16-byte chunks of a line are
// permuted (XOR), so that those lie in different banks. Lines that do not divide into 16 bytes come in 8 bytes a copy.
#pragma once
#include "dmma/work.cuh"
#include "ptx/cp_async.cuh"

// COUNT copies of an operand from the I-th on, by halves: compilers limit how deep templates may nest.
template <unsigned I, unsigned COUNT, bool LAST, class Operand>
__device__ __forceinline__ void copy_some(const Operand& operand, unsigned offset) {
  if constexpr (COUNT == 1) {
    operand.template copy_one<I, LAST>(offset);
  } else {
    copy_some<I, COUNT / 2, LAST>(operand, offset);
    copy_some<I + COUNT / 2, COUNT - COUNT / 2, LAST>(operand, offset);
  }
}

// EXTENT x K elements (0: as many rows as the launch says) with LEADING from a line to the next and, where ALIGNED, matrices and lines in 16-byte chunks.
template <unsigned TILE_X, unsigned EXTENT, unsigned LEADING, bool ALONG_K, bool ALIGNED>
struct Fp64Operand {
  static constexpr unsigned LINE = ALONG_K ? TILE_K : TILE_X, LINES = ALONG_K ? TILE_X : TILE_K;
  static constexpr unsigned WIDTH = ALIGNED ? QUAD : 1;   // elements of a copy
  static constexpr unsigned PER_LINE = LINE / WIDTH;
  static constexpr unsigned LANES = PER_LINE < THREADS ? PER_LINE : THREADS;   // all are powers of two
  static constexpr unsigned ACROSS = PER_LINE / LANES, LINES_AT_ONCE = THREADS / LANES;
  static constexpr unsigned COPIES = ACROSS * tw::ceil_div(LINES, LINES_AT_ONCE);   // of one thread in a step
  static constexpr unsigned TILE_ELEMENTS = TILE_K * TILE_X, TILE_BYTES = TILE_ELEMENTS * REAL_BYTES;

  // The number that permutes a line's elements. Linear: that of l | m is the combination of those of l and m, if the
  // two have no bit in common.
  __device__ static constexpr unsigned permutation(unsigned line) {
    return (LINE >= 16 ? line % 4 : line / 2 % 2) * 4;
  }

  const REAL* source;         // the thread's first element of the next step
  unsigned target;            // and its place in the first buffer
  unsigned line, place;
  unsigned x0, p;             // first x and term of the next step
  unsigned share;             // where the lane's first term lies in a buffer, but for what changes with x and terms

  __device__ __forceinline__ Fp64Operand(unsigned buffers, unsigned warp_x) {
    line = threadIdx.x / LANES;
    place = threadIdx.x % LANES * WIDTH;
    target = buffers + (line * LINE + (place ^ permutation(line))) * REAL_BYTES;
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    share = ALONG_K ? (warp_x + g) * LINE + (t ^ permutation(g)) : t * LINE + ((warp_x + g) ^ permutation(t));
  }

  // The walk begins at these elements of a matrix.
  __device__ __forceinline__ void start(const REAL* matrix, unsigned first_x, unsigned first_step) {
    x0 = first_x;
    p = first_step * TILE_K;
    const unsigned down = line + (ALONG_K ? x0 : p), along = place + (ALONG_K ? p : x0);
    source = matrix + static_cast<size_t>(down) * LEADING + along;
  }

  // Starts the thread's I-th copy of the next step, to the buffer `offset` bytes behind the first. Only the LAST step
  // along k may reach beyond it.
  template <unsigned I, bool LAST>
  __device__ __forceinline__ void copy_one(unsigned offset) const {
    constexpr unsigned DOWN = I / ACROSS * LINES_AT_ONCE, ALONG = I % ACROSS * LANES * WIDTH;
    constexpr unsigned INTO = (DOWN * LINE + ALONG) * REAL_BYTES, FLIP = permutation(DOWN) * REAL_BYTES;
    constexpr unsigned BYTES = WIDTH * REAL_BYTES;
    constexpr unsigned long long FROM = static_cast<unsigned long long>(DOWN) * LEADING + ALONG;
    constexpr bool FITS = FROM * REAL_BYTES < (1u << 23);   // the instruction
    constexpr long long FROM_BYTES = FITS ? static_cast<long long>(FROM * REAL_BYTES) : 0;
    static_assert(ACROSS == 1 || LANES * WIDTH % 16 == 0, "the permutation stays within a copy's 16 elements");
    if (LINES % LINES_AT_ONCE != 0 && line + DOWN >= LINES) return;
    const REAL* from = FITS ? source : source + FROM;
    if constexpr (EXTENT < TILE_X || LAST) {
      // A copy is inside or outside as a whole, because lines divide into copies.
      const unsigned x = x0 + (ALONG_K ? line + DOWN : place + ALONG), k = p + (ALONG_K ? place + ALONG : line + DOWN);
      const bool inside = (EXTENT == 0 ? x < M : EXTENT >= TILE_X || x < EXTENT) && (!LAST || k < K);
      cp_async_zfill<BYTES, INTO, FROM_BYTES>((target ^ FLIP) + offset, from, inside);
    } else {
      cp_async<BYTES, INTO, FROM_BYTES>((target ^ FLIP) + offset, from);
    }
  }
  // Starts the thread's copies of the next step, which is then the one behind it.
  __device__ __forceinline__ void copy(unsigned offset) {
    if (K % TILE_K == 0 || p + TILE_K <= K) {
      copy_some<0, COPIES, false>(*this, offset);
    } else {
      copy_some<0, COPIES, true>(*this, offset);
    }
    source += ALONG_K ? TILE_K : static_cast<size_t>(TILE_K) * LEADING;
    p += TILE_K;
  }

  // The lane's element of the warp's x from 8 i on, and of the terms from 4 s on.
  __device__ __forceinline__ REAL read(const REAL* tile, unsigned i, unsigned s) const {
    return ALONG_K ? tile[(share ^ s * 4) + i * 8 * LINE] : tile[(share ^ i % 2 * 8) + i / 2 * 16 + s * 4 * LINE];
  }
};
