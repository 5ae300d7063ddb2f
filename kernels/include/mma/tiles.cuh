// A block's tile of sums on tensor cores: gemm's and linear's variants `tensor3xtf32` and `tensor1xtf32` are this with
// what they do with a finished sum. Their head comments tell the mapping.
#pragma once
#include "mma/operand.cuh"
#include "mma/split_tf32.cuh"

#ifndef PATCHES   // conv/mma_operands.cuh has others
using OperandA = TensorOperand<TILE_M, WARP_M, KNOWN_M, LDA, BATCH == 1 ? 0 : STRIDE_A, !TRANS_A>;
using OperandB = TensorOperand<TILE_N, WARP_N, N, LDB, BATCH == 1 ? 0 : STRIDE_B, TRANS_B>;
#endif
using Sums = REAL[WPT_M][WPT_N];

// Where among the columns of its sums a thread has column `half` of the two that fragment j gives it: four neighbours
// of C make a quad, of whatever fragments they come.
__device__ constexpr unsigned column_of(unsigned j, unsigned half) {
  return OperandB::READ == 1 ? j / 2 * 4 + j % 2 * 2 + half
      : OperandB::READ == 2 ? j / 2 * 4 + half * 2 + j % 2
                            : j / 4 * 8 + half * 4 + j % 4;
}

// Where the thread's first row and its first quad lie in the tile, and the warp's rectangle.
struct AccumulatorLayout {
  unsigned warp_m, warp_n, m, n;
  __device__ __forceinline__ AccumulatorLayout() {
    const unsigned warp = SLICES == 1 ? threadIdx.x / 32 : threadIdx.x / 32 % SLICE_WARPS, lane = threadIdx.x % 32;
    warp_m = warp / WARPS_N * WARP_M;
    warp_n = warp % WARPS_N * WARP_N;
    m = warp_m + x_of<OperandA::READ>(0, lane / 4);
    n = warp_n + lane % 4 * QUAD;
  }
  __device__ static constexpr unsigned row(unsigned i) { return x_of<OperandA::READ>(i, 0); }
  __device__ static constexpr unsigned column(unsigned quad) { return quad * 16; }
};

// The sums as mma.sync holds them: of each fragment, columns 2 t and 2 t + 1 of row g, then of row g + 8.
using Fragments = float[FRAGMENTS_M][FRAGMENTS_N][4];

// sum += the products of the high parts, which come after the small ones.
template <unsigned CHUNKS>
__device__ __forceinline__ void multiply_large(
    float (&sum)[FRAGMENTS_N][4], const SplitTerms<2> (&a)[CHUNKS], const SplitTerms<1> (&b)[CHUNKS][FRAGMENTS_N]) {
#pragma unroll
  for (unsigned s = 0; s < CHUNKS; ++s) {
#pragma unroll
    for (unsigned pair = 0; pair < 2; ++pair) {
#pragma unroll
      for (unsigned j = 0; j < FRAGMENTS_N; ++j) mma_m16n8k8_tf32(sum[j], a[s].high[pair], b[s][j].high[pair]);
    }
  }
}

// One fragment row times all fragment columns: products of CHUNKS times 16 terms. They are added up by themselves,
// because the tensor core cuts off instead of rounding, unless high parts are all there is.
template <unsigned CHUNKS>
__device__ __forceinline__ void multiply_row(
    float (&sum)[FRAGMENTS_N][4], const SplitTerms<2> (&a)[CHUNKS], const SplitTerms<1> (&b)[CHUNKS][FRAGMENTS_N]) {
  if constexpr (PRODUCTS == 1) {
    multiply_large<CHUNKS>(sum, a, b);
    return;
  }
  float part[FRAGMENTS_N][4] = {};
#pragma unroll
  for (unsigned s = 0; s < CHUNKS; ++s) {
#pragma unroll
    for (unsigned product = 0; product < SMALL_PRODUCTS; ++product) {
#pragma unroll
      for (unsigned j = 0; j < FRAGMENTS_N; ++j) multiply_small(part[j], product, a[s], b[s][j]);
    }
  }
  multiply_large<CHUNKS>(part, a, b);
#pragma unroll
  for (unsigned j = 0; j < FRAGMENTS_N; ++j) {
#pragma unroll
    for (unsigned q = 0; q < 4; ++q) sum[j][q] += part[j][q];
  }
}

