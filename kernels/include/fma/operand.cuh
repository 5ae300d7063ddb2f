// Operand: a block's walk through A or B along k, into a ring of buffers in shared memory.
#pragma once
#include "fma/work.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/shared_memory.cuh"

// The block's walk through one operand: TILE_K x TILE_X elements a step, X being m for A and n for B. A line is what is
// contiguous in memory: one k, or one x where ALONG_K. Threads stand LANES wide along a line. In shared memory what
// belongs to one k is contiguous, so an operand ALONG_K is turned on the way: by asynchronous copies of single elements,
// or, with HELD and where lines divide into quads, by registers that hold quads from the start of a step to its end.
// EXTENT is 0 of A where the launch says its rows. Lines are LEADING elements apart; DIVISOR is what row_divisor says of them.
template <unsigned TILE_X, unsigned EXTENT, bool ALONG_K, unsigned LEADING, unsigned DIVISOR>
struct Operand {
  static constexpr bool BY_QUADS = HELD && ALONG_K && DIVISOR % QUAD == 0;
  static constexpr unsigned WIDTH = ALONG_K && !BY_QUADS ? 1 : tw::gcd(DIVISOR, QUAD);
  static constexpr unsigned PER_LINE = (ALONG_K ? TILE_K : TILE_X) / WIDTH;
  static constexpr unsigned LINES = ALONG_K ? TILE_X : TILE_K;
  // Two sectors of memory where single elements are turned: more lanes would meet in the same banks.
  static constexpr unsigned LANES = tw::gcd(PER_LINE, ALONG_K ? 16 : THREADS);
  static constexpr unsigned ACROSS = PER_LINE / LANES;
  static constexpr unsigned LINES_AT_ONCE = THREADS / LANES;
  static constexpr unsigned COPIES = ACROSS * tw::ceil_div(LINES, LINES_AT_ONCE);   // of one thread in a step
  // Between what belongs to neighbouring k, or between quads of them: so that what a warp turns lies in all banks.
  static constexpr unsigned BANKS = 128 / REAL_BYTES;
  static constexpr unsigned GAP = !ALONG_K ? 0 : !BY_QUADS || TILE_K > BANKS ? QUAD : BANKS * QUAD / TILE_K;
  static constexpr unsigned TILE_ELEMENTS = TILE_K * TILE_X + TILE_K / (BY_QUADS ? QUAD : 1) * GAP;
  static constexpr unsigned TILE_BYTES = TILE_ELEMENTS * REAL_BYTES;

  // The first element of step `k` in a tile.
  __device__ static constexpr unsigned start(unsigned k) { return k * TILE_X + k / (BY_QUADS ? QUAD : 1) * GAP; }

  const REAL* matrix;
  const REAL* source;        // the thread's first element of the next step
  REAL* buffers;
  unsigned target;           // and its place in the first buffer
  unsigned line, place, x0, p;
  Pack<WIDTH> held[BY_QUADS ? COPIES : 1];

  __device__ __forceinline__ Operand(const REAL* matrix, REAL* buffers, unsigned x0, unsigned first_step)
      : matrix(matrix), buffers(buffers), x0(x0), p(first_step * TILE_K) {
    line = threadIdx.x / LANES;
    place = threadIdx.x % LANES * WIDTH;
    const unsigned x = x0 + (ALONG_K ? line : place), k = p + (ALONG_K ? place : line);
    source = matrix + (ALONG_K ? static_cast<size_t>(x) * LEADING + k : static_cast<size_t>(k) * LEADING + x);
    target = ALONG_K ? start(place) + line : start(line) + place;
    if (!BY_QUADS) target = target * REAL_BYTES + shared_address(buffers);
  }

  // The thread's I-th part of a step lies DOWN lines below its first and ALONG elements further on.
  template <unsigned I>
  static constexpr unsigned DOWN = I / ACROSS * LINES_AT_ONCE;
  template <unsigned I>
  static constexpr unsigned ALONG = I % ACROSS * LANES * WIDTH;
  template <unsigned I>
  static constexpr unsigned INTO = ALONG_K ? start(ALONG<I>) + DOWN<I> : start(DOWN<I>) + ALONG<I>;
  template <unsigned I>
  static constexpr unsigned long long FROM = static_cast<unsigned long long>(DOWN<I>) * LEADING + ALONG<I>;

