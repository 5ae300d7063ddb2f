// Finishes a tile's sums at the end of k, or of the block's part of it.
#pragma once
#include "common/real.cuh"
#include "common/split.cuh"
#include "parts/ring.cuh"
#include "parts/wgmma.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/warpgroup.cuh"

// x times 2^exponent. MILD: both halves of it are exponents of normal numbers.
template <bool MILD>
__device__ __forceinline__ float times_power(float x, int row, int column) {
  if constexpr (MILD) return x * power_of_two(row) * power_of_two(column);
  const int exponent = row + column, half = max(exponent / 2, -126);
  return x * power_of_two(half) * power_of_two(max(exponent - exponent / 2, -126));
}

// Whether a thread's registers suffice for the scales of its columns while it multiplies.
constexpr bool SCALES_AHEAD = SPLIT_K == 1 && TILE_N <= 176;

// Undoes the scales of a thread's sums and passes them on. Of each 8 columns it has 2 in its row and 2 in the row 8 below. It is
// made before the tile is multiplied: scales are on their way meanwhile, and nobody waits for them at the end.
template <class Epilogue>
struct TileWriter {
  const Epilogue epilogue;
  const int* columns;
  unsigned row, column;
  unsigned staging;   // where the warp's sums pass through on their way to memory
  bool has_all;   // quads: with an odd number of them the second warpgroup that shares them has one less
  bool has_row[2];
  int row_scale[2];
  int2 scales_ahead[SCALES_AHEAD ? FINAL_QUADS : 1];

  __device__ __forceinline__ TileWriter(
      const Epilogue& matrices, const Memory& memory, const Tile& tile, unsigned exchange)
      : epilogue(matrices.of_matrix(tile.matrix)) {
    const unsigned thread = read_tid_x(), in_rows = SHARERS == 1 ? thread : thread % 128;
    row = tile.row * TILE_M + in_rows / 32 * 16 + thread % 32 / 4;
    column = tile.column * TILE_N + thread % 4 * 2 + (SHARERS == 1 ? 0 : thread / 128 * FINAL_QUADS * 8);
    staging = exchange + EXCHANGED + thread / 32 * STAGED_WARP;
    has_all = SHARERS == 1 || QUADS % SHARERS == 0 || thread < 128;
    const int* rows = memory.scales<OperandA>() + static_cast<size_t>(tile.matrix_of<OperandA>()) * M;
    columns = memory.scales<OperandB>() + static_cast<size_t>(tile.matrix_of<OperandB>()) * N;
#pragma unroll
    for (unsigned below = 0; below < 2; ++below) {
      has_row[below] = M_DIVIDES(TILE_M) && CLUSTER == 1 || row + 8 * below < M;
      row_scale[below] = has_row[below] ? __ldg(rows + row + 8 * below) : 0;
    }
    if constexpr (SCALES_AHEAD) {
#pragma unroll
      for (unsigned i = 0; i < FINAL_QUADS; ++i) scales_ahead[i] = column_scales(column + i * 8);
    }
  }

  // Some eights of columns, the first of which has that number.
  template <bool MILD, unsigned COUNT>
  __device__ __forceinline__ void write(unsigned eight, const float4 (&sums)[COUNT]) const {
    int2 scales[COUNT];   // all at once: behind a store, or a branch, each would be waited for by itself
#pragma unroll
    for (unsigned i = 0; i < COUNT; ++i) {
      if constexpr (SCALES_AHEAD && COUNT == FINAL_QUADS) scales[i] = scales_ahead[i];
      else scales[i] = column_scales(column + (eight + i) * 8);
    }
    if constexpr (!BY_ROWS) {
#pragma unroll
      for (unsigned i = 0; i < COUNT; ++i) write_pairs<MILD>(eight + i, sums[i], scales[i]);
    } else {
#pragma unroll
      for (unsigned i = 0; i < COUNT; i += 4) {
        write_rows<MILD, tw::min(COUNT, 4u)>(eight + i, tw::min(COUNT - i, 4u), sums + i, scales + i);
      }
    }
  }

 private:
  // Scales of columns n and n + 1, clamped to the last. Not waited for: the first use waits for the load.
  __device__ __forceinline__ int2 column_scales(unsigned n) const {
    if constexpr (PAIRS) {
      return __ldg(reinterpret_cast<const int2*>(columns + tw::min(n, N - 2)));
    } else {
      return make_int2(__ldg(columns + tw::min(n, N - 1)), __ldg(columns + tw::min(n + 1, N - 1)));
    }
  }

