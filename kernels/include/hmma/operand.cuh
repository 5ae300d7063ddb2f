// A block's walk through A or B along k, by asynchronous copies into a ring of buffers in shared memory that keep the
// matrix's own order, and a warp's parts of it for tensor cores, by ldmatrix.
//
// A line is what is contiguous in memory: TILE_K terms of one x where ALONG_K, else TILE_X neighbours of one k. ldmatrix
// reads 16-byte chunks of eight lines that follow one another; the chunks of a line are permuted (XOR), so that those
// eight lie in different banks. Lines that do not divide into 16 bytes come in 8 or 4 bytes a copy; lines of an odd
// number of elements, for which there is no copy, element by element through registers.
#pragma once
#include "hmma/work.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/shared_memory.cuh"

constexpr unsigned CHUNK = 8;   // elements of 16 bytes

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

// EXTENT x K elements (0: as many rows as the launch says) with LEADING from a line to the next; lines and matrices divide into WIDTH elements (1 to 8). A
// warp takes it as the first factor, A, in parts of 16 x 16, or as the second, B, in pairs of 16 x 8. IS_PAIRED: there are
// EXTENT x of each of two matrices, and a tile has eight of the first and eight of the second in turn, so that a thread
// has the sums of both.
template <
    unsigned TILE_X, unsigned EXTENT, unsigned LEADING, bool ALONG_K, unsigned WIDTH, bool IS_A, bool IS_PAIRED = false>
struct HalfOperand {
  static_assert(ALONG_K || !IS_PAIRED, "lines of a pair are those along k");
  static constexpr unsigned LINE = ALONG_K ? TILE_K : TILE_X, LINES = ALONG_K ? TILE_X : TILE_K;
  static constexpr unsigned CHUNKS = LINE / CHUNK, PER_LINE = LINE / WIDTH;
  static constexpr unsigned LANES = PER_LINE < THREADS ? PER_LINE : THREADS;   // all are powers of two
  static constexpr unsigned ACROSS = PER_LINE / LANES, LINES_AT_ONCE = THREADS / LANES;
  static constexpr unsigned COPIES = ACROSS * tw::ceil_div(LINES, LINES_AT_ONCE);   // of one thread in a step
  static constexpr unsigned TILE_BYTES = TILE_K * TILE_X * sizeof(Half);

  // The number that permutes a line's elements. Linear: that of l | m is the combination of those of l and m, if the
  // two have no bit in common. The same for lines 16 apart.
  __device__ static constexpr unsigned permutation(unsigned line) {
    return (CHUNKS >= 8 ? line % 8 : line / (8 / CHUNKS) % CHUNKS) * CHUNK;
  }

  const Half* source;   // the thread's first element of the next step
  char* buffers;
  unsigned line, place;
  unsigned x0, p;       // first x and term of the next step
  unsigned target;      // the thread's place in the first buffer, an address of shared memory
  unsigned share;       // where the lane's line of the first part lies in a buffer, in elements

  // `buffers`: of the ring; `warp_x`: the warp's first x of the tile.
  __device__ __forceinline__ HalfOperand(char* buffers, unsigned warp_x) : buffers(buffers) {
    line = threadIdx.x / LANES;
    place = threadIdx.x % LANES * WIDTH;
    target = shared_address(buffers) + (line * LINE + (place ^ permutation(line))) * sizeof(Half);
    // For A, the second of the four matrices is 8 rows below the first, as its registers need it; for B, 8 terms on.
    const unsigned lane = threadIdx.x % 32, second = lane / 8 % 2 * 8, third = lane / 16 * 8;
    const unsigned x = warp_x + lane % 8 * ALONG_K + (IS_A ? second : third);
    const unsigned k = lane % 8 * !ALONG_K + (IS_A ? third : second);
    share = (ALONG_K ? x : k) * LINE + ((ALONG_K ? k : x) ^ permutation(ALONG_K ? x : k));
  }

