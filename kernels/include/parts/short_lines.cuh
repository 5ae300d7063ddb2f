// Lines that the registers of a block, or of a small cluster of blocks, hold: each number is read once, looked at, scaled
// by its line and written as two FP16 parts. Whether those suffice is known when all lines were; if not, the launch that
// multiplies packs all of them again (parts/pack.cuh).
#pragma once
#include "parts/chunk.cuh"
#include "parts/line.cuh"
#include "ptx/cluster.cuh"
#include "ptx/shared_memory.cuh"

constexpr unsigned MOST_CHUNKS_HELD = 8;   // of a thread
constexpr unsigned SHORT_WARPS = SURVEY_THREADS / 32;
constexpr unsigned MOST_STRIP_LINES = STEPS <= 2 ? 128 : STEPS <= 4 ? 64 : 32;   // so that all warps have chunks
constexpr unsigned SHORT_SHARED =   // findings of warps, then of blocks, then what is the largest of each line
    2 * SHORT_WARPS * MOST_STRIP_LINES + MOST_STRIP_LINES / 4;

// Threads that share a contiguous line, at most four chunks each where a block suffices for that.
constexpr unsigned LINE_THREADS =
    K <= 256 ? 8 : K <= 512 ? 16 : K <= 1024 ? 32 : K <= 2048 ? 64 : K <= 4096 ? 128 : 256;

// Blocks that share lines that are not contiguous: each has 8 steps of k at a time, or more.
constexpr unsigned STRIP_CLUSTER = STEPS <= 8 ? 1 : STEPS <= 16 ? 2 : STEPS <= 32 ? 4 : 8;

// The lines of an operand. A thread has chunks of WIDTH lines, UNITS of each: number `first` of a line and then every
// STRIDE-th. Where neighbouring lines are neighbours in memory, 16 bytes of them are one load, and a block has a strip of
// them, 128 bytes of each row, or 64. ACROSS lanes of a warp lie side by side, others further along k.
template <class Operand>
struct ShortLines {
  static constexpr bool ALONG_K = Operand::ALONG_K;
  static constexpr unsigned WIDTH = !ALONG_K && Operand::KNOWN_LINES % 4 == 0 && Operand::LD % 4 == 0
      && (Operand::MATRICES == 1 || Operand::STRIDE % 4 == 0) ? 4 : 1;
  static constexpr unsigned BLOCK_LINES = ALONG_K ? SURVEY_THREADS / LINE_THREADS
                                          : WIDTH == 4 && STEPS <= 128 ? MOST_STRIP_LINES
                                                                       : tw::min(MOST_STRIP_LINES / 2, 32u);
  static constexpr unsigned ACROSS = ALONG_K ? 1 : BLOCK_LINES / WIDTH;
  static constexpr unsigned CLUSTER_BLOCKS = ALONG_K ? 1 : STRIP_CLUSTER;
  static constexpr unsigned BLOCK_STRIDE = ALONG_K ? LINE_THREADS : SURVEY_THREADS / ACROSS;   // chunks of a block
  static constexpr unsigned LINE_WARPS = ALONG_K ? tw::ceil_div(LINE_THREADS, 32u) : SHORT_WARPS;
  static constexpr unsigned LINE_LANES = ALONG_K ? tw::min(LINE_THREADS, 32u) : 32;
  static constexpr unsigned STRIDE = BLOCK_STRIDE * CLUSTER_BLOCKS;
  static constexpr unsigned UNITS = tw::ceil_div(STEPS * STEP_CHUNKS, STRIDE), HELD = UNITS * WIDTH;
  static constexpr bool FITS = HELD <= MOST_CHUNKS_HELD;
  __device__ __forceinline__ static constexpr unsigned matrix_blocks() {
    return tw::ceil_div(groups_of<Operand>() * GROUP, BLOCK_LINES) * CLUSTER_BLOCKS;
  }
  __device__ __forceinline__ static constexpr unsigned all_blocks() { return matrix_blocks() * Operand::MATRICES; }

  unsigned matrix, line, first;   // the thread's first line and chunk
  unsigned within;                // the line's number in the block
  bool is_inside;                 // whether its lines are lines of the matrix