  // Whether there is that column of C in that eight. An eight beyond the warpgroup's own has none.
  __device__ __forceinline__ bool has(unsigned eight, unsigned n) const {
    return (N % TILE_N == 0 || n < N) && (has_all || eight + 1 < FINAL_QUADS);
  }

  // Two of the four sums, the thread's row's or the row below's, without the scales of rows and columns.
  template <bool MILD>
  __device__ __forceinline__ Pack<2> unscaled(const float4& sums, unsigned below, const int2& scales) const {
    return Pack<2>{times_power<MILD>(below ? sums.z : sums.x, -row_scale[below], -scales.x),
                   times_power<MILD>(below ? sums.w : sums.y, -row_scale[below], -scales.y)};
  }

  template <bool MILD>
  __device__ __forceinline__ void write_pairs(unsigned eight, const float4& sums, const int2& scales) const {
    const unsigned n = column + eight * 8;
    if (!has(eight, n)) return;
#pragma unroll
    for (unsigned below = 0; below < 2; ++below) {
      if (has_row[below]) epilogue.template write<2>(row + 8 * below, n, unscaled<MILD>(sums, below, scales));
    }
  }

  // Writes up to four eights row by row, so that a warp stores neighbours.
  template <bool MILD, unsigned MOST>
  __device__ __forceinline__ void write_rows(
      unsigned eight, unsigned count, const float4* sums, const int2* scales) const {
    const unsigned lane = threadIdx.x % 32, pair = lane % 4 * 2, first = column - pair + eight * 8;
    __syncwarp();   // what was there has been read
#pragma unroll
    for (unsigned i = 0; i < MOST; ++i) {
      if (i >= count) break;
#pragma unroll
      for (unsigned below = 0; below < 2; ++below) {
        const Pack<2> both = unscaled<MILD>(sums[i], below, scales[i]);
        const unsigned at = staging + ((lane / 4 + 8 * below) * STAGED_ROW + i * 8 + pair) * 4;
        if constexpr (ROWS_ALIGNED) st_shared_v2(at, both.lane[0], both.lane[1]);
        else st_shared<0>(at, both.lane[0]), st_shared<4>(at, both.lane[1]);
      }
    }
    __syncwarp();
    if constexpr (ROWS_ALIGNED) {   // 16 bytes a lane, four rows at a time
      const unsigned along = lane % 8 * 4, below = lane / 8;
      if (along >= count * 8 || !has(eight + along / 8, first + along)) return;
      float4 four[4];
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) four[i] = ld_shared_v4(staging + ((i * 4 + below) * STAGED_ROW + along) * 4);
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned line = row - lane / 4 + i * 4 + below;
        const Pack<4> pack = {four[i].x, four[i].y, four[i].z, four[i].w};
        if (line < M) epilogue.template write<4>(line, first + along, pack);
      }
      return;
    }
    if (lane >= count * 8 || !has(eight + lane / 8, first + lane)) return;
#pragma unroll
    for (unsigned i = 0; i < 16; ++i) {
      float sum;
      ld_shared(sum, staging + (i * STAGED_ROW + lane) * 4);
      if (row - lane / 4 + i < M) epilogue.template write<1>(row - lane / 4 + i, first + lane, Pack<1>{sum});
    }
  }
};

