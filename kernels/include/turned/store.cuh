// A tile's finished sums on their way to memory. A warp has 16 columns of C by 8 rows in a group of sums: they are written to
// shared memory transposed, 64 columns of a warpgroup side by side, and stored from there by the tensor map while the
// warpgroup goes on. Chunks of 16 bytes are swizzled as the map says, so that writes are free of bank conflicts.
#pragma once
#include "turned/ring.cuh"

#include "ptx/shared_memory.cuh"
#include "ptx/store_boxes.cuh"

// A sum, finished. What is beyond C is not stored: it gets what is asked for the last row or column.
template <class Epilogue>
__device__ __forceinline__ float finished(const Epilogue& epilogue, unsigned row, unsigned column, float sum) {
  const unsigned inside_m = M_DIVIDES(TEAM_M) ? row : tw::min(row, M - 1);
  const unsigned inside_n = N % TEAM_N == 0 ? column : tw::min(column, N - 1);
  return epilogue.template finished<1>(inside_m, inside_n, Pack<1>{sum}).lane[0];
}

// By a warp: a group's sums, of rows lane % 4 * 2 and the next, and of columns lane / 4 and, 8 on. PAIRED, `others` are those of
// the second matrix.
template <class Epilogue>
__device__ __forceinline__ void finish_group(
    const Epilogue& epilogue, unsigned row, unsigned column, const float* sums, const float* others, float (&out)[4]) {
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    if constexpr (PAIRED) out[i] = Epilogue::combined(sums[i], others[i]);
    else out[i] = finished(epilogue, row + i % 2, column + i / 2 * 8, sums[i]);
  }
}

// The first `count` of two groups to `target`, a piece. `row` and `column` are the thread's first.
template <class Epilogue>
__device__ __forceinline__ void write_piece(
    const Epilogue& epilogue, unsigned row, unsigned column, const float* sums, const float* others, unsigned count,
    unsigned target) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  float out[2][4] = {};
#pragma unroll
  for (unsigned group = 0; group < 2; ++group) {
    if (group < count) finish_group(epilogue, row + group * 8, column, sums + group * 4, others + group * 4, out[group]);
  }
  if constexpr (sizeof(Stored) == 2) {
    unsigned words[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) words[i] = cvt_rn_x2<IS_BFLOAT16>(out[i / 2][i % 2 * 2], out[i / 2][i % 2 * 2 + 1]);
    const unsigned line = lane / 16 * 8 + lane % 8, chunk = warp * 2 + lane / 8 % 2;
    stmatrix_x4_trans(target + line * LINE_BYTES + (chunk ^ lane % 8) * 16, words);
  } else {   // 32 columns, and then 32 more
    const unsigned in_line = warp % 2 * 16 + lane / 4;
    target += warp / 2 * (PIECE_M * LINE_BYTES) + in_line % 4 * 4;
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) {
      const unsigned line = i / 4 * 8 + lane % 4 * 2 + i % 2, chunk = in_line / 4 + i / 2 % 2 * 2;
      st_shared<0>(target + line * LINE_BYTES + (chunk ^ line % 8) * 16, out[i / 4][i % 4]);
    }
  }
}

// Pieces of a warpgroup, of so many groups of rows of each of its blocks of 64 columns of C.
__device__ constexpr unsigned pieces(unsigned groups) { return BLOCKS_N / FACTORS * tw::ceil_div(groups, 2u); }

// Calls `store(piece, row, column, groups, target)` for the batch's pieces that are not outside of C as a whole: `count` groups, at
// most COUNT, of rows from `row` on, and columns from `first_column` on; the first piece's memory is at `buffer`.
template <unsigned COUNT, unsigned BATCH, class Store>
__device__ __forceinline__ void for_pieces(
    unsigned batch, unsigned row, unsigned count, unsigned first_column, unsigned buffer, const Store& store) {
  constexpr unsigned ALONG_M = tw::ceil_div(COUNT, 2u);
#pragma unroll
  for (unsigned i = 0; i < BATCH; ++i) {
    const unsigned piece = batch + i, group = piece % ALONG_M * 2;
    if (piece >= pieces(COUNT)) break;
    const unsigned first = row + group * 8, column = first_column + piece / ALONG_M * 64;
    const unsigned held = tw::min(count - tw::min(group, count), 2u);
    if (held == 0 || (!M_DIVIDES(TEAM_M) && first >= M) || (N % TEAM_N != 0 && column >= N)) continue;
    store(piece, first, column, held, buffer + i * PIECE_BYTES);
  }
}

