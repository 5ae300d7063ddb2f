// Lines that the registers of a block, or of a small cluster of blocks, hold: each number is read once, looked at, scaled
// by its line and written as two FP16 parts. Whether those suffice is known when all lines were; if not, the next launch
// packs all of them again (parts/pack.cuh).
#pragma once
#include "parts/chunk.cuh"
#include "parts/line.cuh"
#include "ptx/cluster.cuh"
#include "ptx/shared_memory.cuh"

constexpr unsigned MOST_CHUNKS_HELD = 8;      // of a thread
constexpr unsigned SHORT_WARPS = SURVEY_THREADS / 32;
constexpr unsigned STRIP_GROUPS = 2;          // of lines that are not contiguous: 64 bytes of each row
constexpr unsigned STRIP_WARPS = SHORT_WARPS / STRIP_GROUPS;
constexpr unsigned SHORT_LINES = SHORT_WARPS * GROUP;   // partial surveys of a block, at most

// Threads that share a contiguous line, at most four chunks each where a block suffices for that.
constexpr unsigned LINE_THREADS = K <= 1024 ? 32 : K <= 2048 ? 64 : K <= 4096 ? 128 : 256;
constexpr unsigned LINE_CHUNKS = tw::ceil_div(STEPS * STEP_CHUNKS, LINE_THREADS);   // of a thread

// Blocks that share lines that are not contiguous, and the steps of a warp of theirs.
constexpr unsigned MOST_STRIP_STEPS = 4;
constexpr unsigned STRIP_CLUSTER = STEPS <= STRIP_WARPS * MOST_STRIP_STEPS       ? 1
                                   : STEPS <= 2 * STRIP_WARPS * MOST_STRIP_STEPS ? 2
                                   : STEPS <= 4 * STRIP_WARPS * MOST_STRIP_STEPS ? 4
                                                                                 : 8;
constexpr unsigned STRIP_STEPS = tw::ceil_div(STEPS, STRIP_WARPS * STRIP_CLUSTER);

template <class Operand>
struct ShortLines {
  static constexpr bool ALONG_K = Operand::ALONG_K;
  static constexpr unsigned HELD = ALONG_K ? LINE_CHUNKS : STRIP_STEPS;
  static constexpr bool FITS = HELD <= MOST_CHUNKS_HELD;
  static constexpr unsigned CLUSTER_BLOCKS = FITS && !ALONG_K ? STRIP_CLUSTER : 1;
  static constexpr unsigned MATRIX_BLOCKS =
      ALONG_K ? tw::ceil_div(GROUPS<Operand> * GROUP, SURVEY_THREADS / LINE_THREADS)
              : tw::ceil_div(GROUPS<Operand>, STRIP_GROUPS) * CLUSTER_BLOCKS;
  static constexpr unsigned ALL_BLOCKS = MATRIX_BLOCKS * Operand::MATRICES;
  static constexpr unsigned STRIDE = ALONG_K ? LINE_THREADS : STRIP_CLUSTER * STRIP_WARPS * STEP_CHUNKS;

