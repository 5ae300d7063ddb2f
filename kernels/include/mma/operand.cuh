// A block's walk through A or B along k, by asynchronous copies into a ring of buffers in shared memory that keep the
// matrix's own order, and a thread's share of 16 terms of it for tensor cores: lane 4 g + t has terms 4 t to 4 t + 3 of
// its x.
//
// A line is what is contiguous in memory: TILE_K terms of one x where ALONG_K, else TILE_X neighbours of one k. A lane
// reads 16 bytes along k, or 16 (8 where a warp has 16 x) along x. The 16-byte chunks of a line are permuted (XOR) so
// that the lanes that shared memory serves together read different banks. Lines that do not divide into 16 bytes come
// in 8 or 4 bytes a copy; 16-byte copies of the chunks that such a line touches, read from there element by element,
// took longer (H200).
#pragma once
#include "mma/work.cuh"
#include "ptx/cp_async.cuh"

// Which x of the warp's the lane of that g holds under the number `index`. Numbers come in runs of READ, the neighbours
// that a lane reads at a time along x. Two or four of them give four neighbouring columns of sums, in column_of's
// order.
template <unsigned READ>
__device__ constexpr unsigned x_of(unsigned index, unsigned g) {
  return READ == 1 ? index / 2 * 16 + index % 2 * 2 + g / 2 * 4 + g % 2
      : READ == 2 ? index / 2 * 16 + index % 2 + g * 2
                  : index / 4 * 32 + index % 4 + g % 2 * 16 + g / 2 * 4;
}

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

// EXTENT is 0 where the launch says the rows. LEADING elements from a line in memory to the next, STRIDE from a matrix to the next. Copies divide DIVISIBLE elements,
// so that none is partly outside.
template <unsigned TILE_X, unsigned WARP_X, unsigned EXTENT, unsigned LEADING, size_t STRIDE, bool ALONG_K,
          unsigned DIVISIBLE = tw::gcd(tw::gcd(LEADING, ALONG_K ? K : EXTENT), tw::gcd(unsigned{STRIDE % QUAD}, QUAD))>
struct TensorOperand {
  static constexpr unsigned LINE = ALONG_K ? TILE_K : TILE_X, LINES = ALONG_K ? TILE_X : TILE_K;
  static constexpr unsigned WIDTH = tw::gcd(DIVISIBLE, QUAD);   // elements of a copy
  static constexpr unsigned PER_LINE = LINE / WIDTH;
  static constexpr unsigned LANES = PER_LINE < THREADS ? PER_LINE : THREADS;   // all are powers of two
  static constexpr unsigned ACROSS = PER_LINE / LANES, LINES_AT_ONCE = THREADS / LANES;
  static constexpr unsigned COPIES = ACROSS * tw::ceil_div(LINES, LINES_AT_ONCE);   // of one thread in a step
  static constexpr unsigned TILE_ELEMENTS = TILE_K * TILE_X, TILE_BYTES = TILE_ELEMENTS * REAL_BYTES;
  static constexpr unsigned READ = ALONG_K ? 1 : WARP_X < 32 ? 2 : 4;

  // The number that permutes a line's chunks. Linear: that of l | m is the combination of those of l and m, if the
  // two have no bit in common.
  __device__ static constexpr unsigned permutation(unsigned line) {
    return ALONG_K ? (TILE_K < 32 ? 0 : line % 2 * 4) : line / 4 % 4 * (READ == 4 ? 1 : 2) % (TILE_X / 4);
  }

  const REAL* matrix;
  const REAL* source;        // the thread's first element of the next step
  unsigned target;           // and its place in the first buffer
  unsigned line, place, x0, p;
  unsigned share;            // where the lane's first terms lie in a buffer, but for what changes with s

