// What becomes of a tile's sums when they have come to the end of k.
#pragma once
#include "common/real.cuh"
#include "common/recompute.cuh"
#include "common/split.cuh"
#include "ptx/warpgroup.cuh"
#include "wgmma/scheduler.cuh"

// Two finished sums, neighbours in a row: the first in an even column.
template <class Epilogue>
__device__ __forceinline__ void write_pair(
    const Epilogue& epilogue, unsigned row, unsigned column, float first, float second) {
  if (M % TILE_M != 0 && row >= M) return;
  if (N % TILE_N != 0 && column >= N) return;
  if constexpr (N % 2 == 0) {
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

  // The sum, or where it is infinite or NaN, the same by FMAs.
  __device__ __forceinline__ float recomputed(float sum, unsigned row, unsigned column) const {
    return is_finite(sum) || row >= M || column >= N ? sum : product_by_fma(A, B, row, column);
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

  __device__ __forceinline__ float4 recomputed(const Operands& operands, unsigned quad, const float4& sums) const {
    const unsigned i = row(quad), j = column(quad);
    return {operands.recomputed(sums.x, i, j),
            operands.recomputed(sums.y, i + SHARED_A, j + !SHARED_A),
            operands.recomputed(sums.z, i + !SHARED_A, j + SHARED_A),
            operands.recomputed(sums.w, i + 1, j + 1)};
  }
};

constexpr unsigned QUADS = BLOCKS_R * SUMS / 4;             // of a thread
constexpr unsigned AT_ONCE = QUADS % 8 == 0 ? 8 : QUADS;   // read together
__device__ __forceinline__ float4 quad_of(const float (&sum)[BLOCKS_R][SUMS], unsigned quad) {
  const float* from = &sum[quad / (SUMS / 4)][quad % (SUMS / 4) * 4];
  return {from[0], from[1], from[2], from[3]};
}

// Gives the epilogue the finished sums, those that are infinite or NaN computed again, which nearly always is a glance
// at all of them at once.
template <class Epilogue>
__device__ __forceinline__ void finish(
    const float (&sum)[BLOCKS_R][SUMS], const Work& work, const Operands& operands, const Epilogue& epilogue) {
  const QuadLayout layout(work);
  bool all_finite = true;
#pragma unroll
  for (unsigned i = 0; i < BLOCKS_R * SUMS; ++i) all_finite &= is_finite(sum[i / SUMS][i % SUMS]);
  if (all_finite) {
#pragma unroll
    for (unsigned quad = 0; quad < QUADS; ++quad) layout.write(epilogue, quad, quad_of(sum, quad));
  } else {
    float4 held[QUADS];   // in memory: a loop, since the code for it would else be there once a quad
#pragma unroll
    for (unsigned quad = 0; quad < QUADS; ++quad) held[quad] = quad_of(sum, quad);
#pragma unroll 1
    for (unsigned quad = 0; quad < QUADS; ++quad) {
      layout.write(epilogue, quad, layout.recomputed(operands, quad, held[quad]));
    }
  }
}

// Where in the workspace the warpgroup's sums lie of a part of a tile. A block has room for two: a tile that it does
// not begin, or that begins where it does, and one that it does not end.
__device__ __forceinline__ float4* part_at(
    unsigned char* workspace, const Work& work, unsigned part, unsigned warpgroup) {
  const unsigned block = blockIdx.x - work.part + part;
  const bool is_second = part == 0 && TileScheduler::start_of(block) < work.tile * UNITS;
  return reinterpret_cast<float4*>(partial_sums(workspace, TILES * CONSUMERS))
      + static_cast<size_t>((block * 2 + is_second) * CONSUMERS + warpgroup) * (QUADS * 128) + threadIdx.x % 128;
}

// Leaves the sums in the workspace. The last to come of the blocks that share the tile adds up what all have left, in
// the order of k, and gives that to the epilogue. Each warpgroup counts for itself, and uses its word of `is_last`.
template <class Epilogue>
__device__ __forceinline__ void finish_part(
    const float (&sum)[BLOCKS_R][SUMS], const Work& work, unsigned warpgroup, unsigned char* workspace,
    unsigned* is_last, const Operands& operands, const Epilogue& epilogue) {
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
      layout.write(epilogue, first + i, layout.recomputed(operands, first + i, total[i]));
    }
  }
}
