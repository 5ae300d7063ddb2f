// The variant `register` as a whole: op(A) op(B), tile by tile, each finished sum handed to the kernel's Epilogue.
#pragma once
#include "common/split_tile.cuh"
#include "fma/tiles.cuh"

using TileSums = SplitTile<WPT_M, WPT_N, THREADS, CLUSTER, SPLIT>;

// The widest stores that rows of C and runs of a thread's sums divide into.
constexpr unsigned WIDTH_C = tw::gcd(DIVISOR_C, ShareN::RUN);

// WIDTH_C neighbours of C, where they are this tile's to write.
template <class Epilogue>
__device__ __forceinline__ void write_run(
    const Epilogue& epilogue, const Work& work, unsigned row, unsigned column, const Pack<WIDTH_C>& sums) {
  if (!M_DIVIDES(TILE_M) && (row < work.written_m || row >= M)) return;
  if (N % TILE_N != 0 && (column < work.written_n || column >= N)) return;
  epilogue.template write<WIDTH_C>(row, column, sums);
}

// Some steps of a tile, through to what becomes of it. `shared` has STAGES tiles of A, as many of B; in the end with
// clusters the block's tile of sums.
template <class Epilogue>
__device__ __forceinline__ void compute(
    const Work& work, const REAL* A, const REAL* B, const Epilogue& epilogue, REAL* shared, unsigned char* workspace) {
  REAL* shared_b = shared + STAGES * OperandA::TILE_ELEMENTS;
  const ThreadOrigin origin;
  OperandA a(A, shared, work.m, work.first_step);
  OperandB b(B, shared_b, work.n, work.first_step);
  REAL sum[WPT_M][WPT_N] = {};
  add_products(sum, a, b, shared + origin.m, shared_b + origin.n, work.steps);
  const auto write = [&](unsigned number, const Pack<QUAD>& quad) {
    const unsigned row = work.m + origin.m + ShareM::at(0, number / TileSums::ROW_QUADS);
#pragma unroll
    for (unsigned j = 0; j < QUAD; j += WIDTH_C) {
      Pack<WIDTH_C> sums;
#pragma unroll
      for (unsigned w = 0; w < WIDTH_C; ++w) sums.lane[w] = quad.lane[j + w];
      write_run(epilogue, work, row, work.n + origin.n + ShareN::at(0, number % TileSums::ROW_QUADS * QUAD + j), sums);
    }
  };
  constexpr bool SHARED = SPLIT > 1 || CLUSTER > 1;
  if constexpr (SHARED || CROSSING) __syncthreads();   // the last step is read to its end
  if constexpr (SHARED) {
    if (work.parts > 1) {
      const unsigned tile = matrix_of_block() * MATRIX_TILES + work.tile;
      TileSums::add(sum, shared, workspace, tile, BATCH * MATRIX_TILES, work.part, work.parts, write);
      return;
    }
  }
#pragma unroll
  for (unsigned number = 0; number < TileSums::THREAD_QUADS; ++number) write(number, TileSums::quad_of(sum, number));
}

// All that the block has to do.
template <class Epilogue>
__device__ __forceinline__ void compute_block(
    const REAL* A, const REAL* B, const Epilogue& epilogue, REAL* shared, unsigned char* workspace) {
  if constexpr (CROSSING) {
    const unsigned end = tw::min((blockIdx.x + 1) * WALKED, ALL_STEPS);
#pragma unroll 1
    for (unsigned from = blockIdx.x * WALKED; from < end;) {
      const Work work = work_between(from, end);
      compute(work, A, B, epilogue, shared, workspace);
      from += work.steps;
    }
  } else {
    compute(work_of(blockIdx.x), A, B, epilogue, shared, workspace);
  }
}
