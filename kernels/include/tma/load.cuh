// Who fills the ring: a thread by tensor maps, or LOADERS of them where an operand is copied.
#pragma once
#include "tma/copy.cuh"

// Every step of the block's tiles.
__device__ __forceinline__ void load_tiles(
    const TensorMap& map_a, const TensorMap& map_b, const Half* A, const Half* B, Ring ring, const Place& place) {
  constexpr unsigned BOX_BYTES = (IS_COPIED_A ? 0 : OperandA::BYTES) + (IS_COPIED_B ? 0 : OperandB::BYTES);
  const CopiedOperand<TILE_M, !TRANS_A, KNOWN_M, LDA> copied_a;
  const CopiedOperand<TILE_N, TRANS_B, N, LDB> copied_b;
  const unsigned row_blocks = (CLUSTER_N == 1 ? 1u : 1u | 1u << CLUSTER_M) << place.row;
  const unsigned column_blocks = ((1u << CLUSTER_M) - 1) << place.column * CLUSTER_M;
  const unsigned first = Tile::first_step(Tile::part()), end = Tile::first_step(Tile::part() + 1);
  ring.parity = 1;
#pragma unroll 1
  for (Tile tile; tile.is_valid(); tile.advance()) {
    tile.find(place);
    const unsigned matrix_a = STRIDE_A == 0 ? 0 : tile.matrix, matrix_b = STRIDE_B == 0 ? 0 : tile.matrix;
#pragma unroll 1
    for (unsigned step = first; step < end; ++step) {
      const unsigned full = ring.full + 8 * ring.at, a = ring.stage(), b = a + OperandA::BYTES, k = step * STEP_K;
      mbarrier_wait(ring.empty + 8 * ring.at, ring.parity);
      if (!IS_COPIED || threadIdx.x == MULTIPLYING) {
        mbarrier_arrive_expect_tx(full, BOX_BYTES);
        if constexpr (!IS_COPIED_A) OperandA::load(map_a, a, full, tile.m, k, matrix_a, place.column, row_blocks);
        if constexpr (!IS_COPIED_B) OperandB::load(map_b, b, full, tile.n, k, matrix_b, place.row, column_blocks);
      }
      if constexpr (IS_COPIED_A) copied_a.load(A + matrix_a * STRIDE_A, a, tile.m, k);
      if constexpr (IS_COPIED_B) copied_b.load(B + matrix_b * STRIDE_B, b, tile.n, k);
      if constexpr (IS_COPIED) cp_async_mbarrier_arrive_noinc(full);
      ring.advance();
    }
  }
}
