// A tile's finished sums on their way to memory: a warp writes its 16 rows, PIECE_N columns at a time, to shared memory of
// its own, from where they are stored by the tensor map while the warp goes on. Chunks of 16 bytes are swizzled as the map
// says, so that writes are free of bank conflicts.
#pragma once
#include "ptx/shared_memory.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/wgmma_half.cuh"
#include "tma/ring.cuh"

// A pair of neighbouring sums, finished. PAIRED, those of the second matrix are half of the thread's sums further on. What is
// beyond C is not stored: it gets what is asked for the last row or column, since to select zeros takes longer.
template <class Epilogue>
__device__ __forceinline__ Pack<2> finished_pair(const Epilogue& epilogue, unsigned row, unsigned column, const float* sums) {
  if constexpr (PAIRED) {
    return Pack<2>{Epilogue::combined(sums[0], sums[SUMS / 2]), Epilogue::combined(sums[1], sums[SUMS / 2 + 1])};
  } else {
    const unsigned inside_m = M_DIVIDES(TEAM_M) ? row : tw::min(row, M - 1);
    const unsigned inside_n = IS_PACKED || N % TEAM_N == 0 ? column : tw::min(column, N - 2);
    return epilogue.finished(inside_m, inside_n, Pack<2>{sums[0], sums[1]});
  }
}

// One piece of so many columns to `target`: the sums of rows lane / 4 and, 8 below, of columns lane % 4 * 2 from `column` on.
template <class Epilogue>
__device__ __forceinline__ void write_piece(
    const Epilogue& epilogue, unsigned row, unsigned column, const float* sums, unsigned target, unsigned columns) {
  const unsigned lane = threadIdx.x % 32;
  if constexpr (sizeof(Stored) == 2) {
    const unsigned line = target + lane % 16 * PIECE_LINE_BYTES;
    const unsigned chunk = lane / 16 ^ (PIECE_LINE_BYTES == LINE_BYTES ? lane % 8 : lane / 2 % 4);
#pragma unroll
    for (unsigned j = 0; j < PIECE_N / 8; j += 2) {
      if (j * 8 >= columns) break;
      unsigned words[4] = {};
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        if ((j + i / 2) * 8 >= columns) break;
        const Pack<2> pair =
            finished_pair(epilogue, row + i % 2 * 8, column + (j + i / 2) * 8, sums + (j + i / 2) * 4 + i % 2 * 2);
        words[i] = cvt_rn_x2<IS_BFLOAT16>(pair.lane[0], pair.lane[1]);
      }
      stmatrix_x4(line + (chunk ^ j) * 16, words);
    }
  } else {
    const unsigned line = target + lane / 4 * LINE_BYTES + lane % 2 * 8;
#pragma unroll
    for (unsigned j = 0; j < PIECE_N / 8; ++j) {
      if (j * 8 >= columns) break;
#pragma unroll
      for (unsigned i = 0; i < 2; ++i) {
        const Pack<2> pair = finished_pair(epilogue, row + i * 8, column + j * 8, sums + j * 4 + i * 2);
        const unsigned address = line + i * (8 * LINE_BYTES) + ((2 * j + lane % 4 / 2) ^ lane / 4) * 16;
        st_shared_v2(address, pair.lane[0], pair.lane[1]);
      }
    }
  }
}

// By a warp: calls `store(block, piece, row, column)` for its pieces that are not outside of C as a whole.
template <class Store>
__device__ __forceinline__ void each_piece(const Tile& tile, unsigned warpgroup, const Store& store) {
  const unsigned first_row = tile.m + warpgroup * (64 * ROW_BLOCKS) + threadIdx.x / 32 % 4 * 16;
#pragma unroll
  for (unsigned block = 0; block < ROW_BLOCKS; ++block) {
#pragma unroll
    for (unsigned piece = 0; piece < PIECES; ++piece) {
      const unsigned row = first_row + block * 64, column = tile.n + piece * PIECE_N;
      if ((!M_DIVIDES(TEAM_M) && row >= M) || (N % TEAM_N != 0 && column >= N)) continue;
      store(block, piece, row, column);
    }
  }
}

// By a warpgroup: all of its rows. The warp has two buffers at `staging`, which take turns.
template <class Epilogue>
__device__ __forceinline__ void store_tile(
    const Epilogue& epilogue, const TensorMap& map_c, const float (&sum)[ROW_BLOCKS][SUMS], const Tile& tile,
    unsigned warpgroup, unsigned staging, unsigned& turn) {
  const unsigned lane = threadIdx.x % 32;
  each_piece(tile, warpgroup, [&](unsigned block, unsigned piece, unsigned row, unsigned column) {
    if (lane == 0) wait_for_stores_to_read<PIECES_HELD - 1>();
    __syncwarp();
    write_piece(epilogue, row + lane / 4, column + lane % 4 * 2, sum[block] + piece * (PIECE_N / 2), staging + turn, PIECE_N);
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) store_box(map_c, {column, row, tile.matrix}, staging + turn);
    turn ^= PIECE_BYTES;
  });
}