  __device__ __forceinline__ explicit ShortLines(unsigned block) {
    const unsigned in_matrix = block % matrix_blocks(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    matrix = block / matrix_blocks();
    if constexpr (ALONG_K) {
      within = threadIdx.x / LINE_THREADS;
      first = threadIdx.x % LINE_THREADS;
    } else {
      within = lane % ACROSS * WIDTH;
      first = in_matrix % CLUSTER_BLOCKS * BLOCK_STRIDE + warp * (32 / ACROSS) + lane / ACROSS;
    }
    line = in_matrix / CLUSTER_BLOCKS * BLOCK_LINES + within;
    is_inside = block < all_blocks() && line < Operand::lines();
  }

  // All of the launch: reads, looks, packs.
  __device__ static __forceinline__ void pack(
      const float* __restrict__ numbers, const Memory& memory, unsigned block, uint4* shared) {
    if constexpr (CLUSTER_BLOCKS > 1) cluster_arrive();
    const ShortLines lines(block);
    float x[HELD][CHUNK], smallest[WIDTH];
    Finding found[WIDTH];
    lines.load(numbers, x);
#pragma unroll
    for (unsigned i = 0; i < WIDTH; ++i) smallest[i] = lines.look(x, i, found[i]);
    unsigned largest[WIDTH];
    Finding whole;
    lines.combine(found, largest, whole, shared);
    if (lines.matrix < Operand::MATRICES && lines.line < groups_of<Operand>() * GROUP) {
#pragma unroll
      for (unsigned i = 0; i < WIDTH; ++i) lines.pack_line(x, memory, i, largest[i], smallest[i]);
    }
    lines.conclude(memory, block, whole);
  }

 private:
  // By the first thread of a line, or the one that has gathered what all others have found.
  __device__ __forceinline__ void conclude(const Memory& memory, unsigned block, const Finding& whole) const {
    const unsigned number = LINE_WARPS == 1 ? within : threadIdx.x, its_line = line - within + number;
    const bool is_mine = LINE_WARPS == 1 ? first == 0 : threadIdx.x < BLOCK_LINES && block % CLUSTER_BLOCKS == 0;
    if (is_mine && block < all_blocks() && its_line < Operand::lines()) ::conclude<Operand>(memory, matrix, its_line, whole);
  }

  // Whether the unit has a j-th number in this thread, and not a zero beyond the end of the line.
  __device__ __forceinline__ bool has(unsigned unit, unsigned j) const {
    const unsigned k = (first + unit * STRIDE) * CHUNK;
    if ((unit + 1) * STRIDE * CHUNK <= K) return true;
    return K % CHUNK == 0 ? k < K : k + j < K;
  }

  __device__ __forceinline__ void load(const float* __restrict__ numbers, float (&x)[HELD][CHUNK]) const {
    const float* start = matrix_at<Operand>(numbers, matrix);
#pragma unroll
    for (unsigned unit = 0; unit < UNITS; ++unit) {
      const unsigned k = (first + unit * STRIDE) * CHUNK;
      if constexpr (WIDTH == 1) {
        load_chunk<Operand>(start, line, k, is_inside, x[unit]);
      } else {
#pragma unroll
        for (unsigned j = 0; j < CHUNK; ++j) {
          const float* source = start + static_cast<size_t>(k + j) * Operand::LD + line;
          float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
          if (is_inside && k + j < K) four = __ldg(reinterpret_cast<const float4*>(source));
          x[unit * 4][j] = four.x;
          x[unit * 4 + 1][j] = four.y;
          x[unit * 4 + 2][j] = four.z;
          x[unit * 4 + 3][j] = four.w;
        }
      }
    }
  }

  // Finds out what the thread's numbers of one of its lines are like, and returns the smallest magnitude. The usual
  // numbers, finite, not zero and of no wide span, need no care one by one: the logarithm of four is that of their product.
  __device__ __forceinline__ float look(const float (&x)[HELD][CHUNK], unsigned which, Finding& found) const {
    float most = 0, least = __int_as_float(0x7f800000), nothing = 0;
#pragma unroll
    for (unsigned unit = 0; unit < UNITS; ++unit) {
#pragma unroll
      for (unsigned j = 0; j < CHUNK; ++j) {
        const float one = x[unit * WIDTH + which][j];
        most = fmaxf(most, fabsf(one));
        least = has(unit, j) ? fminf(least, fabsf(one)) : least;
        nothing = fmaf(one, 0.0f, nothing);   // NaN, where one is infinite or NaN
      }
    }
    const int exponent = static_cast<int>(__float_as_uint(most) >> 23) - 127;
    if (nothing == 0.0f && exponent >= -96 && exponent <= 126 && least * 0x1p28f >= most) {
      const float factor = power_of_two(-exponent);
      unsigned logarithms = 0, numbers = 0;
#pragma unroll
      for (unsigned unit = 0; unit < UNITS; ++unit) {
#pragma unroll
        for (unsigned j = 0; j < CHUNK; j += 4) {
          float product = 1.0f;
#pragma unroll
          for (unsigned i = j; i < j + 4; ++i) {
            product *= has(unit, i) ? x[unit * WIDTH + which][i] * factor : 1.0f;
            numbers += has(unit, i);
          }
          logarithms += (__float_as_uint(product) & 0x7fffffffu) >> 4;
        }
      }
      const float sum = static_cast<float>(static_cast<int>(logarithms - (2 * UNITS * 127 << 19))) * 0x1p-19f;
      found = Finding(__float_as_uint(most), numbers, sum + static_cast<float>(static_cast<int>(numbers) * exponent));
    } else {
      Survey survey;
#pragma unroll
      for (unsigned unit = 0; unit < UNITS; ++unit) {
#pragma unroll
        for (unsigned j = 0; j < CHUNK; ++j) survey.add(x[unit * WIDTH + which][j]);
      }
      found = Finding(survey);
      if (nothing != 0.0f) least = 0;
    }
    return least;
  }

  // Puts together what threads of the same line have found: a line's largest for each of them, and all of it, `whole`, for
  // thread number `within` of the block.
  __device__ __forceinline__ void combine(
      Finding (&found)[WIDTH], unsigned (&largest)[WIDTH], Finding& whole, uint4* shared) const {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (unsigned i = 0; i < WIDTH; ++i) {
#pragma unroll
      for (unsigned distance = ACROSS; distance < LINE_LANES; distance *= 2) found[i].add_from_lane(distance);
      largest[i] = found[i].largest;
    }
    whole = found[0];
    if constexpr (LINE_WARPS == 1) return;
    constexpr unsigned SPAN = ALONG_K ? 1 : BLOCK_LINES;   // from a warp's finding to the next one's of the line
    if (lane < ACROSS) {
#pragma unroll
      for (unsigned i = 0; i < WIDTH; ++i) shared[ALONG_K ? warp : warp * SPAN + within + i] = found[i].packed();
    }
    __syncthreads();
    unsigned* const results = reinterpret_cast<unsigned*>(shared + 2 * SHORT_WARPS * MOST_STRIP_LINES);
    const bool is_gathering = threadIdx.x < BLOCK_LINES;
    if (is_gathering) whole = sum_of<LINE_WARPS, SPAN>(shared + threadIdx.x * (ALONG_K ? LINE_WARPS : 1));
    if constexpr (CLUSTER_BLOCKS > 1) {
      uint4* const of_cluster = shared + SHORT_WARPS * BLOCK_LINES + threadIdx.x;
      cluster_wait();   // until then a block may not have begun
      if (is_gathering) {
        const unsigned mine = shared_address(of_cluster + cluster_ctarank() * BLOCK_LINES);
#pragma unroll
        for (unsigned block = 0; block < CLUSTER_BLOCKS; ++block) st_shared_cluster(mapa(mine, block), whole.packed());
      }
      cluster_sync();
      if (is_gathering) whole = sum_of<CLUSTER_BLOCKS, BLOCK_LINES>(of_cluster);
    }
    if (is_gathering) results[threadIdx.x] = whole.largest;
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < WIDTH; ++i) largest[i] = results[within + i];
  }
  template <unsigned COUNT, unsigned SPAN>
  __device__ static __forceinline__ Finding sum_of(const uint4* source) {
    Finding sum;
#pragma unroll
    for (unsigned i = 0; i < COUNT; ++i) sum.add(source[i * SPAN]);
    return sum;
  }