  // The walk begins at these elements of a matrix.
  __device__ __forceinline__ void start(const Half* matrix, unsigned first_x, unsigned first_step) {
    x0 = first_x;
    p = first_step * TILE_K;
    const unsigned down = line_in_memory(line) + (ALONG_K ? x0 : p), along = place + (ALONG_K ? p : x0);
    source = matrix + static_cast<size_t>(down) * LEADING + along;
  }

  // Which x of its matrix a line of the tile along k is, counted from the tile's first; and which line in memory.
  __device__ static constexpr unsigned x_of(unsigned line) {
    return IS_PAIRED ? line / 16 * 8 + line % 8 : line;
  }
  __device__ static constexpr unsigned line_in_memory(unsigned line) {
    return x_of(line) + (IS_PAIRED ? line / 8 % 2 * EXTENT : 0);
  }

  // Starts the thread's I-th copy of the next step, to the buffer `offset` bytes behind the first. Only the LAST step
  // along k may reach beyond it.
  template <unsigned I, bool LAST>
  __device__ __forceinline__ void copy_one(unsigned offset) const {
    constexpr unsigned DOWN = I / ACROSS * LINES_AT_ONCE, ALONG = I % ACROSS * LANES * WIDTH;
    constexpr unsigned long long FROM = static_cast<unsigned long long>(x_of(DOWN)) * LEADING + ALONG;
    if (LINES % LINES_AT_ONCE != 0 && line + DOWN >= LINES) return;
    // A copy is inside or outside as a whole, because lines divide into copies.
    const unsigned x = x0 + (ALONG_K ? x_of(line + DOWN) : place + ALONG);
    const unsigned k = p + (ALONG_K ? place + ALONG : line + DOWN);
    constexpr bool COVERS = EXTENT >= TILE_X / (1 + IS_PAIRED);
    const bool inside = (EXTENT == 0 ? x < M : COVERS || x < EXTENT) && (!LAST || k < K);
    static_assert(!IS_PAIRED || WIDTH == 1 || DOWN % 16 == 0, "a thread's lines are of the same matrix");
    if constexpr (WIDTH == 1) {
      const unsigned to = (line + DOWN) * LINE + ((place + ALONG) ^ permutation(line + DOWN));
      const Half zero = 0.0f;
      const long long lines = static_cast<long long>(line_in_memory(line + DOWN)) - line_in_memory(line);
      reinterpret_cast<Half*>(buffers + offset)[to] = inside ? source[lines * LEADING + ALONG] : zero;
    } else {
      constexpr unsigned BYTES = WIDTH * sizeof(Half);
      constexpr unsigned INTO = (DOWN * LINE + ALONG) * sizeof(Half), FLIP = permutation(DOWN) * sizeof(Half);
      constexpr bool FITS = FROM * sizeof(Half) < (1u << 23);   // the instruction
      constexpr long long FROM_BYTES = FITS ? static_cast<long long>(FROM * sizeof(Half)) : 0;
      static_assert(ACROSS == 1 || LANES * WIDTH % 64 == 0, "the permutation stays within 128 bytes");
      const Half* from = FITS ? source : source + FROM;
      if constexpr (!COVERS || LAST) {
        cp_async_zfill<BYTES, INTO, FROM_BYTES>((target ^ FLIP) + offset, from, inside);
      } else {
        cp_async<BYTES, INTO, FROM_BYTES>((target ^ FLIP) + offset, from);
      }
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

  // The lane's terms from 16 s on of the warp's x from 16 i on, from the buffer at that address of shared memory: four
  // registers of A's part, or two of each of B's.
  __device__ __forceinline__ void read(unsigned (&terms)[4], unsigned buffer, unsigned i, unsigned s) const {
    const unsigned at = ALONG_K ? (share ^ s * 16) + i * 16 * LINE : (share ^ i * 16) + s * 16 * LINE;
    if constexpr (ALONG_K) {
      ldmatrix_x4(terms, buffer + at * sizeof(Half));
    } else {
      ldmatrix_x4_trans(terms, buffer + at * sizeof(Half));
    }
  }
};
