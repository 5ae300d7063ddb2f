// The variants `tensor3xtf32` and `tensor1xtf32` as a whole: op(A) op(B), tile by tile, each finished sum handed to the
// kernel's Epilogue.
#pragma once
#include "common/overlap.cuh"
#include "common/second_pass.cuh"
#include "common/split_tile.cuh"
#include "mma/tiles.cuh"

using TileSums = SplitTile<WPT_M, WPT_N, SLICE_THREADS, CLUSTER, SPLIT, SLICES, PUSHES>;

// The widest stores that rows of C divide into.
constexpr unsigned WIDTH_C = tw::gcd(tw::gcd(N, LDC), tw::gcd(BATCH == 1 ? 0u : unsigned{STRIDE_C % QUAD}, QUAD));

// A quad of finished sums, as far as it is this tile's to write.
template <class Epilogue>
__device__ __forceinline__ void write_quad(
    const Epilogue& epilogue, const Work& work, unsigned row, unsigned column, const Pack<QUAD>& sum) {
  if (!M_DIVIDES(TILE_M) && (row < work.written_m || row >= M)) return;
#pragma unroll
  for (unsigned i = 0; i < QUAD; i += WIDTH_C) {
    if (N % TILE_N != 0 && (column + i < work.written_n || column + i >= N)) continue;
    Pack<WIDTH_C> part;
#pragma unroll
    for (unsigned j = 0; j < WIDTH_C; ++j) part.lane[j] = sum.lane[i + j];
    epilogue.template write<WIDTH_C>(row, column + i, part);
  }
}

// The tile's sums where rows do not divide into wider stores than of one number: through shared memory, so that the lanes of
// a warp store neighbours, eight rows at a time. `shared` is that of the operands. Every thread must call it.
template <class Epilogue>
__device__ __forceinline__ void write_by_rows(
    const Epilogue& epilogue, const Work& work, const AccumulatorLayout& layout, const Sums& sum, REAL* shared) {
  constexpr unsigned LINE = WARP_N + 16;   // so that two rows' quads lie in different banks
  static_assert(THREADS / 32 * 8 * LINE <= BUFFERS * (OperandA::TILE_ELEMENTS + OperandB::TILE_ELEMENTS), "fits the buffers");
  const unsigned lane = threadIdx.x % 32;
  REAL* const mine = shared + threadIdx.x / 32 * (8 * LINE);
  __syncthreads();   // the last step is read to its end
#pragma unroll
  for (unsigned i = 0; i < WPT_M; ++i) {
#pragma unroll
    for (unsigned quad = 0; quad < TileSums::ROW_QUADS; ++quad) {
      store_pack<QUAD>(mine + lane / 4 * LINE + lane % 4 * QUAD + AccumulatorLayout::column(quad),
                       TileSums::quad_of(sum, i * TileSums::ROW_QUADS + quad));
    }
    __syncwarp();
#pragma unroll
    for (unsigned at = 0; at < 8 * WARP_N; at += 32) {
      const unsigned g = (at + lane) / WARP_N, along = (at + lane) % WARP_N;
      const unsigned row = work.m + layout.warp_m + AccumulatorLayout::row(i) + x_of<OperandA::READ>(0, g);
      const unsigned column = work.n + layout.warp_n + along;
      if (!M_DIVIDES(TILE_M) && (row < work.written_m || row >= M)) continue;
      if (N % TILE_N != 0 && (column < work.written_n || column >= N)) continue;
      epilogue.template write<1>(row, column, Pack<1>{mine[g * LINE + along]});
    }
    __syncwarp();
  }
}

// The sums of the block's steps, whatever the numbers are (common/second_pass.cuh). Every thread must call it.
struct BlockSums {
  const REAL* A;
  const REAL* B;
  REAL* shared;
  const Work& work;
  const AccumulatorLayout& layout;

  template <class Pass>
  __device__ __forceinline__ void add(Fragments& sum, Passes<Pass>& passes) const {
    REAL* shared_b = shared + BUFFERS * OperandA::TILE_ELEMENTS;
    OperandA a(A, shared_address(shared), work.m, work.first_step, layout.warp_m);
    OperandB b(B, shared_address(shared_b), work.n, work.first_step, layout.warp_n);
    if constexpr (RESIDENT > 0 && Pass::IS_FIRST) await_last_launch();
    add_products(sum, passes, a, b, shared, shared_b, work.steps);
  }

  __device__ __forceinline__ void compute(Sums& sum) const {
    Fragments fragments = {};
    Passes<FirstPass> first;
    add(fragments, first);
    reorder(sum, fragments);
    if constexpr (PRODUCTS == 1) return;   // TF32 has infinities and NaN
    multiply(sum, 1 / (FIRST_SCALE * FIRST_SCALE));
    bool is_usual = true;
#pragma unroll
    for (unsigned i = 0; i < WPT_M * WPT_N; ++i) is_usual = is_usual && is_finite(sum[i / WPT_N][i % WPT_N]);
    if (__syncthreads_or(!is_usual)) compute_again(sum);
  }

  __device__ static __forceinline__ void multiply(Sums& sum, float factor) {
#pragma unroll
    for (unsigned i = 0; i < WPT_M * WPT_N; ++i) sum[i / WPT_N][i % WPT_N] *= factor;
  }

