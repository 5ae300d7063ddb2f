// The variants `tensor3xtf32` and `tensor1xtf32` as a whole: op(A) op(B), tile by tile, each finished sum handed to the
// kernel's Epilogue.
#pragma once
#include "common/recompute.cuh"
#include "common/split_tile.cuh"
#include "mma/tiles.cuh"

using TileSums = SplitTile<WPT_M, WPT_N, THREADS, CLUSTER, SPLIT>;

constexpr unsigned WIDTH_C = tw::gcd(N, QUAD);   // the widest stores that rows of C divide into

// A quad of finished sums, as far as it is this tile's to write.
template <class Epilogue>
__device__ __forceinline__ void write_quad(
    const Epilogue& epilogue, const Work& work, unsigned row, unsigned column, const Pack<QUAD>& sum) {
  if (M % TILE_M != 0 && (row < work.written_m || row >= M)) return;
#pragma unroll
  for (unsigned i = 0; i < QUAD; i += WIDTH_C) {
    if (N % TILE_N != 0 && (column + i < work.written_n || column + i >= N)) continue;
    Pack<WIDTH_C> part;
#pragma unroll
    for (unsigned j = 0; j < WIDTH_C; ++j) part.lane[j] = sum.lane[i + j];
    epilogue.template write<WIDTH_C>(row, column + i, part);
  }
}

// A quad of sums, those that came out infinite or NaN computed again.
__device__ __forceinline__ Pack<QUAD> recomputed(
    Pack<QUAD> sum, const REAL* A, const REAL* B, unsigned row, unsigned column) {
  bool all = true;
#pragma unroll
  for (unsigned i = 0; i < QUAD; ++i) all = all && is_finite(sum.lane[i]);
  if (!all && row < M) {
#pragma unroll 1
    for (unsigned i = 0; i < QUAD && column + i < N; ++i) {
      const REAL again = product_by_fma(A, B, row, column + i);
#pragma unroll
      for (unsigned lane = 0; lane < QUAD; ++lane) {
        if (lane == i && !is_finite(sum.lane[lane])) sum.lane[lane] = again;
      }
    }
  }
  return sum;
}

// The same for all sums of a thread.
__device__ __forceinline__ void recompute(Sums& sum, const REAL* A, const REAL* B, unsigned row, unsigned column) {
  bool all = true;
#pragma unroll
  for (unsigned i = 0; i < WPT_M; ++i) {
#pragma unroll
    for (unsigned j = 0; j < WPT_N; ++j) all = all && is_finite(sum[i][j]);
  }
  if (all) return;
#pragma unroll 1
  for (unsigned number = 0; number < WPT_M * WPT_N / QUAD; ++number) {
    // Registers have no addresses, so every quad is looked at for the one wanted.
    Pack<QUAD> quad = {};
    unsigned m = 0, n = 0;
#pragma unroll
    for (unsigned i = 0; i < WPT_M * WPT_N; ++i) {
      const unsigned at = i / QUAD;
      if (at != number) continue;
      quad.lane[i % QUAD] = sum[i / WPT_N][i % WPT_N];
      m = row + AccumulatorLayout::row(i / WPT_N);
      n = column + AccumulatorLayout::column(i % WPT_N / QUAD);
    }
    quad = recomputed(quad, A, B, m, n);
#pragma unroll
    for (unsigned i = 0; i < WPT_M * WPT_N; ++i) {
      if (i / QUAD == number) sum[i / WPT_N][i % WPT_N] = quad.lane[i % QUAD];
    }
  }
}

// All that the block has to do. `shared` has STAGES tiles of A, as many of B; in the end with clusters the block's
// sums.
template <class Epilogue>
__device__ __forceinline__ void compute_block(
    const REAL* A, const REAL* B, const Epilogue& epilogue, REAL* shared, unsigned char* workspace) {
  REAL* shared_b = shared + STAGES * OperandA::TILE_ELEMENTS;
  const Work work = work_of(blockIdx.x);
  const AccumulatorLayout layout;
  OperandA a(A, shared_address(shared), work.m, work.first_step, layout.warp_m);
  OperandB b(B, shared_address(shared_b), work.n, work.first_step, layout.warp_n);
  Fragments fragments = {};
  add_products(fragments, a, b, shared, shared_b, work.steps);
  Sums sum;
  reorder(sum, fragments);
  const unsigned row = work.m + layout.m, column = work.n + layout.n;
  const auto row_of_quad = [row](unsigned number) {
    return row + AccumulatorLayout::row(number / TileSums::ROW_QUADS);
  };
  const auto column_of_quad = [column](unsigned number) {
    return column + AccumulatorLayout::column(number % TileSums::ROW_QUADS);
  };
  if constexpr (SPLIT_K > 1) {
    __syncthreads();   // the last step is read to its end
    const auto write = [&](unsigned number, const Pack<QUAD>& quad) {
      const unsigned m = row_of_quad(number), n = column_of_quad(number);
      write_quad(epilogue, work, m, n, recomputed(quad, A, B, m, n));
    };
    TileSums::add(sum, shared, workspace, work.tile, TILES_M * TILES_N, work.part, work.parts, write);
  } else {
    recompute(sum, A, B, row, column);
#pragma unroll
    for (unsigned number = 0; number < TileSums::THREAD_QUADS; ++number) {
      write_quad(epilogue, work, row_of_quad(number), column_of_quad(number), TileSums::quad_of(sum, number));
    }
  }
}
