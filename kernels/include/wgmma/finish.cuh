// Finishes a tile's sums at the end of k: adds up parts, or stores C.
#pragma once
#include "common/real.cuh"
#include "common/second_pass.cuh"
#include "common/split.cuh"
#include "ptx/warpgroup.cuh"
#include "wgmma/scheduler.cuh"

// Two finished sums, neighbours in a row: the first in an even column.
template <class Epilogue>
__device__ __forceinline__ void write_pair(
    const Epilogue& epilogue, unsigned row, unsigned column, float first, float second) {
  if (M % TEAM_M != 0 && row >= M) return;
  if (N % TEAM_N != 0 && column >= N) return;
  if constexpr (N % 2 == 0 && LDC % 2 == 0 && (BATCH == 1 || STRIDE_C % 2 == 0)) {
    epilogue.template write<2>(row, column, Pack<2>{first, second});
  } else {
    epilogue.template write<1>(row, column, Pack<1>{first});
    if (column + 1 < N) epilogue.template write<1>(row, column + 1, Pack<1>{second});
  }
}

// Both operands in memory.
struct Operands {
  const float* A;
  const float* B;

  __device__ __forceinline__ Operands of_matrix(unsigned matrix) const {
    return {A + matrix * STRIDE_A, B + matrix * STRIDE_B};
  }

  // The sum over the k of a part of a tile, or where it is infinite or NaN, the same by FMAs.
  __device__ __forceinline__ float recomputed(
      float sum, unsigned row, unsigned column, unsigned first_k, unsigned end_k) const {
    return is_finite(sum) || row >= M || column >= N ? sum : product_by_fma(A, B, row, column, first_k, end_k);
  }
};

// Where a thread's sums lie in the tile. Of a quad, four sums that follow each other, two are of line r, two of line r
// + 1 of what went through registers.
struct QuadLayout {
  unsigned m, n;
  __device__ __forceinline__ explicit QuadLayout(const Work& work) {
    const unsigned thread = read_tid_x();
    const unsigned lane = thread % 32, s = lane % 4 * 2;
    const unsigned r = thread / 128 * (64 * BLOCKS_R) + thread / 32 % 4 * 16 + lane / 4 * 2;
    m = work.m + (SHARED_A ? s : r);
    n = work.n + (SHARED_A ? r : s);
  }

  // The first row and column of a quad, which is two of either: the sums x y z w are, with SHARED_A, by columns.
  __device__ __forceinline__ unsigned row(unsigned quad) const {
    return m + (SHARED_A ? quad % (SUMS / 4) * 8 : quad / (SUMS / 4) * 64);
  }
  __device__ __forceinline__ unsigned column(unsigned quad) const {
    return n + (SHARED_A ? quad / (SUMS / 4) * 64 : quad % (SUMS / 4) * 8);
  }

  template <class Epilogue>
  __device__ __forceinline__ void write(const Epilogue& epilogue, unsigned quad, const float4& sums) const {
    write_pair(epilogue, row(quad), column(quad), sums.x, SHARED_A ? sums.z : sums.y);
    write_pair(epilogue, row(quad) + 1, column(quad), SHARED_A ? sums.y : sums.z, sums.w);
  }

  __device__ __forceinline__ float4 recomputed(
      const Operands& operands, unsigned quad, const float4& sums, unsigned first_k, unsigned end_k) const {
    const unsigned i = row(quad), j = column(quad);
    return {operands.recomputed(sums.x, i, j, first_k, end_k),
            operands.recomputed(sums.y, i + SHARED_A, j + !SHARED_A, first_k, end_k),
            operands.recomputed(sums.z, i + !SHARED_A, j + SHARED_A, first_k, end_k),
            operands.recomputed(sums.w, i + 1, j + 1, first_k, end_k)};
  }
};

constexpr unsigned QUADS = BLOCKS_R * SUMS / 4;             // of a thread
constexpr unsigned AT_ONCE = QUADS % 8 == 0 ? 8 : QUADS;   // read together
__device__ __forceinline__ float4 quad_of(const float (&sum)[BLOCKS_R][SUMS], unsigned quad) {
  const float* from = &sum[quad / (SUMS / 4)][quad % (SUMS / 4) * 4];
  return {from[0], from[1], from[2], from[3]};
}