// By a warpgroup: `count` groups, at most COUNT, of rows from `row` on, BATCH pieces at a time. It has two buffers of so many at
// `staging`, which take turns; or one for all, which nobody reads any more.
template <unsigned COUNT, unsigned BATCH, bool IN_TURNS, class Epilogue>
__device__ __forceinline__ void store_groups(
    const Epilogue& epilogue, const TensorMap& map_c, const float (&sum)[BLOCKS_N][COUNT * 4], unsigned row, unsigned count,
    const Tile& tile, unsigned warpgroup, unsigned staging, unsigned& turn) {
  constexpr unsigned PIECES = pieces(COUNT), ALONG_M = tw::ceil_div(COUNT, 2u);
  const unsigned lane = threadIdx.x % 32, in_block = threadIdx.x / 32 % 4 * 16 + lane / 4;
  const unsigned first_column = tile.n + warpgroup * (BLOCKS_N / FACTORS * 64);
  const bool stores = threadIdx.x % 128 == 0;
#pragma unroll
  for (unsigned batch = 0; batch < PIECES; batch += BATCH) {
    if constexpr (IN_TURNS) {
      if (stores) wait_for_stores_to_read<1>();
      warpgroup_sync(warpgroup);
    }
    for_pieces<COUNT, BATCH>(batch, row, count, first_column, staging + turn,
                             [&](unsigned piece, unsigned first, unsigned column, unsigned, unsigned target) {
      const unsigned group = piece % ALONG_M * 2, most = tw::min(COUNT - group, 2u), block = piece / ALONG_M * FACTORS;
      const float* const sums = sum[block] + group * 4, * const others = sum[block + PAIRED] + group * 4;
      write_piece(epilogue, first + lane % 4 * 2, column + in_block, sums, others, most, target);
    });
    fence_proxy_async();
    warpgroup_sync(warpgroup);
    if (stores) {
      for_pieces<COUNT, BATCH>(batch, row, count, first_column, staging + turn,
                               [&](unsigned, unsigned first, unsigned column, unsigned held, unsigned target) {
#pragma unroll
        for (unsigned line = 0; line < PIECE_M; line += BOX_M) {
#pragma unroll
          for (unsigned beside = 0; beside < 64; beside += BOX_N) {
            if (line / 8 >= held || (N % TEAM_N != 0 && column + beside >= N)) break;
            const unsigned from = target + beside / BOX_N * (PIECE_M * LINE_BYTES) + line * LINE_BYTES;
            start_box(map_c, {column + beside, first + line, tile.matrix}, from);
          }
        }
      });
      commit_boxes();
    }
    turn ^= BATCH * PIECE_BYTES;
  }
}

// Whether the ring, but for what lies in its first `taken` bytes, has room for all that the block stores of so many groups.
__device__ constexpr bool fits_ring(unsigned groups, unsigned taken) {
  return taken + MULTIPLIERS * pieces(groups) * PIECE_BYTES <= STAGES * STAGE_BYTES;
}

// By a warpgroup behind its block's last step, when the ring is read to its end by all: the same at once through the ring's
// memory from `taken` bytes on, or where that is too small in batches.
template <unsigned COUNT, unsigned TAKEN, class Epilogue>
__device__ __forceinline__ void store_last(
    const Epilogue& epilogue, const TensorMap& map_c, const float (&sum)[BLOCKS_N][COUNT * 4], unsigned row, unsigned count,
    const Tile& tile, unsigned warpgroup, unsigned ring, unsigned staging, unsigned& turn) {
  if constexpr (fits_ring(COUNT, TAKEN)) {
    const unsigned here = ring + TAKEN + warpgroup * (pieces(COUNT) * PIECE_BYTES);
    unsigned none = 0;
    store_groups<COUNT, pieces(COUNT), false>(epilogue, map_c, sum, row, count, tile, warpgroup, here, none);
  } else {
    store_groups<COUNT, STAGING, true>(epilogue, map_c, sum, row, count, tile, warpgroup, staging, turn);
  }
}
