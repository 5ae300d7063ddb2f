// The variant `tensor_fp64` as a whole: op(A) op(B), tile by tile, each finished sum handed to the kernel's Epilogue.
#pragma once
#ifndef REAL   // what these products are of
#define REAL double
#define REAL_BYTES 8
#endif
#include "common/split_tile.cuh"
#include "dmma/operand.cuh"
#include "ptx/mma_sync_f64.cuh"
#include "ptx/shared_memory.cuh"

// Whether lines of an operand, what is used of them, and matrices divide into 16-byte chunks.
__device__ constexpr bool divides(size_t line, size_t leading, size_t stride) {
  return line % QUAD == 0 && leading % QUAD == 0 && stride % QUAD == 0;
}

using OperandA = Fp64Operand<TILE_M, KNOWN_M, LDA, !TRANS_A, divides(ROW_LENGTH_A, LDA, STRIDE_A)>;
using OperandB = Fp64Operand<TILE_N, N, LDB, TRANS_B, divides(TRANS_B ? K : N, LDB, STRIDE_B)>;
using TileSums = SplitTile<WPT_M, WPT_N, THREADS, CLUSTER, SPLIT>;
constexpr unsigned WIDTH_C = divides(N, LDC, STRIDE_C) ? QUAD : 1;   // of stores to C
constexpr unsigned STAGE_ELEMENTS = OperandA::TILE_ELEMENTS + OperandB::TILE_ELEMENTS;

// The ring of buffers: of each step the tile of A, then that of B. Copies run ahead of the products, from one piece of
// the block's work into the next.
struct Ring {
  const REAL *A, *B;
  OperandA a;
  OperandB b;
  Agenda agenda;
  unsigned left = 0, writing = 0;

  // Starts the copies of the next step, if there is one.
  __device__ __forceinline__ void copy() {
    Work work;
    unsigned matrix;
    if (left == 0 && agenda.next(work, matrix)) {
      a.start(A + matrix * STRIDE_A, work.m, work.first_step);
      b.start(B + matrix * STRIDE_B, work.n, work.first_step);
      left = work.steps;
    }
    if (left > 0) {
      --left;
      a.copy(writing * (STAGE_ELEMENTS * REAL_BYTES));
      b.copy(writing * (STAGE_ELEMENTS * REAL_BYTES));
      writing = writing == STAGES - 1 ? 0 : writing + 1;
    }
    cp_async_commit_group();
  }
};

// A warp's terms of one product of all its fragments.
struct Terms {
  REAL a[FRAGMENTS_M][MMA_K / 2], b[FRAGMENTS_N][MMA_K / 4];

  // Reads those of a fragment row of A or a fragment column of B, from term MMA_K * group of a step on.
  __device__ __forceinline__ void read_a(const Ring& ring, const REAL* stage, unsigned i, unsigned group) {
#pragma unroll
    for (unsigned place = 0; place < MMA_K / 2; ++place) {
      a[i][place] = ring.a.read(stage, 2 * i + place % 2, group * (MMA_K / 4) + place / 2);
    }
  }
  __device__ __forceinline__ void read_b(const Ring& ring, const REAL* stage, unsigned j, unsigned group) {
#pragma unroll
    for (unsigned place = 0; place < MMA_K / 4; ++place) {
      b[j][place] = ring.b.read(stage + OperandA::TILE_ELEMENTS, j, group * (MMA_K / 4) + place);
    }
  }
  __device__ __forceinline__ void read(const Ring& ring, const REAL* stage, unsigned group) {
#pragma unroll
    for (unsigned i = 0; i < FRAGMENTS_M; ++i) read_a(ring, stage, i, group);
#pragma unroll
    for (unsigned j = 0; j < FRAGMENTS_N; ++j) read_b(ring, stage, j, group);
  }

  // Multiplies them. Without AHEAD, those of the next group take their place as soon as they are done with.
  __device__ __forceinline__ void multiply(
      REAL (&sum)[WPT_M][WPT_N], const Ring& ring, const REAL* stage, unsigned next) {
#pragma unroll
    for (unsigned i = 0; i < FRAGMENTS_M; ++i) {
#pragma unroll
      for (unsigned j = 0; j < FRAGMENTS_N; ++j) {
        mma_m16n8_f64<MMA_K>(
            sum[2 * i][2 * j], sum[2 * i][2 * j + 1], sum[2 * i + 1][2 * j], sum[2 * i + 1][2 * j + 1], a[i], b[j]);
        if (!AHEAD && i == FRAGMENTS_M - 1) read_b(ring, stage, j, next);
      }
      if (!AHEAD) read_a(ring, stage, i, next);
    }
  }
};