  // A vector is inside the matrix or outside as a whole, because lines divide into vectors.
  template <unsigned I>
  __device__ __forceinline__ bool is_inside() const {
    const unsigned x = x0 + (ALONG_K ? line + DOWN<I> : place + ALONG<I>);
    const unsigned k = p + (ALONG_K ? place + ALONG<I> : line + DOWN<I>);
    return (EXTENT == 0 ? x < M : EXTENT >= TILE_X || x < EXTENT) && k < K;
  }

  // Starts the thread's I-th part of the next step, to the buffer `offset` bytes behind the first. Only the LAST step
  // along k may reach beyond it.
  template <unsigned I, bool LAST>
  __device__ __forceinline__ void load_one(unsigned offset) {
    constexpr unsigned BYTES = WIDTH * REAL_BYTES, INTO_BYTES = INTO<I> * REAL_BYTES;
    constexpr bool MAY_BE_OUTSIDE = EXTENT < TILE_X || LAST;
    if constexpr (LINES % LINES_AT_ONCE != 0) {
      if (line + DOWN<I> >= LINES) return;
    }
    if constexpr (BY_QUADS) {
      const bool inside = !MAY_BE_OUTSIDE || is_inside<I>();
      held[I] = inside ? load_pack<WIDTH>(source + FROM<I>) : Pack<WIDTH>{};
    } else {
      constexpr bool FITS = FROM<I> * REAL_BYTES < (1u << 23);   // the instruction
      constexpr long long FROM_BYTES = FITS ? static_cast<long long>(FROM<I> * REAL_BYTES) : 0;
      const REAL* from = FITS ? source : source + FROM<I>;
      if constexpr (MAY_BE_OUTSIDE) {
        cp_async_zfill<BYTES, INTO_BYTES, FROM_BYTES>(target + offset, from, is_inside<I>());
      } else {
        cp_async<BYTES, INTO_BYTES, FROM_BYTES>(target + offset, from);
      }
    }
  }
  // COUNT of them from the I-th on, by halves: compilers limit how deep templates may nest.
  template <unsigned I, unsigned COUNT, bool LAST>
  __device__ __forceinline__ void load_some(unsigned offset) {
    if constexpr (COUNT == 1) {
      load_one<I, LAST>(offset);
    } else {
      load_some<I, COUNT / 2, LAST>(offset);
      load_some<I + COUNT / 2, COUNT - COUNT / 2, LAST>(offset);
    }
  }
  // Starts to load the next step, into that buffer or into registers. The copies of a last step that is cut off are not
  // even instantiated where there is none: they took a twentieth of the compiler's time.
  __device__ __forceinline__ void load(unsigned buffer) {
    if constexpr (K % TILE_K == 0) {
      load_some<0, COPIES, false>(buffer * TILE_BYTES);
    } else if (p + TILE_K <= K) {
      load_some<0, COPIES, false>(buffer * TILE_BYTES);
    } else {
      load_some<0, COPIES, true>(buffer * TILE_BYTES);
    }
  }

  template <unsigned I, unsigned COUNT>
  __device__ __forceinline__ void store_some(REAL* into) const {
    if constexpr (COUNT == 1) {
      if constexpr (LINES % LINES_AT_ONCE != 0) {
        if (line + DOWN<I> >= LINES) return;
      }
#pragma unroll
      for (unsigned j = 0; j < WIDTH; ++j) into[INTO<I> + j * TILE_X] = held[I].lane[j];
    } else {
      store_some<I, COUNT / 2>(into);
      store_some<I + COUNT / 2, COUNT - COUNT / 2>(into);
    }
  }
  // Stores what registers hold of the step that was loaded last to its buffer.
  __device__ __forceinline__ void store(unsigned buffer) const {
    if constexpr (BY_QUADS) store_some<0, COPIES>(buffers + buffer * TILE_ELEMENTS + target);
  }

  __device__ __forceinline__ void advance() {
    source += ALONG_K ? TILE_K : static_cast<size_t>(TILE_K) * LEADING;
    p += TILE_K;
  }
};
