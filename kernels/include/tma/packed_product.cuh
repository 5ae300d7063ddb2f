// The variant `tensor_half_packed_sm90` as a whole: what tma/product.cuh does, with operands that tma/pack.cuh has packed,
// and C's rows stored as they divide, since they begin anywhere.
#pragma once
#define IS_PACKED 1
#include "tma/block.cuh"
#include "tma/pack.cuh"

static_assert(CLUSTER_M * CLUSTER_N <= 2, "what is shared goes to the first two blocks");

// An epilogue whose rows have no pairs.
template <class Epilogue>
struct Single {
  Epilogue epilogue;

  template <unsigned WIDTH>
  __device__ __forceinline__ Pack<WIDTH> finished(unsigned row, unsigned column, const Pack<WIDTH>& sum) const {
    Pack<WIDTH> out = {};
#pragma unroll
    for (unsigned i = 0; i < WIDTH; ++i) {
      if (column + i < N) {
        out.lane[i] = epilogue.template finished<1>(row, column + i, Pack<1>{sum.lane[i]}).lane[0];
      }
    }
    return out;
  }

  template <unsigned WIDTH>
  __device__ __forceinline__ void write(unsigned row, unsigned column, const Pack<WIDTH>& sum) const {
#pragma unroll
    for (unsigned i = 0; i < WIDTH; ++i) {
      if (column + i < N) epilogue.template write<1>(row, column + i, Pack<1>{sum.lane[i]});
    }
  }
};

template <class Epilogue>
__device__ __forceinline__ Single<Epilogue> single(const Epilogue& epilogue) {
  return Single<Epilogue>{epilogue};
}

// Starts the copies of what is this block's to load of a tile's step, as BoxedOperand::load does.
template <class Operand, class Boxed, unsigned SHARERS>
__device__ __forceinline__ void load_share(
    const unsigned char* packed, unsigned target, unsigned barrier, unsigned step, unsigned matrix, unsigned first,
    unsigned share) {
  constexpr unsigned LINES = Boxed::BOX_LINES, BYTES = LINES * LINE_BYTES;
  if (Operand::MATRICES == 1) matrix = 0;
#pragma unroll
  for (unsigned box = 0; box < Boxed::BOXES; ++box) {
    // Columns behind the last count for nothing: what is read in their place is there.
    const unsigned columns = tw::min(first / 64 + box, Operand::PIECES - 1);
    const size_t line = Operand::ALONG_K ? Operand::line_at(matrix, step, first + share * LINES)
                                         : Operand::line_at(matrix, columns, step * STEP_K + share * LINES);
    const unsigned place = target + box * (STEP_K * LINE_BYTES) + share * BYTES;
    if constexpr (SHARERS == 1) cp_async_bulk(place, packed + line, BYTES, barrier);
    else cp_async_bulk_multicast(place, packed + line, BYTES, barrier, SHARERS);
  }
}

// By one thread: every step of the block's tiles.
__device__ __forceinline__ void load_packed_tiles(const unsigned char* workspace, Ring ring, const Place& place) {
  const unsigned first = Tile::first_step(Tile::part()), end = Tile::first_step(Tile::part() + 1);
  ring.parity = 1;
#pragma unroll 1
  for (Tile tile; tile.is_valid(); tile.advance()) {
    tile.find(place);
#pragma unroll 1
    for (unsigned step = first; step < end; ++step) {
      const unsigned full = ring.full + 8 * ring.at, a = ring.stage(), b = a + OperandA::BYTES;
      mbarrier_wait(ring.empty + 8 * ring.at, ring.parity);
      mbarrier_arrive_expect_tx(full, STAGE_BYTES);
      load_share<PackedA, OperandA, CLUSTER_N>(workspace, a, full, step, tile.matrix, tile.m, place.column);
      load_share<PackedB, OperandB, CLUSTER_M>(
          workspace + PackedA::BYTES, b, full, step, tile.matrix, tile.n, place.row);
      ring.advance();
    }
  }
}

