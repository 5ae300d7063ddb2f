// The variant `tensor_half_packed_sm90` as a whole: what tma/product.cuh does, with operands that tma/pack.cuh has packed,
// and C's rows stored by 16 bytes of memory, wherever they begin.
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
      const unsigned inside = N % TEAM_N == 0 ? column + i : tw::min(column + i, N - 1);
      out.lane[i] = epilogue.template finished<1>(row, inside, Pack<1>{sum.lane[i]}).lane[0];
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

// Starts the copy of what is this block's to load of a tile's step, TILE lines or columns; SHARERS blocks share them.
template <class Operand, unsigned TILE, unsigned SHARERS>
__device__ __forceinline__ void load_share(
    const unsigned char* packed, unsigned target, unsigned barrier, unsigned step, unsigned matrix, unsigned first,
    unsigned share) {
  constexpr unsigned UNITS = TILE / GROUP, MOST = tw::ceil_div(UNITS, SHARERS);
  const unsigned from = share * MOST, bytes = (SHARERS == 1 || share == 0 ? MOST : UNITS - MOST) * UNIT_BYTES;
  const unsigned char* const source = packed + Operand::unit_at(matrix, step, first / GROUP + from);
  if constexpr (SHARERS == 1) cp_async_bulk(target, source, bytes, barrier);
  else cp_async_bulk_multicast(target + from * UNIT_BYTES, source, bytes, barrier, SHARERS);
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
      load_share<PackedA, TILE_M, CLUSTER_N>(workspace, a, full, step, tile.matrix, tile.m, place.column);
      load_share<PackedB, TILE_N, CLUSTER_M>(
          workspace + PackedA::BYTES, b, full, step, tile.matrix, tile.n, place.row);
      ring.advance();
    }
  }
}

// Where a warp's 16 rows, which are staged in pieces (tma/store.cuh), go in memory: rows that begin anywhere are stored by the
// 16 bytes that they have there as a whole, and what is before and behind these by elements.
struct Rows {
  static constexpr unsigned PER_CHUNK = 16 / sizeof(Stored), MOST = tw::min(PIECES_HELD * PIECE_N, unsigned{TILE_N});
  static constexpr unsigned LANES = MOST <= 9 * PER_CHUNK ? 8 : 16, AT_ONCE = 32 / LANES;   // of a row, rows
  static constexpr unsigned PASSES = tw::max(tw::ceil_div(MOST - PER_CHUNK, LANES * PER_CHUNK), 1u);
  static constexpr unsigned ENDS = 2 * PER_CHUNK, ENDS_AT_ONCE = 32 / ENDS;
  Stored* C;
  unsigned count, staging, columns;   // of the rows; theirs

  __device__ __forceinline__ Stored* row(unsigned number) const { return C + static_cast<size_t>(number) * LDC; }
  __device__ __forceinline__ unsigned head(unsigned number) const {   // elements before the first 16 bytes
    constexpr unsigned ROW_BYTES = static_cast<unsigned>(LDC * sizeof(Stored));
    return -(static_cast<unsigned>(reinterpret_cast<size_t>(C)) + number * ROW_BYTES) % 16 / sizeof(Stored);
  }
  __device__ __forceinline__ unsigned staged(unsigned number, unsigned column) const {
    const unsigned chunk = column % PIECE_N / PER_CHUNK ^ number % 8;
    return staging + column / PIECE_N * PIECE_BYTES + number * LINE_BYTES + chunk * 16 + column % PER_CHUNK * sizeof(Stored);
  }

  // What is stored as a whole. Reads go ahead of stores, which could be to the same memory for all that the compiler knows.
  __device__ __forceinline__ void store_chunks(unsigned pass) const {
    const unsigned lane = threadIdx.x % 32, column = (pass * LANES + lane % LANES) * PER_CHUNK;
    uint4 low[16 / AT_ONCE], high[16 / AT_ONCE];
#pragma unroll
    for (unsigned i = 0; i < 16 / AT_ONCE; ++i) {
      low[i] = ld_shared_b128(staged(i * AT_ONCE + lane / LANES, tw::min(column, MOST - PER_CHUNK)));
      high[i] = ld_shared_b128(staged(i * AT_ONCE + lane / LANES, tw::min(column + PER_CHUNK, MOST - PER_CHUNK)));
    }
#pragma unroll
    for (unsigned i = 0; i < 16 / AT_ONCE; ++i) {
      const unsigned number = i * AT_ONCE + lane / LANES, before = head(number);
      if (number < count && before + column + PER_CHUNK <= columns) {
        *reinterpret_cast<uint4*>(row(number) + before + column) = shifted(low[i], high[i], before * sizeof(Stored));
      }
    }
  }