__device__ __forceinline__ float4 quad_of(const float (&sum)[SUMS], unsigned quad) {
  return quad < QUADS ? make_float4(sum[quad * 4], sum[quad * 4 + 1], sum[quad * 4 + 2], sum[quad * 4 + 3])
                      : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// The sums that the thread finishes: its own, or, where two warpgroups share rows, its share of their columns, for which
// each gives the other what is not its own.
__device__ __forceinline__ void final_quads(
    const float (&sum)[SUMS], unsigned exchange, unsigned share, float4 (&quads)[FINAL_QUADS]) {
  if constexpr (SHARERS == 1) {
#pragma unroll
    for (unsigned quad = 0; quad < QUADS; ++quad) quads[quad] = quad_of(sum, quad);
  } else {
    const unsigned mine = exchange + (share * FINAL_QUADS * 128 + threadIdx.x % 128) * 16;
    const unsigned other = exchange + ((1 - share) * FINAL_QUADS * 128 + threadIdx.x % 128) * 16;
    two_warpgroups_sync();   // what was exchanged before has been read
#pragma unroll
    for (unsigned quad = 0; quad < FINAL_QUADS; ++quad) {
      const float4 left = quad_of(sum, quad), right = quad_of(sum, FINAL_QUADS + quad);
      quads[quad] = share ? right : left;
      const float4 given = share ? left : right;
      st_shared_v4(mine + quad * 2048, __float_as_uint(given.x), __float_as_uint(given.y), __float_as_uint(given.z),
                   __float_as_uint(given.w));
    }
    two_warpgroups_sync();
#pragma unroll
    for (unsigned quad = 0; quad < FINAL_QUADS; ++quad) {
      const float4 taken = ld_shared_v4(other + quad * 2048);
      quads[quad].x += taken.x, quads[quad].y += taken.y, quads[quad].z += taken.z, quads[quad].w += taken.w;
    }
  }
}

// Finishes a tile that is the team's alone.
template <class Epilogue>
__device__ __forceinline__ void finish(
    const TileWriter<Epilogue>& writer, bool is_extreme, const float4 (&sum)[FINAL_QUADS]) {
  if (!is_extreme) {
    writer.template write<true>(0, sum);
  } else {
    float4 held[FINAL_QUADS];   // in memory: a loop, since the code for it would else be there once a quad
#pragma unroll
    for (unsigned quad = 0; quad < FINAL_QUADS; ++quad) held[quad] = sum[quad];
#pragma unroll 1
    for (unsigned quad = 0; quad < FINAL_QUADS; ++quad) {
      const float4 one[1] = {held[quad]};
      writer.template write<false>(quad, one);
    }
  }
}

// Where the sums of tiles that are shared begin, behind their counters or, where those have a place of their own, all else.
__device__ __forceinline__ Sum* tile_sums(const Memory& memory) {
#ifdef M_AT_LAUNCH
  return reinterpret_cast<Sum*>(memory.workspace + shared_tiles_at());
#else
  return partial_sums(memory.workspace + TILE_COUNTERS_AT, TILES * CLUSTER * MULTIPLIERS);
#endif
}

// Where in the workspace the warpgroup's sums lie of a part of a tile. A block has room for two: a tile that it does
// not begin, or that begins where it does, and one that it does not end.
__device__ __forceinline__ float4* part_at(
    const Memory& memory, unsigned tile, unsigned team, bool is_first_part, unsigned rank, unsigned warpgroup) {
  const bool is_second = is_first_part && TileScheduler::start_of(team) < tile * STEPS;
  const unsigned slot = ((team * CLUSTER + rank) * 2 + is_second) * MULTIPLIERS + warpgroup;
  return reinterpret_cast<float4*>(tile_sums(memory))
      + static_cast<size_t>(slot) * (FINAL_QUADS * 128) + threadIdx.x % 128;
}

// Leaves the sums in the workspace, where several teams share the tile. The last to come adds up what all have left, in
// the order of k, and finishes the tile. Each warpgroup counts for itself, and uses its word of `is_last`.
template <class Epilogue>
__device__ __forceinline__ void finish_part(
    const TileWriter<Epilogue>& writer, const Memory& memory, unsigned tile, unsigned rank, unsigned warpgroup,
    unsigned* is_last, const float4 (&sum)[FINAL_QUADS]) {
  const unsigned first = TileScheduler::team_of(tile * STEPS), team = TileScheduler::team();
  const unsigned parts = TileScheduler::team_of(tile * STEPS + (STEPS - 1)) - first + 1;
  float4* const mine = part_at(memory, tile, team, team == first, rank, warpgroup);
#pragma unroll
  for (unsigned quad = 0; quad < FINAL_QUADS; ++quad) __stcg(mine + quad * 128, sum[quad]);   // neighbours touch
  __threadfence();
  warpgroup_sync(warpgroup);
  if (threadIdx.x % 128 == 0) {
    unsigned* const counter = reinterpret_cast<unsigned*>(memory.workspace + TILE_COUNTERS_AT)
        + (tile * CLUSTER + rank) * MULTIPLIERS + warpgroup;
    is_last[warpgroup] = atomicInc(counter, parts - 1) == parts - 1;
    __threadfence();
  }
  warpgroup_sync(warpgroup);
  if (!is_last[warpgroup]) return;
  constexpr unsigned AT_ONCE = FINAL_QUADS % 8 == 0   ? 8   // read together
                               : FINAL_QUADS % 4 == 0 ? 4
                               : FINAL_QUADS % 3 == 0 ? 3
                               : FINAL_QUADS % 2 == 0 ? 2
                                                      : 1;
  static_assert(FINAL_QUADS % AT_ONCE == 0, "what is read together is the thread's own");
#pragma unroll 1
  for (unsigned quad = 0; quad < FINAL_QUADS; quad += AT_ONCE) {
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
    writer.template write<false>(quad, total);
  }
}