// By a warp: its piece of 16 rows at `staging` (tma/store.cuh) to memory, in stores as wide as rows of C divide into.
__device__ __forceinline__ void copy_piece(Stored* C, unsigned first_row, unsigned first_column, unsigned staging) {
  constexpr unsigned PER_CHUNK = 16 / sizeof(Stored), WIDTH = tw::gcd(DIVISOR_C, PER_CHUNK);
  constexpr unsigned ROW_LANES = tw::min(PIECE_N / WIDTH, 32), ROWS = 32 / ROW_LANES;   // of a row, rows at a time
  typedef Line<Stored, WIDTH> Piece;
  const unsigned lane = threadIdx.x % 32;
  const unsigned char* piece = static_cast<const unsigned char*>(__cvta_shared_to_generic(staging));
#pragma unroll 4
  for (unsigned row = lane / ROW_LANES; row < 16; row += ROWS) {
    if (M % TEAM_M != 0 && first_row + row >= M) return;
    Stored* target = C + static_cast<size_t>(first_row + row) * LDC + first_column;
#pragma unroll
    for (unsigned column = lane % ROW_LANES * WIDTH; column < PIECE_N; column += ROW_LANES * WIDTH) {
      const unsigned chunk = column / PER_CHUNK ^ row % 8;
      if (first_column + column >= N) continue;
      *reinterpret_cast<Piece*>(target + column) = *reinterpret_cast<const Piece*>(
          piece + row * LINE_BYTES + chunk * 16 + column % PER_CHUNK * sizeof(Stored));
    }
  }
}

// By a warpgroup: all rows of its finished tile.
template <class Epilogue>
__device__ __forceinline__ void store_rows(
    const Epilogue& epilogue, Stored* C, const float (&sum)[ROW_BLOCKS][SUMS], const Tile& tile, unsigned warpgroup,
    unsigned staging) {
  const unsigned lane = threadIdx.x % 32;
  each_piece(tile, warpgroup, [&](unsigned block, unsigned piece, unsigned row, unsigned column) {
    write_piece(epilogue, row + lane / 4, column + lane % 4 * 2, sum[block] + piece * (PIECE_N / 2), staging);
    __syncwarp();
    copy_piece(C, row, column, staging);
    __syncwarp();
  });
}

// By a warpgroup that multiplies: all that the block has to do. `staging` is behind the ring.
template <class EpilogueOf>
__device__ __forceinline__ void multiply_packed_tiles(
    const EpilogueOf& epilogue_of, Stored* C, Ring ring, const Place& place, unsigned staging, unsigned char* workspace) {
  const unsigned warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  float sum[ROW_BLOCKS][SUMS] = {};
  Tile tile;
  if constexpr (SPLIT_K > 1) {
    multiply_steps(sum, ring, warpgroup, place, Tile::first_step(Tile::part() + 1) - Tile::first_step(Tile::part()));
    tile.find(place);
    workspace += PackedA::BYTES + PackedB::BYTES;
    add_up(single(epilogue_of(tile.matrix)), sum, tile, warpgroup, ring.memory, workspace);
  } else {
    staging += threadIdx.x / 32 * PIECE_BYTES;
#pragma unroll 1
    for (; tile.is_valid(); tile.advance()) {
      multiply_steps(sum, ring, warpgroup, place, STEPS);
      tile.find(place);
      store_rows(single(epilogue_of(tile.matrix)), C + tile.matrix * STRIDE_C, sum, tile, warpgroup, staging);
    }
  }
}

// All of the launch behind `pack`.
template <class EpilogueOf>
__device__ __forceinline__ void multiply_packed(const EpilogueOf& epilogue_of, Stored* C, unsigned char* workspace) {
  run_block(
      [] {}, [&](const Ring& ring, const Place& place) { load_packed_tiles(workspace, ring, place); },
      [&](const Ring& ring, const Place& place, unsigned staging) {
        multiply_packed_tiles(epilogue_of, C, ring, place, staging, workspace);
      });
}
