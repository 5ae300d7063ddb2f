// What the blocks of tensor_sm90.cu work on, and what becomes of a tile's sums when they have come to the end of k.
// Expects wgmma.cuh, mbarrier.cuh, warpgroup_ptx.cuh, warpgroup_tiles.cuh, split.cuh.

__device__ constexpr unsigned smaller(unsigned a, unsigned b) { return a < b ? a : b; }

// What a block does at a time: steps of a tile, and which of the tile's `parts` they are.
struct Work {
  unsigned m, n;   // first row and column of the tile
  unsigned tile, first_step, part, parts;
};

// All that a block does. With SPLIT_K == 1 whole tiles, one for each block of the grid and then the next. Else all
// steps of all tiles lie in a row, which is cut into as many equal pieces as there are blocks: "stream-K" of Osama et
// al. (2023). A block then has the end of a tile, whole tiles, and the beginning of another, or, where it is one of
// many for a tile, a part.
constexpr unsigned UNITS = tiles(K, STEP_K * STEPS_AT_ONCE);   // of a tile; what is never cut
constexpr unsigned GRID = smaller(BLOCKS, TILES * SPLIT_K);
struct WorkList {
  unsigned at, end;   // a tile, or a unit in the row of all

  // The first unit of a block, and the block that has a unit.
  __device__ __forceinline__ static unsigned start_of(unsigned block) {
    return static_cast<unsigned>(static_cast<unsigned long long>(block) * (TILES * UNITS) / GRID);
  }
  __device__ __forceinline__ static unsigned block_of(unsigned unit) {
    return static_cast<unsigned>((static_cast<unsigned long long>(unit + 1) * GRID - 1) / (TILES * UNITS));
  }

  __device__ __forceinline__ WorkList()
      : at(SPLIT_K == 1 ? blockIdx.x : start_of(blockIdx.x)), end(SPLIT_K == 1 ? TILES : start_of(blockIdx.x + 1)) {}
  __device__ __forceinline__ bool is_open() const { return at < end; }
  __device__ __forceinline__ unsigned units() const {
    return SPLIT_K == 1 ? UNITS : smaller(UNITS - at % UNITS, end - at);
  }
  __device__ __forceinline__ void advance() { at += SPLIT_K == 1 ? GRID : units(); }

  __device__ __forceinline__ Work work() const {
    Work work = {0, 0, at, 0, 0, 1};
    if constexpr (SPLIT_K > 1) {
      work.tile = at / UNITS;
      work.first_step = at % UNITS * STEPS_AT_ONCE;
      const unsigned first = block_of(work.tile * UNITS);
      work.part = blockIdx.x - first;
      work.parts = block_of(work.tile * UNITS + (UNITS - 1)) - first + 1;
    }
    const unsigned group = work.tile / (GROUP_M * TILES_N), inside = work.tile % (GROUP_M * TILES_N);
    const unsigned group_rows = smaller(GROUP_M, TILES_M - group * GROUP_M);
    work.m = (group * GROUP_M + inside % group_rows) * TILE_M;
    work.n = inside / group_rows * TILE_N;
    return work;
  }
};

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

  // The inner product by FMAs, term after term.
  __device__ __forceinline__ float product_by_fma(unsigned row, unsigned column) const {
    const float* a = A + (TRANS_A ? row : static_cast<size_t>(row) * K);
    const float* b = B + (TRANS_B ? static_cast<size_t>(column) * K : column);
    float sum = 0;
#pragma unroll 1
    for (unsigned k = 0; k < K; ++k, a += TRANS_A ? M : 1, b += TRANS_B ? 1 : N) sum += *a * *b;
    return sum;
  }

  // The sum, or where it is infinite or NaN, the same by FMAs. Infinities, NaN and numbers that a part of rounds up to
  // infinity all make it so; what FP32 arithmetic gives is then found out by FP32 arithmetic.
  __device__ __forceinline__ float made_sure(float sum, unsigned row, unsigned column) const {
    return fabsf(sum) <= 0x1.fffffep127f || row >= M || column >= N ? sum : product_by_fma(row, column);
  }
};

// Where a thread's sums lie in the tile. Of a quad, four sums that follow each other, two are of line r, two of line r
// + 1 of what went through registers.
struct Place {
  unsigned m, n;
  __device__ __forceinline__ explicit Place(const Work& work) {
    const unsigned thread = thread_number();
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

  __device__ __forceinline__ float4 made_sure(const Operands& operands, unsigned quad, const float4& sums) const {
    const unsigned i = row(quad), j = column(quad);
    return {operands.made_sure(sums.x, i, j), operands.made_sure(sums.y, i + SHARED_A, j + !SHARED_A),
            operands.made_sure(sums.z, i + !SHARED_A, j + SHARED_A), operands.made_sure(sums.w, i + 1, j + 1)};
  }
};

constexpr unsigned QUADS = BLOCKS_R * SUMS / 4;             // of a thread
constexpr unsigned AT_ONCE = QUADS % 8 == 0 ? 8 : QUADS;   // read together
__device__ __forceinline__ float4 quad_of(const float (&sum)[BLOCKS_R][SUMS], unsigned quad) {
  const float* from = &sum[quad / (SUMS / 4)][quad % (SUMS / 4) * 4];
  return {from[0], from[1], from[2], from[3]};
}

// Gives the epilogue the finished sums, each made sure of, which nearly always is a glance at all of them at once.
template <class Epilogue>
__device__ __forceinline__ void finish(
    const float (&sum)[BLOCKS_R][SUMS], const Work& work, const Operands& operands, const Epilogue& epilogue) {
  const Place place(work);
  bool all_finite = true;
#pragma unroll
  for (unsigned i = 0; i < BLOCKS_R * SUMS; ++i) all_finite &= fabsf(sum[i / SUMS][i % SUMS]) <= 0x1.fffffep127f;
  if (all_finite) {
#pragma unroll
    for (unsigned quad = 0; quad < QUADS; ++quad) place.write(epilogue, quad, quad_of(sum, quad));
  } else {
    float4 held[QUADS];   // in memory: a loop, since the code for it would else be there once a quad
#pragma unroll
    for (unsigned quad = 0; quad < QUADS; ++quad) held[quad] = quad_of(sum, quad);
#pragma unroll 1
    for (unsigned quad = 0; quad < QUADS; ++quad) {
      place.write(epilogue, quad, place.made_sure(operands, quad, held[quad]));
    }
  }
}

// Where in the workspace the warpgroup's sums lie of a part of a tile. A block has room for two: a tile that it does
// not begin, or that begins where it does, and one that it does not end.
__device__ __forceinline__ float4* part_at(
    unsigned char* workspace, const Work& work, unsigned part, unsigned warpgroup) {
  const unsigned block = blockIdx.x - work.part + part;
  const bool is_second = part == 0 && WorkList::start_of(block) < work.tile * UNITS;
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
  synchronize_warpgroup(warpgroup);
  if (threadIdx.x % 128 == 0) {
    unsigned* const counter = reinterpret_cast<unsigned*>(workspace) + work.tile * CONSUMERS + warpgroup;
    is_last[warpgroup] = atomicInc(counter, work.parts - 1) == work.parts - 1;
    __threadfence();
  }
  synchronize_warpgroup(warpgroup);
  if (!is_last[warpgroup]) return;
  const Place place(work);
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
      place.write(epilogue, first + i, place.made_sure(operands, first + i, total[i]));
    }
  }
}