  // Packs the thread's chunks of a line. Numbers that are finite and have a first part, or are zeros, need no care.
  __device__ __forceinline__ void pack_line(
      const float (&x)[HELD][CHUNK], const Memory& memory, unsigned which, unsigned largest, float smallest) const {
    const int exponent = scale_of(largest);
    const unsigned row = (line + which) % GROUP, group = (line + which) / GROUP;
    unsigned char* const target = memory.packed<Operand, FINE_PARTS>();
    const float factor = power_of_two(min(exponent, 127));
    const bool is_usual = exponent <= 127 && smallest * factor >= 0x1p-24f;
    const Scale scale(exponent);
#pragma unroll
    for (unsigned unit = 0; unit < UNITS; ++unit) {
      const unsigned number = first + unit * STRIDE;
      if ((unit + 1) * STRIDE > STEPS * STEP_CHUNKS && number >= STEPS * STEP_CHUNKS) break;
      unsigned char* const chunk = target + chunk_at<Operand, FINE_PARTS>(matrix, group, row, number);
      const float (&numbers)[CHUNK] = x[unit * WIDTH + which];
      if (is_usual) pack_usual(chunk, numbers, factor);
      else pack_chunk<FINE_PARTS>(chunk, scale, numbers);
    }
  }
};

constexpr unsigned SURVEY_CLUSTER =
    (ShortLines<OperandA>::FITS && ShortLines<OperandA>::CLUSTER_BLOCKS > 1)
        || (!PACKED_B && ShortLines<OperandB>::FITS && ShortLines<OperandB>::CLUSTER_BLOCKS > 1) ? STRIP_CLUSTER : 1;
[[maybe_unused]] constexpr unsigned KEEP_CLUSTER =   // of the launch for B by itself
    ShortLines<OperandB>::FITS ? ShortLines<OperandB>::CLUSTER_BLOCKS : 1;