  __device__ static __forceinline__ void pack(
      const float* __restrict__ numbers, const Memory& memory, unsigned block, uint4* shared) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned matrix = block / MATRIX_BLOCKS, within = block % MATRIX_BLOCKS;
    unsigned line, first;   // of this thread, and the first of its chunks, which are STRIDE apart
    if constexpr (ALONG_K) {
      line = within * (SURVEY_THREADS / LINE_THREADS) + threadIdx.x / LINE_THREADS;
      first = threadIdx.x % LINE_THREADS;
    } else {
      line = (within / CLUSTER_BLOCKS * STRIP_GROUPS + warp % STRIP_GROUPS) * GROUP + lane % GROUP;
      first = (within % CLUSTER_BLOCKS * STRIP_WARPS + warp / STRIP_GROUPS) * STEP_CHUNKS + lane / GROUP;
    }
    const bool is_mine = block < ALL_BLOCKS, is_inside = is_mine && line < Operand::LINES;
    const float* matrix_start = matrix_at<Operand>(numbers, matrix);
    float x[HELD][CHUNK];
#pragma unroll
    for (unsigned i = 0; i < HELD; ++i) {
      load_chunk<Operand>(matrix_start, line, (first + i * STRIDE) * CHUNK, is_inside, x[i]);
    }
    Survey found;
#pragma unroll
    for (unsigned i = 0; i < HELD; ++i) {
#pragma unroll
      for (unsigned j = 0; j < CHUNK; ++j) found.add(x[i][j]);
    }
    found.close();
    bool is_first;
    combine(found, shared, lane, warp, is_first);
    if (is_inside && is_first) conclude<Operand>(memory, matrix, line, found);
    if (!is_mine || line >= GROUPS<Operand> * GROUP) return;
    const Scale scale(scale_of(found));
    unsigned char* target = memory.packed<Operand, FINE_PARTS>();
#pragma unroll
    for (unsigned i = 0; i < HELD; ++i) {
      const unsigned number = first + i * STRIDE;
      if (number >= STEPS * STEP_CHUNKS) break;
      pack_chunk<FINE_PARTS>(
          target + chunk_at<Operand, FINE_PARTS>(matrix, line / GROUP, line % GROUP, number), scale, x[i]);
    }
  }

 private:
  // Adds up what all threads of a line have found, for each of them. One of them is the line's first.
  __device__ static __forceinline__ void combine(
      Survey& found, uint4* shared, unsigned lane, unsigned warp, bool& is_first) {
    if constexpr (ALONG_K) {
      constexpr unsigned WARPS = LINE_THREADS / 32;
#pragma unroll
      for (unsigned distance = 16; distance > 0; distance /= 2) found.add_from_lane(distance);
      is_first = threadIdx.x % LINE_THREADS == 0;
      if constexpr (WARPS > 1) {
        if (lane == 0) shared[warp] = found.packed();
        __syncthreads();
        found = Survey();
#pragma unroll
        for (unsigned i = 0; i < WARPS; ++i) found.add(Survey::unpacked(shared[warp / WARPS * WARPS + i]));
      }
    } else {
      constexpr unsigned LINES = STRIP_GROUPS * GROUP;
      const unsigned mine = warp % STRIP_GROUPS * GROUP + lane % GROUP;
      found.add_from_lane(16);
      found.add_from_lane(8);
      if (lane < GROUP) shared[warp / STRIP_GROUPS * LINES + mine] = found.packed();
      __syncthreads();
      found = Survey();
#pragma unroll
      for (unsigned i = 0; i < STRIP_WARPS; ++i) found.add(Survey::unpacked(shared[i * LINES + mine]));
      is_first = warp < STRIP_GROUPS && lane < GROUP;
      if constexpr (CLUSTER_BLOCKS > 1) {
        uint4* const own = shared + STRIP_WARPS * LINES;
        uint4* const whole = own + LINES;
        if (is_first) own[mine] = found.packed();
        cluster_sync();
        if (is_first) {
          found = Survey();
          const unsigned at = shared_address(own + mine);
#pragma unroll
          for (unsigned i = 0; i < CLUSTER_BLOCKS; ++i) {
            found.add(Survey::unpacked(ld_shared_cluster_words(mapa(at, i))));
          }
          whole[mine] = found.packed();
        }
        cluster_sync();   // a block's shared memory ends with it
        found = Survey::unpacked(whole[mine]);
        is_first = is_first && cluster_ctarank() == 0;
      }
    }
  }
};

constexpr unsigned SURVEY_CLUSTER =
    ShortLines<OperandA>::CLUSTER_BLOCKS > 1 || (!PACKED_B && ShortLines<OperandB>::CLUSTER_BLOCKS > 1) ? STRIP_CLUSTER : 1;
[[maybe_unused]] constexpr unsigned KEEP_CLUSTER = ShortLines<OperandB>::CLUSTER_BLOCKS;   // of the launch for B by itself