  __device__ __forceinline__ void compute_again(Sums& sum) const {
    bool is_tiny_a = false, is_tiny_b = false, is_certain;
#pragma unroll 1
    while (true) {
      Passes<SecondPass> second = {SecondPass(is_tiny_a), SecondPass(is_tiny_b)};
      Fragments fragments = {};
      add(fragments, second);
      reorder(sum, fragments);
      multiply(sum, 1 / second.a.scale * (1 / second.b.scale));
      is_certain = cannot_overflow(of_warp(second.a.largest), of_warp(second.b.largest));
      const bool met_tiny_a = __syncthreads_or(!is_tiny_a && second.a.smallest.is_tiny());
      const bool met_tiny_b = __syncthreads_or(!is_tiny_b && second.b.smallest.is_tiny());
      if (!met_tiny_a && !met_tiny_b) break;
      is_tiny_a |= met_tiny_a;
      is_tiny_b |= met_tiny_b;
    }
    if (!is_certain) recompute(sum);
  }

  // The largest number that a lane of the warp has.
  __device__ static __forceinline__ float of_warp(float largest) {
#pragma unroll
    for (unsigned distance = 16; distance > 0; distance /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    }
    return largest;
  }

  // The warp's share of an element of C.
  __device__ __forceinline__ float of_slice(unsigned m, unsigned n, unsigned first, unsigned end) const {
    float sum = 0;
#pragma unroll 1
    for (unsigned p = first + threadIdx.x / SLICE_THREADS * SLICE_TERMS; p < end; p += TILE_K) {
      sum += product_by_fma(A, B, m, n, p, tw::min(p + SLICE_TERMS, end));
    }
    return sum;
  }

  // Infinite sums and NaN by FMAs.
  __device__ __forceinline__ void recompute(Sums& sum) const {
    const unsigned first = work.first_step * TILE_K, end = tw::min(K, (work.first_step + work.steps) * TILE_K);
#pragma unroll 1
    for (unsigned number = 0; number < WPT_M * WPT_N; ++number) {
      // Registers have no addresses, so every sum is looked at for the one wanted.
      unsigned m = work.m + layout.m, n = work.n + layout.n;
      bool is_wanted = false;
#pragma unroll
      for (unsigned i = 0; i < WPT_M * WPT_N; ++i) {
        if (i != number) continue;
        is_wanted = !is_finite(sum[i / WPT_N][i % WPT_N]);
        m += AccumulatorLayout::row(i / WPT_N);
        n += AccumulatorLayout::column(i % WPT_N / QUAD) + i % QUAD;
      }
      if (!is_wanted || m >= M || n >= N) continue;
      const float again = SLICES == 1 ? product_by_fma(A, B, m, n, first, end) : of_slice(m, n, first, end);
#pragma unroll
      for (unsigned i = 0; i < WPT_M * WPT_N; ++i) {
        if (i == number) sum[i / WPT_N][i % WPT_N] = again;
      }
    }
  }
};

// All that the block has to do, for the matrices of the batch that it is for. `shared` has BUFFERS tiles of A, as many of
// B; in the end with clusters the block's sums.
template <class Epilogue>
__device__ __forceinline__ void compute_block(
    const REAL* A, const REAL* B, const Epilogue& epilogue, REAL* shared, unsigned char* workspace) {
  [[maybe_unused]] unsigned barrier = 0;
  if constexpr (PUSHES) {
    __shared__ unsigned long long arrived;
    barrier = shared_address(&arrived);
    TileSums::expect(barrier, blockIdx.x % CLUSTER);
  }
  if constexpr (RESIDENT > 0) admit_next_launch();   // and await the last one when addresses are known
  else await_last_launch();
  const unsigned matrix = BATCH == 1 ? 0 : blockIdx.y;
  const Work work = work_of(blockIdx.x);
  const AccumulatorLayout layout;
  Sums sum;
  BlockSums{A + matrix * STRIDE_A, B + matrix * STRIDE_B, shared, work, layout}.compute(sum);
  const unsigned row = work.m + layout.m, column = work.n + layout.n;
  const Epilogue here = epilogue.of_matrix(matrix);
  if constexpr (WIDTH_C == 1 && SPLIT_K * SLICES == 1 && Epilogue::ROWS_ARE_CONTIGUOUS) {
    write_by_rows(here, work, layout, sum, shared);
    return;
  }
  const auto write = [&](unsigned number, const Pack<QUAD>& quad) {
    write_quad(here, work, row + AccumulatorLayout::row(number / TileSums::ROW_QUADS),
               column + AccumulatorLayout::column(number % TileSums::ROW_QUADS), quad);
  };
  if constexpr (SPLIT_K * SLICES > 1) {
    __syncthreads();   // the last step is read to its end
    // Sums from other blocks must not arrive where operands are still read.
    REAL* const buffer = PUSHES ? shared + BUFFERS * (OperandA::TILE_ELEMENTS + OperandB::TILE_ELEMENTS) : shared;
    TileSums::add(sum, buffer, workspace, matrix * MATRIX_TILES + work.tile, BATCH * MATRIX_TILES, work.part,
                  work.parts, write, barrier);
  } else {
#pragma unroll
    for (unsigned number = 0; number < TileSums::THREAD_QUADS; ++number) write(number, TileSums::quad_of(sum, number));
  }
}
