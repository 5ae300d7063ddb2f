// Operand: a block's walk through A or B along k, by asynchronous copies into a ring of buffers in shared memory.
// Expects what a problem.cuh defines, async_copy.cuh, TILE_K, THREADS and QUAD (elements of 16 bytes).

__device__ constexpr unsigned common_divisor(unsigned a, unsigned b) { return b == 0 ? a : common_divisor(b, a % b); }

// The block's walk through one operand: TILE_K x TILE_X elements a step, X being m for A and n for B. A line is what is
// contiguous in memory: one k, or one x where ALONG_K. Threads stand LANES wide along a line.
template <unsigned TILE_X, unsigned EXTENT, bool ALONG_K>
struct Operand {
  static constexpr unsigned LEADING = ALONG_K ? K : EXTENT;   // length of a line in memory
  static constexpr unsigned WIDTH = ALONG_K ? 1 : common_divisor(LEADING, QUAD);
  static constexpr unsigned PER_LINE = (ALONG_K ? TILE_K : TILE_X) / WIDTH;
  static constexpr unsigned LINES = ALONG_K ? TILE_X : TILE_K;
  // Eight elements are a sector of memory, and eight rows that lie 16 bytes apart in the banks; four lines are a warp.
  static constexpr unsigned LANES = ALONG_K ? 8 : common_divisor(PER_LINE, THREADS);
  static constexpr unsigned ACROSS = PER_LINE / LANES;
  static constexpr unsigned LINES_AT_ONCE = THREADS / LANES;
  static constexpr unsigned COPIES = ACROSS * tiles(LINES, LINES_AT_ONCE);   // of one thread in a step
  static constexpr unsigned PITCH = TILE_X + (ALONG_K ? QUAD : 0);
  static constexpr unsigned TILE_BYTES = TILE_K * PITCH * REAL_BYTES;

  const REAL* matrix;
  const REAL* source;        // the thread's first element of the next step
  unsigned target;           // and its place in the first buffer
  unsigned line, place, x0, p;

  __device__ __forceinline__ Operand(const REAL* matrix, unsigned buffers, unsigned x0, unsigned first_step)
      : matrix(matrix), x0(x0), p(first_step * TILE_K) {
    line = threadIdx.x / LANES;
    place = threadIdx.x % LANES * WIDTH;
    const unsigned x = x0 + (ALONG_K ? line : place), k = p + (ALONG_K ? place : line);
    source = matrix + (ALONG_K ? static_cast<size_t>(x) * K + k : static_cast<size_t>(k) * EXTENT + x);
    target = buffers + (ALONG_K ? place * PITCH + line : line * PITCH + place) * REAL_BYTES;
  }

  // Starts the thread's I-th copy of the next step, to the buffer `offset` bytes behind the first. Only the LAST step
  // along k may reach beyond it.
  template <unsigned I, bool LAST>
  __device__ __forceinline__ void copy_one(unsigned offset) const {
    constexpr unsigned DOWN = I / ACROSS * LINES_AT_ONCE, ALONG = I % ACROSS * LANES * WIDTH;
    constexpr unsigned INTO = (ALONG_K ? ALONG * PITCH + DOWN : DOWN * PITCH + ALONG) * REAL_BYTES;
    constexpr unsigned long long FROM = static_cast<unsigned long long>(DOWN) * LEADING + ALONG;
    constexpr unsigned BYTES = WIDTH * REAL_BYTES;
    if (LINES % LINES_AT_ONCE != 0 && line + DOWN >= LINES) return;
    if constexpr (EXTENT < TILE_X || LAST) {
      // A vector is inside or outside as a whole, because lines divide into vectors.
      const unsigned x = x0 + (ALONG_K ? line + DOWN : place + ALONG), k = p + (ALONG_K ? place + ALONG : line + DOWN);
      const bool inside = (EXTENT >= TILE_X || x < EXTENT) && (!LAST || k < K);
      copy_async_or_zero<BYTES, INTO>(target + offset, inside ? source + FROM : matrix, inside);
    } else if constexpr (FROM * REAL_BYTES < (1u << 23)) {   // what fits the instruction
      copy_async<BYTES, INTO, static_cast<long long>(FROM * REAL_BYTES)>(target + offset, source);
    } else {
      copy_async<BYTES, INTO, 0>(target + offset, source + FROM);
    }
  }
  // COUNT of them from the I-th on, by halves: compilers limit how deep templates may nest.
  template <unsigned I, unsigned COUNT, bool LAST>
  __device__ __forceinline__ void copy_some(unsigned offset) const {
    if constexpr (COUNT == 1) {
      copy_one<I, LAST>(offset);
    } else {
      copy_some<I, COUNT / 2, LAST>(offset);
      copy_some<I + COUNT / 2, COUNT - COUNT / 2, LAST>(offset);
    }
  }
  __device__ __forceinline__ void copy(unsigned offset) const {
    if (K % TILE_K == 0 || p + TILE_K <= K) {
      copy_some<0, COPIES, false>(offset);
    } else {
      copy_some<0, COPIES, true>(offset);
    }
  }

  __device__ __forceinline__ void advance() {
    source += ALONG_K ? TILE_K : static_cast<size_t>(TILE_K) * EXTENT;
    p += TILE_K;
  }
};