// The way in which both operands are split in this pass.
template <class Pass>
struct Passes {
  Pass a, b;
};

// The products of one step, PROMOTE_K terms at a time. A second pass is rare, so little code matters more.
template <class Pass>
__device__ __forceinline__ void multiply_step(
    Fragments& sum, Passes<Pass>& passes, const OperandA& operand_a, const OperandB& operand_b, const REAL* tile_a,
    const REAL* tile_b) {
  constexpr unsigned CHUNKS = Pass::IS_FIRST ? PROMOTE_K / TERMS : 1;
  constexpr int TURNS = Pass::IS_FIRST ? SLICE_TERMS / PROMOTE_K : 1;
  constexpr unsigned AT_ONCE = OperandA::READ < 4 ? 1 : 2;   // fragment rows that a read along m fills
#pragma unroll TURNS
  for (unsigned from = 0; from < SLICE_TERMS / TERMS; from += CHUNKS) {
    SplitTerms<1> b[CHUNKS][FRAGMENTS_N];
#pragma unroll
    for (unsigned s = 0; s < CHUNKS; ++s) {
      REAL terms[FRAGMENTS_N][4];
      operand_b.read<FRAGMENTS_N>(terms, tile_b, 0, from + s);
#pragma unroll
      for (unsigned j = 0; j < FRAGMENTS_N; ++j) b[s][j].split(passes.b, 0, terms[j]);
    }
#pragma unroll
    for (unsigned i = 0; i < FRAGMENTS_M; i += AT_ONCE) {
      REAL terms[CHUNKS][2 * AT_ONCE][4];
#pragma unroll
      for (unsigned s = 0; s < CHUNKS; ++s) operand_a.read<2 * AT_ONCE>(terms[s], tile_a, 2 * i, from + s);
#pragma unroll
      for (unsigned more = 0; more < AT_ONCE; ++more) {
        SplitTerms<2> a[CHUNKS];
#pragma unroll
        for (unsigned s = 0; s < CHUNKS; ++s) {
          a[s].split(passes.a, 0, terms[s][2 * more]);
          a[s].split(passes.a, 1, terms[s][2 * more + 1]);
        }
        multiply_row<CHUNKS>(sum[i + more], a, b);
      }
    }
  }
}

// The thread's share of the products of the block's steps.
template <class Pass>
__device__ __forceinline__ void add_products(
    Fragments& sum, Passes<Pass>& passes, OperandA& a, OperandB& b, const REAL* tiles_a, const REAL* tiles_b, unsigned steps) {
#pragma unroll
  for (unsigned stage = 0; stage < IN_FLIGHT; ++stage) {
    if (stage < steps) {
      a.copy(stage * OperandA::TILE_BYTES);
      b.copy(stage * OperandB::TILE_BYTES);
      a.advance();
      b.advance();
    }
    cp_async_commit_group();
  }
  unsigned reading = 0, writing = IN_FLIGHT % BUFFERS;
#pragma unroll 1
  for (unsigned step = 0; step < steps; ++step) {
    cp_async_wait_group<IN_FLIGHT - 1>();
    __syncthreads();   // this step is there, and the one before is read to its end
    if (MOST_STEPS > IN_FLIGHT && step + IN_FLIGHT < steps) {
      a.copy(writing * OperandA::TILE_BYTES);
      b.copy(writing * OperandB::TILE_BYTES);
      a.advance();
      b.advance();
    }
    cp_async_commit_group();
    multiply_step(
        sum, passes, a, b, tiles_a + reading * OperandA::TILE_ELEMENTS, tiles_b + reading * OperandB::TILE_ELEMENTS);
    reading = reading == BUFFERS - 1 ? 0 : reading + 1;
    writing = writing == BUFFERS - 1 ? 0 : writing + 1;
  }
}

// The same sums by rows and columns, neighbouring columns side by side.
__device__ __forceinline__ void reorder(Sums& sum, const Fragments& fragments) {
#pragma unroll
  for (unsigned i = 0; i < FRAGMENTS_M; ++i) {
#pragma unroll
    for (unsigned j = 0; j < FRAGMENTS_N; ++j) {
#pragma unroll
      for (unsigned q = 0; q < 4; ++q) sum[2 * i + q / 2][column_of(j, q % 2)] = fragments[i][j][q];
    }
  }
}