// After a second pass: the sums without the operands' scales and, where sums may have overflowed, infinite ones and NaN
// computed by FMAs.
__device__ __forceinline__ void mend(
    float (&sum)[BLOCKS_R][SUMS], float unscale, bool is_certain, const Work& work, unsigned steps,
    const Operands& operands) {
  const QuadLayout layout(work);
  const unsigned first_k = work.first_step * STEP_K, end_k = tw::min(K, first_k + steps * STEP_K);
  float4 held[QUADS];   // in memory: a loop, since the code for it would else be there once a quad
#pragma unroll
  for (unsigned quad = 0; quad < QUADS; ++quad) held[quad] = quad_of(sum, quad);
#pragma unroll 1
  for (unsigned quad = 0; quad < QUADS; ++quad) {
    float4 all = held[quad];
    all.x *= unscale, all.y *= unscale, all.z *= unscale, all.w *= unscale;
    held[quad] = is_certain ? all : layout.recomputed(operands, quad, all, first_k, end_k);
  }
#pragma unroll
  for (unsigned quad = 0; quad < QUADS; ++quad) {
    float* to = &sum[quad / (SUMS / 4)][quad % (SUMS / 4) * 4];
    to[0] = held[quad].x, to[1] = held[quad].y, to[2] = held[quad].z, to[3] = held[quad].w;
  }
}

// Gives the epilogue the finished sums.
template <class Epilogue>
__device__ __forceinline__ void finish(
    const float (&sum)[BLOCKS_R][SUMS], const Work& work, const Epilogue& epilogue) {
  const QuadLayout layout(work);
#pragma unroll
  for (unsigned quad = 0; quad < QUADS; ++quad) layout.write(epilogue, quad, quad_of(sum, quad));
}

// Where in the workspace the warpgroup's sums lie of a part of a tile. A block has room for two: a tile that it does
// not begin, or that begins where it does, and one that it does not end.
__device__ __forceinline__ float4* part_at(
    unsigned char* workspace, const Work& work, unsigned part, unsigned warpgroup) {
  const unsigned block = blockIdx.x - work.part + part;
  const bool is_second = part == 0 && TileScheduler::start_of(block) < work.tile * UNITS;
  return reinterpret_cast<float4*>(partial_sums(workspace, ALL_TILES * CONSUMERS))
      + static_cast<size_t>((block * 2 + is_second) * CONSUMERS + warpgroup) * (QUADS * 128) + threadIdx.x % 128;
}

// Leaves the sums in the workspace. The last to come of the blocks that share the tile adds up what all have left, in
// the order of k, and gives that to the epilogue. Each warpgroup counts for itself, and uses its word of `is_last`.
template <class Epilogue>
__device__ __forceinline__ void finish_part(
    const float (&sum)[BLOCKS_R][SUMS], const Work& work, unsigned warpgroup, unsigned char* workspace,
    unsigned* is_last, const Epilogue& epilogue) {
  float4* const mine = part_at(workspace, work, work.part, warpgroup);
#pragma unroll
  for (unsigned quad = 0; quad < QUADS; ++quad) __stcg(mine + quad * 128, quad_of(sum, quad));   // neighbours touch
  __threadfence();
  warpgroup_sync(warpgroup);
  if (threadIdx.x % 128 == 0) {
    unsigned* const counter = reinterpret_cast<unsigned*>(workspace) + work.tile * CONSUMERS + warpgroup;
    is_last[warpgroup] = atomicInc(counter, work.parts - 1) == work.parts - 1;
    __threadfence();
  }
  warpgroup_sync(warpgroup);
  if (!is_last[warpgroup]) return;
  const QuadLayout layout(work);
#pragma unroll 1
  for (unsigned first = 0; first < QUADS; first += AT_ONCE) {
    float4 total[AT_ONCE] = {};
#pragma unroll 2
    for (unsigned part = 0; part < work.parts; ++part) {
      const float4* const from = part_at(workspace, work, part, warpgroup) + first * 128;
#pragma unroll
      for (unsigned i = 0; i < AT_ONCE; ++i) {
        const float4 some = __ldcg(from + i * 128);
        total[i].x += some.x, total[i].y += some.y, total[i].z += some.z, total[i].w += some.w;
      }
    }
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; ++i) {
      layout.write(epilogue, first + i, total[i]);
    }
  }
}