  __device__ __forceinline__ TensorOperand(
      const REAL* matrix, unsigned buffers, unsigned x0, unsigned first_step, unsigned warp_x)
      : matrix(matrix), x0(x0), p(first_step * TILE_K) {
    line = threadIdx.x / LANES;
    place = threadIdx.x % LANES * WIDTH;
    const unsigned x = x0 + (ALONG_K ? line : place), k = p + (ALONG_K ? place : line);
    source = matrix + (ALONG_K ? static_cast<size_t>(x) * LEADING + k : static_cast<size_t>(k) * LEADING + x);
    target = buffers + (line * LINE + (place ^ permutation(line) * 4)) * REAL_BYTES;
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, first_x = warp_x + x_of<READ>(0, g);
    const unsigned first_term = SLICES == 1 ? 0 : threadIdx.x / SLICE_THREADS * SLICE_TERMS;
    share = ALONG_K ? first_x * LINE + ((t ^ permutation(first_x)) * 4 ^ first_term)
                    : (first_term + t * 4) * LINE + (first_x ^ permutation(t * 4) * 4);
  }

  // Starts the thread's I-th copy of the next step, to the buffer `offset` bytes behind the first. Only the LAST step
  // along k may reach beyond it.
  template <unsigned I, bool LAST>
  __device__ __forceinline__ void copy_one(unsigned offset) const {
    constexpr unsigned DOWN = I / ACROSS * LINES_AT_ONCE, ALONG = I % ACROSS * LANES * WIDTH;
    constexpr unsigned INTO = (DOWN * LINE + ALONG) * REAL_BYTES, FLIP = permutation(DOWN) * 16;
    constexpr unsigned BYTES = WIDTH * REAL_BYTES;
    constexpr unsigned long long FROM = static_cast<unsigned long long>(DOWN) * LEADING + ALONG;
    static_assert(ALONG % 32 == 0, "the permutation of chunks stays within 128 bytes");
    if (LINES % LINES_AT_ONCE != 0 && line + DOWN >= LINES) return;
    if constexpr (EXTENT < TILE_X || LAST) {
      // A copy is inside or outside as a whole, because lines divide into copies.
      const unsigned x = x0 + (ALONG_K ? line + DOWN : place + ALONG), k = p + (ALONG_K ? place + ALONG : line + DOWN);
      const bool inside = (EXTENT == 0 ? x < M : EXTENT >= TILE_X || x < EXTENT) && (!LAST || k < K);
      cp_async_zfill<BYTES, INTO>((target ^ FLIP) + offset, inside ? source + FROM : matrix, inside);
    } else if constexpr (FROM * REAL_BYTES < (1u << 23)) {   // what fits the instruction
      cp_async<BYTES, INTO, static_cast<long long>(FROM * REAL_BYTES)>((target ^ FLIP) + offset, source);
    } else {
      cp_async<BYTES, INTO, 0>((target ^ FLIP) + offset, source + FROM);
    }
  }
  __device__ __forceinline__ void copy(unsigned offset) const {
    if (K % TILE_K == 0 || p + TILE_K <= K) {
      copy_some<0, COPIES, false>(*this, offset);
    } else {
      copy_some<0, COPIES, true>(*this, offset);
    }
  }
  __device__ __forceinline__ void advance() {
    source += ALONG_K ? TILE_K : static_cast<size_t>(TILE_K) * LEADING;
    p += TILE_K;
  }

  // The lane's four terms of the 16 from term 16 s of the tile (of the slice's part of it) on, of COUNT of its x from number
  // `first` on, a multiple of READ.
  template <unsigned COUNT>
  __device__ __forceinline__ void read(REAL (&terms)[COUNT][4], const REAL* tile, unsigned first, unsigned s) const {
    static_assert(COUNT % READ == 0, "whole runs");
    if constexpr (ALONG_K) {
#pragma unroll
      for (unsigned i = 0; i < COUNT; ++i) {
        const Pack<4> run = load_pack<4>(tile + (share ^ s * 16) + x_of<READ>(first + i, 0) * LINE);
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) terms[i][j] = run.lane[j];
      }
    } else {
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
#pragma unroll
        for (unsigned i = 0; i < COUNT; i += READ) {
          const Pack<READ> run = load_pack<READ>(tile + share + (s * 16 + j) * LINE + x_of<READ>(first + i, 0));
#pragma unroll
          for (unsigned lane = 0; lane < READ; ++lane) terms[i + lane][j] = run.lane[lane];
        }
      }
    }
  }
};
