// What becomes of a tile's sums when they have come to the end of k, or of the block's part of it.
#pragma once
#include "common/real.cuh"
#include "common/split.cuh"
#include "parts/ring.cuh"
#include "parts/wgmma.cuh"
#include "ptx/warpgroup.cuh"

// x times 2^exponent. MILD: both halves of it are exponents of normal numbers.
template <bool MILD>
__device__ __forceinline__ float times_power(float x, int row, int column) {
  if constexpr (MILD) return x * power_of_two(row) * power_of_two(column);
  const int exponent = row + column, half = max(exponent / 2, -126);
  return x * power_of_two(half) * power_of_two(max(exponent - exponent / 2, -126));
}

// Undoes the scales of a thread's sums and passes them on. Of each 8 columns it has 2 in its row and 2 in the row 8 below.
template <class Epilogue>
struct TileWriter {
  const Epilogue epilogue;
  const int* columns;
  unsigned row, column;
  bool has_row[2];
  int row_scale[2];

  __device__ __forceinline__ TileWriter(const Epilogue& matrices, const Memory& memory, const Tile& tile)
      : epilogue(matrices.of_matrix(tile.matrix)) {
    const unsigned thread = read_tid_x();
    row = tile.row * TILE_M + thread / 32 * 16 + thread % 32 / 4;
    column = tile.column * TILE_N + thread % 4 * 2;
    const int* rows = memory.scales<OperandA>() + static_cast<size_t>(tile.matrix_of<OperandA>()) * M;
    columns = memory.scales<OperandB>() + static_cast<size_t>(tile.matrix_of<OperandB>()) * N;
#pragma unroll
    for (unsigned below = 0; below < 2; ++below) {
      has_row[below] = M % TILE_M == 0 && CLUSTER == 1 || row + 8 * below < M;
      row_scale[below] = has_row[below] ? -__ldg(rows + row + 8 * below) : 0;
    }
  }

  template <bool MILD>
  __device__ __forceinline__ void write(unsigned eight, const float4& sums) const {
    const unsigned n = column + eight * 8;
    const bool has_column = N % TILE_N == 0 || n < N, has_next = N % 2 == 0 ? has_column : n + 1 < N;
    // Read by __ldg, so that no store to C has to come first.
    const int scale = has_column ? -__ldg(columns + n) : 0, next_scale = has_next ? -__ldg(columns + n + 1) : 0;
#pragma unroll
    for (unsigned below = 0; below < 2; ++below) {
      if (!has_row[below] || !has_column) continue;
      const float x = times_power<MILD>(below ? sums.z : sums.x, row_scale[below], scale);
      const float y = times_power<MILD>(below ? sums.w : sums.y, row_scale[below], next_scale);
      if constexpr (N % 2 == 0 && LDC % 2 == 0 && (BATCH == 1 || STRIDE_C % 2 == 0)) {
        epilogue.template write<2>(row + 8 * below, n, Pack<2>{x, y});
      } else {
        epilogue.template write<1>(row + 8 * below, n, Pack<1>{x});
        if (has_next) epilogue.template write<1>(row + 8 * below, n + 1, Pack<1>{y});
      }
    }
  }
};

constexpr unsigned QUADS = SUMS / 4;   // of a thread
__device__ __forceinline__ float4 quad_of(const float (&sum)[SUMS], unsigned quad) {
  return make_float4(sum[quad * 4], sum[quad * 4 + 1], sum[quad * 4 + 2], sum[quad * 4 + 3]);
}

// Finishes a tile that is the team's alone.
template <class Epilogue>
__device__ __forceinline__ void finish(
    const Epilogue& epilogue, const Memory& memory, const Tile& tile, bool is_extreme, const float (&sum)[SUMS]) {
  const TileWriter<Epilogue> writer(epilogue, memory, tile);
  if (!is_extreme) {
#pragma unroll
    for (unsigned quad = 0; quad < QUADS; ++quad) writer.template write<true>(quad, quad_of(sum, quad));
  } else {
    float4 held[QUADS];   // in memory: a loop, since the code for it would else be there once a quad
#pragma unroll
    for (unsigned quad = 0; quad < QUADS; ++quad) held[quad] = quad_of(sum, quad);
#pragma unroll 1
    for (unsigned quad = 0; quad < QUADS; ++quad) writer.template write<false>(quad, held[quad]);
  }
}

// Where in the workspace the warpgroup's sums lie of a part of a tile. A block has room for two: a tile that it does
// not begin, or that begins where it does, and one that it does not end.
__device__ __forceinline__ float4* part_at(
    const Memory& memory, unsigned tile, unsigned team, bool is_first_part, unsigned rank, unsigned warpgroup) {
  const bool is_second = is_first_part && TileScheduler::start_of(team) < tile * STEPS;
  const unsigned slot = ((team * CLUSTER + rank) * 2 + is_second) * MULTIPLIERS + warpgroup;
  return reinterpret_cast<float4*>(partial_sums(memory.workspace + SHARED_TILES_AT, TILES * CLUSTER * MULTIPLIERS))
      + static_cast<size_t>(slot) * (QUADS * 128) + threadIdx.x % 128;
}

// Leaves the sums in the workspace, where several teams share the tile. The last to come adds up what all have left, in
// the order of k, and finishes the tile. Each warpgroup counts for itself, and uses its word of `is_last`.
template <class Epilogue>
__device__ __forceinline__ void finish_part(
    const Epilogue& epilogue, const Memory& memory, unsigned tile, unsigned rank, unsigned warpgroup,
    unsigned* is_last, const float (&sum)[SUMS]) {
  const unsigned first = TileScheduler::team_of(tile * STEPS), team = TileScheduler::team();
  const unsigned parts = TileScheduler::team_of(tile * STEPS + (STEPS - 1)) - first + 1;
  float4* const mine = part_at(memory, tile, team, team == first, rank, warpgroup);
#pragma unroll
  for (unsigned quad = 0; quad < QUADS; ++quad) __stcg(mine + quad * 128, quad_of(sum, quad));   // neighbours touch
  __threadfence();
  warpgroup_sync(warpgroup);
  if (threadIdx.x % 128 == 0) {
    unsigned* const counter = reinterpret_cast<unsigned*>(memory.workspace + SHARED_TILES_AT)
        + (tile * CLUSTER + rank) * MULTIPLIERS + warpgroup;
    is_last[warpgroup] = atomicInc(counter, parts - 1) == parts - 1;
    __threadfence();
  }
  warpgroup_sync(warpgroup);
  if (!is_last[warpgroup]) return;
  const TileWriter<Epilogue> writer(epilogue, memory, Tile(tile, rank));
  constexpr unsigned AT_ONCE = QUADS % 8 == 0 ? 8 : QUADS % 4 == 0 ? 4 : QUADS % 3 == 0 ? 3 : 2;   // read together
  static_assert(QUADS % AT_ONCE == 0, "what is read together is the thread's own");
#pragma unroll 1
  for (unsigned quad = 0; quad < QUADS; quad += AT_ONCE) {
    float4 total[AT_ONCE] = {};
#pragma unroll 2
    for (unsigned part = 0; part < parts; ++part) {
      const float4* const from = part_at(memory, tile, first + part, part == 0, rank, warpgroup) + quad * 128;
#pragma unroll
      for (unsigned i = 0; i < AT_ONCE; ++i) {
        const float4 some = __ldcg(from + i * 128);
        total[i].x += some.x, total[i].y += some.y, total[i].z += some.z, total[i].w += some.w;
      }
    }
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; ++i) writer.template write<false>(quad + i, total[i]);
  }
}