  __device__ __forceinline__ void store_ends() const {
    const unsigned lane = threadIdx.x % 32, place = lane % ENDS;
    unsigned column[16 / ENDS_AT_ONCE];
    Stored value[16 / ENDS_AT_ONCE];
#pragma unroll
    for (unsigned i = 0; i < 16 / ENDS_AT_ONCE; ++i) {
      const unsigned number = i * ENDS_AT_ONCE + lane / ENDS, before = tw::min(head(number), columns);
      const unsigned whole = tw::min((columns - before) / PER_CHUNK, PASSES * LANES) * PER_CHUNK;
      column[i] = place < PER_CHUNK ? place : before + whole + place - PER_CHUNK;
      if (place < PER_CHUNK && column[i] >= before) column[i] = columns;
      const unsigned address = staged(number, tw::min(column[i], MOST - 1));
      value[i] = *static_cast<const Stored*>(__cvta_shared_to_generic(address));
    }
#pragma unroll
    for (unsigned i = 0; i < 16 / ENDS_AT_ONCE; ++i) {
      const unsigned number = i * ENDS_AT_ONCE + lane / ENDS;
      if (number < count && column[i] < columns) row(number)[column[i]] = value[i];
    }
  }

  __device__ __forceinline__ void store() const {
#pragma unroll
    for (unsigned pass = 0; pass < PASSES; ++pass) store_chunks(pass);
    constexpr bool HAS_ENDS = DIVISOR_C % PER_CHUNK != 0 || MOST > PASSES * LANES * PER_CHUNK;
    if (HAS_ENDS || reinterpret_cast<size_t>(C) % 16 != 0) store_ends();
  }
};

// By a warpgroup: all rows of its finished tile.
template <class Epilogue>
__device__ __forceinline__ void store_rows(
    const Epilogue& epilogue, Stored* C, const float (&sum)[ROW_BLOCKS][SUMS], const Tile& tile, unsigned warpgroup,
    unsigned staging) {
  const unsigned lane = threadIdx.x % 32, first_row = tile.m + warpgroup * (64 * ROW_BLOCKS) + threadIdx.x / 32 % 4 * 16;
#pragma unroll
  for (unsigned block = 0; block < ROW_BLOCKS; ++block) {
#pragma unroll
    for (unsigned piece = 0; piece < PIECES; piece += PIECES_HELD) {
      const unsigned row = first_row + block * 64, column = tile.n + piece * PIECE_N;
      if ((!M_DIVIDES(TEAM_M) && row >= M) || (N % TEAM_N != 0 && column >= N)) continue;
#pragma unroll
      for (unsigned held = 0; held < tw::min(PIECES_HELD, PIECES - piece); ++held) {
        const unsigned from = (piece + held) * PIECE_N;
        write_piece(epilogue, row + lane / 4, tile.n + from + lane % 4 * 2, sum[block] + from / 2,
                    staging + held * PIECE_BYTES, tw::min(TILE_N - from, PIECE_N));
      }
      __syncwarp();
      const unsigned rows = M_DIVIDES(TEAM_M) ? 16 : tw::min(M - row, 16u);
      const unsigned columns = tw::min(tw::min(TILE_N - piece * PIECE_N, Rows::MOST), N - column);
      Rows{C + static_cast<size_t>(row) * LDC + column, rows, staging, columns}.store();
      __syncwarp();
    }
  }
}

// By a warpgroup that multiplies: all that the block has to do. `staging` is behind the ring.
template <class EpilogueOf>
__device__ __forceinline__ void multiply_packed_tiles(
    const EpilogueOf& epilogue_of, Stored* C, Ring ring, const Place& place, unsigned staging, unsigned char* workspace) {
  const unsigned warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  float sum[ROW_BLOCKS][SUMS] = {};
  Tile tile;
  if constexpr (SPLIT_K > 1) {
    const unsigned steps = Tile::first_step(Tile::part() + 1) - Tile::first_step(Tile::part());
    multiply_steps(sum, ring, warpgroup, place, steps, Tile::part() + 1 == SPLIT_K);
    tile.find(place);
    workspace += PackedA::BYTES + PackedB::BYTES;
    add_up(single(epilogue_of(tile.matrix)), sum, tile, warpgroup, ring.memory, workspace);
  } else {
    staging += threadIdx.x / 32 * (PIECES_HELD * PIECE_BYTES);
#pragma unroll 1
    for (; tile.is_valid(); tile.advance()) {
      multiply_steps(sum, ring, warpgroup, place, STEPS, true);
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