// Where the thread's first sums lie in the tile. It has the rows 8 apart, pairs of columns 8 apart.
struct ThreadOrigin {
  unsigned warp_m, warp_n, m, n;
  __device__ __forceinline__ ThreadOrigin() {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    warp_m = warp / WARPS_N * WARP_M;
    warp_n = warp % WARPS_N * WARP_N;
    m = warp_m + lane / 4;
    n = warp_n + lane % 4 * 2;
  }
};

// Finishes a piece's sums.
template <class Epilogue>
__device__ __forceinline__ void finish(
    const REAL (&sum)[WPT_M][WPT_N], const Work& work, const ThreadOrigin& origin, const Epilogue& epilogue,
    REAL* shared, unsigned char* workspace) {
  const auto write = [&](unsigned number, const Pack<QUAD>& pair) {
    const unsigned row = work.m + origin.m + number / TileSums::ROW_QUADS * 8;
    const unsigned column = work.n + origin.n + number % TileSums::ROW_QUADS * 8;
    if (!M_DIVIDES(TILE_M) && (row < work.written_m || row >= M)) return;
#pragma unroll
    for (unsigned i = 0; i < QUAD; i += WIDTH_C) {
      if (N % TILE_N != 0 && (column + i < work.written_n || column + i >= N)) continue;
      Pack<WIDTH_C> part;
#pragma unroll
      for (unsigned j = 0; j < WIDTH_C; ++j) part.lane[j] = pair.lane[i + j];
      epilogue.template write<WIDTH_C>(row, column + i, part);
    }
  };
  if constexpr (CLUSTER > 1) __syncthreads();   // the last step is read to its end
  if constexpr (SPLIT > 1 || CLUSTER > 1) {
    if (work.parts > 1) {
      TileSums::add(sum, shared, workspace, work.tile, SHARED_TILES, work.part, work.parts, write);
      return;
    }
  }
#pragma unroll
  for (unsigned number = 0; number < TileSums::THREAD_QUADS; ++number) write(number, TileSums::quad_of(sum, number));
}

// All that the block has to do. `shared` has the ring; in the end with clusters the block's sums.
template <class EpilogueOf>
__device__ __forceinline__ void compute_block(
    const REAL* A, const REAL* B, const EpilogueOf& epilogue_of, REAL* shared, unsigned char* workspace) {
  constexpr unsigned GROUPS = TILE_K / MMA_K;
  static_assert(GROUPS % 2 == 0, "groups of terms take turns in two places");
  const ThreadOrigin origin;
  const unsigned buffers = shared_address(shared);
  Ring ring{A, B, OperandA(buffers, origin.warp_m), OperandB(buffers + OperandA::TILE_BYTES, origin.warp_n)};
#pragma unroll 1
  for (unsigned stage = 0; stage < STAGES - 1; ++stage) ring.copy();
  cp_async_wait_group<STAGES - 2>();
  __syncthreads();
  Terms terms[1 + AHEAD];
  terms[0].read(ring, shared, 0);
  unsigned reading = 0;
  Agenda agenda;
  Work work;
  unsigned matrix;
#pragma unroll 1
  while (agenda.next(work, matrix)) {
    REAL sum[WPT_M][WPT_N] = {};
#pragma unroll 1
    for (unsigned step = 0; step < work.steps; ++step) {
      const REAL* stage = shared + reading * STAGE_ELEMENTS;
      reading = reading == STAGES - 1 ? 0 : reading + 1;
#pragma unroll
      for (unsigned group = 0; group < GROUPS; ++group) {
        const unsigned next = (group + 1) % GROUPS;
        if (next == 0) {
          cp_async_wait_group<STAGES - 2>();
          __syncthreads();   // the next step is there, and this one is read to its end
          stage = shared + reading * STAGE_ELEMENTS;
        }
        if (AHEAD) terms[next % (1 + AHEAD)].read(ring, stage, next);
        if (group == 0) ring.copy();   // into the buffer of the step before, which all have read
        terms[group % (1 + AHEAD)].multiply(sum, ring, stage, next);
      }
    }
    finish(sum, work, origin, epilogue_of(matrix), shared, workspace);
  }
}
