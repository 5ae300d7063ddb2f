// The variant `tensor_half` as a whole: op(A) op(B), tile by tile, each finished sum handed to the kernel's epilogue.
#pragma once
#include "hmma/operand.cuh"   // before all that has REAL

#include "common/overlap.cuh"
#include "common/split_tile.cuh"
#include "ptx/mma_sync_half.cuh"

// How many elements, 8 at most, lines of a matrix, what is used of them, and matrices of a batch divide into.
__device__ constexpr unsigned divisor(unsigned line, unsigned leading, size_t stride) {
  return tw::gcd(tw::gcd(line, leading), tw::gcd(BATCH == 1 ? 0u : static_cast<unsigned>(stride % CHUNK), CHUNK));
}

using OperandA = HalfOperand<TILE_M, KNOWN_M, LDA, !TRANS_A, divisor(ROW_LENGTH_A, LDA, STRIDE_A), true>;
constexpr unsigned FACTORS = 1 + PAIRED;   // matrices of B
using OperandB =
    HalfOperand<FACTORS * TILE_N, N, LDB, TRANS_B, divisor(TRANS_B ? K : N, LDB, STRIDE_B), false, PAIRED>;
constexpr unsigned SUM_FRAGMENTS = FACTORS * FRAGMENTS_N, SUM_COLUMNS = FACTORS * WPT_N;   // of a thread's sums
using TileSums = SplitTile<WPT_M, SUM_COLUMNS, THREADS, CLUSTER, SPLIT>;
constexpr unsigned WIDTH_C = divisor(N, LDC, STRIDE_C);   // of stores to C
constexpr unsigned STAGE_BYTES = OperandA::TILE_BYTES + OperandB::TILE_BYTES;

// The ring of buffers: of each step the tile of A, then that of B. Copies run ahead of the products, from one piece of
// the block's work into the next.
struct Ring {
  const Half *A, *B;
  OperandA a;
  OperandB b;
  Agenda agenda;
  unsigned left = 0, writing = 0;

  // Starts the copies of the next step, if there is one.
  __device__ __forceinline__ void copy() {
    Work work;
    unsigned matrix;
    if (left == 0 && agenda.next(work, matrix)) {
      a.start(A + matrix * STRIDE_A, work.m, work.first_step);
      b.start(B + matrix * STRIDE_B, work.n, work.first_step);
      left = work.steps;
    }
    if (left > 0) {
      --left;
      a.copy(writing * STAGE_BYTES);
      b.copy(writing * STAGE_BYTES);
      writing = writing == STAGES - 1 ? 0 : writing + 1;
    }
    cp_async_commit_group();
  }
};

// A warp's terms of one product of all its fragments.
struct Terms {
  unsigned a[FRAGMENTS_M][4], b[SUM_FRAGMENTS / 2][4];

  // Reads those of a fragment row of A or of two fragment columns of B, from term 16 * group of a step on.
  __device__ __forceinline__ void read_a(const Ring& ring, unsigned stage, unsigned i, unsigned group) {
    ring.a.read(a[i], stage, i, group);
  }
  __device__ __forceinline__ void read_b(const Ring& ring, unsigned stage, unsigned pair, unsigned group) {
    ring.b.read(b[pair], stage + OperandA::TILE_BYTES, pair, group);
  }
  __device__ __forceinline__ void read(const Ring& ring, unsigned stage, unsigned group) {
#pragma unroll
    for (unsigned i = 0; i < FRAGMENTS_M; ++i) read_a(ring, stage, i, group);
#pragma unroll
    for (unsigned pair = 0; pair < SUM_FRAGMENTS / 2; ++pair) read_b(ring, stage, pair, group);
  }

  // Multiplies them. Without AHEAD, those of the next group take their place as soon as they are done with.
  __device__ __forceinline__ void multiply(
      float (&sum)[WPT_M][SUM_COLUMNS], const Ring& ring, unsigned stage, unsigned next) {
#pragma unroll
    for (unsigned i = 0; i < FRAGMENTS_M; ++i) {
#pragma unroll
      for (unsigned j = 0; j < SUM_FRAGMENTS; ++j) {
        mma_m16n8k16<IS_BFLOAT16>(
            sum[2 * i][2 * j], sum[2 * i][2 * j + 1], sum[2 * i + 1][2 * j], sum[2 * i + 1][2 * j + 1], a[i],
            b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        if (!AHEAD && i == FRAGMENTS_M - 1 && j % 2) read_b(ring, stage, j / 2, next);
      }
      if (!AHEAD) read_a(ring, stage, i, next);
    }
  }
};

// Where the thread's first sums lie in the tile. It has the rows 8 apart, pairs of columns 8 apart.
struct ThreadOrigin {
  unsigned warp_m, warp_n, m, t;
  __device__ __forceinline__ ThreadOrigin() {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    warp_m = warp / WARPS_N * WARP_M;
    warp_n = warp % WARPS_N * WARP_N;
    m = warp_m + lane / 4;
    t = lane % 4;
  }
};

// Pairs of four fragments, changed among the four lanes that have a row: afterwards a lane has of the fragment that its
// number names all eight columns.
__device__ __forceinline__ Pack<8> gather_row(const float* pairs) {
  Pack<8> row;
#pragma unroll
  for (unsigned i = 0; i < 8; ++i) row.lane[i] = pairs[i];
#pragma unroll
  for (unsigned distance = 1; distance < 4; distance *= 2) {
    const bool upper = threadIdx.x & distance;
#pragma unroll
    for (unsigned pair = 0; pair < 4; ++pair) {
      if (pair & distance) continue;
#pragma unroll
      for (unsigned i = 0; i < 2; ++i) {
        float& first = row.lane[2 * pair + i];
        float& second = row.lane[2 * (pair + distance) + i];
        const float received = __shfl_xor_sync(0xffffffffu, upper ? first : second, distance);
        first = upper ? received : first;
        second = upper ? second : received;
      }
    }
  }
  return row;
}

// WIDTH neighbours of finished sums, as far as they are this tile's to write.
template <unsigned WIDTH, class Epilogue>
__device__ __forceinline__ void write_some(
    const Epilogue& epilogue, const Work& work, unsigned row, unsigned column, const float* sums) {
  constexpr unsigned STEP = WIDTH < WIDTH_C ? WIDTH : WIDTH_C;
  if (!M_DIVIDES(TILE_M) && (row < work.written_m || row >= M)) return;
#pragma unroll
  for (unsigned i = 0; i < WIDTH; i += STEP) {
    if (N % TILE_N != 0 && (column + i < work.written_n || column + i >= N)) continue;
    Pack<STEP> part;
#pragma unroll
    for (unsigned j = 0; j < STEP; ++j) part.lane[j] = sums[i + j];
    epilogue.template write<STEP>(row, column + i, part);
  }
}

// A row of the thread's sums as the epilogue takes it, pairs of neighbours 8 columns apart: with PAIRED, fragments
// of both products follow one another, and of two sums the epilogue makes one.
template <class Epilogue>
__device__ __forceinline__ void combine(float* row, const float* sums, unsigned fragments) {
#pragma unroll
  for (unsigned i = 0; i < 2 * fragments; ++i) {
    if constexpr (PAIRED) row[i] = Epilogue::combined(sums[i / 2 * 4 + i % 2], sums[i / 2 * 4 + 2 + i % 2]);
    else row[i] = sums[i];
  }
}

// Finishes a piece's sums.
template <class Epilogue>
__device__ __forceinline__ void finish(
    const float (&sum)[WPT_M][SUM_COLUMNS], const Work& work, const ThreadOrigin& origin, const Epilogue& epilogue,
    float* shared, unsigned char* workspace) {
  const unsigned first_row = work.m + origin.m, first_column = work.n + origin.warp_n;
  if constexpr (CLUSTER > 1) __syncthreads();   // the last step is read to its end
  if constexpr (SPLIT > 1 || CLUSTER > 1) {
    if (work.parts > 1) {
      const auto write = [&](unsigned number, const Pack<QUAD>& quad) {
        const unsigned row = first_row + number / TileSums::ROW_QUADS * 8;
        const unsigned column = first_column + number % TileSums::ROW_QUADS * (16 / FACTORS) + origin.t * 2;
        float pairs[4 / FACTORS];
        combine<Epilogue>(pairs, quad.lane, 2 / FACTORS);
        write_some<2>(epilogue, work, row, column, pairs);
        if constexpr (!PAIRED) write_some<2>(epilogue, work, row, column + 8, pairs + 2);
      };
      TileSums::add(sum, shared, workspace, work.tile, SHARED_TILES, work.part, work.parts, write);
      return;
    }
  }
#pragma unroll
  for (unsigned i = 0; i < WPT_M; ++i) {
    float pairs[WPT_N];
    combine<Epilogue>(pairs, sum[i], FRAGMENTS_N);
    if constexpr (FRAGMENTS_N % 4 == 0) {
#pragma unroll
      for (unsigned j = 0; j < FRAGMENTS_N; j += 4) {
        const Pack<8> row = gather_row(pairs + 2 * j);
        write_some<8>(epilogue, work, first_row + i * 8, first_column + (j + origin.t) * 8, row.lane);
      }
    } else {
#pragma unroll
      for (unsigned j = 0; j < FRAGMENTS_N; ++j) {
        write_some<2>(epilogue, work, first_row + i * 8, first_column + j * 8 + origin.t * 2, pairs + 2 * j);
      }
    }
  }
}

// All that the block has to do. `shared` has the ring; in the end with clusters the block's sums.
template <class EpilogueOf>
__device__ __forceinline__ void compute_block(
    const Half* A, const Half* B, const EpilogueOf& epilogue_of, float* shared, unsigned char* workspace) {
  constexpr unsigned GROUPS = TILE_K / MMA_K;
  static_assert(GROUPS % 2 == 0, "groups of terms take turns in two places");
  const ThreadOrigin origin;
  char* const buffers = reinterpret_cast<char*>(shared);
  const unsigned first_stage = shared_address(shared);
  Ring ring{A, B, OperandA(buffers, origin.warp_m), OperandB(buffers + OperandA::TILE_BYTES, FACTORS * origin.warp_n)};
  await_last_launch();
#pragma unroll 1
  for (unsigned stage = 0; stage < STAGES - 1; ++stage) ring.copy();
  cp_async_wait_group<STAGES - 2>();
  __syncthreads();
  Terms terms[1 + AHEAD];
  terms[0].read(ring, first_stage, 0);
  unsigned reading = 0;
  Agenda agenda;
  Work work;
  unsigned matrix;
#pragma unroll 1
  while (agenda.next(work, matrix)) {
    float sum[WPT_M][SUM_COLUMNS] = {};
#pragma unroll 1
    for (unsigned step = 0; step < work.steps; ++step) {
      unsigned stage = first_stage + reading * STAGE_BYTES;
      reading = reading == STAGES - 1 ? 0 : reading + 1;
#pragma unroll
      for (unsigned group = 0; group < GROUPS; ++group) {
        const unsigned next = (group + 1) % GROUPS;
        if (next == 0) {
          cp_async_wait_group<STAGES - 2>();
          __syncthreads();   // the next step is there, and this one is read to its end
          stage = first_stage + reading * STAGE_BYTES;
        }
        if (AHEAD) terms[next % (1 + AHEAD)].read(ring, stage, next);
        if (group == 0) ring.copy();   // into the buffer of the step before, which all have read
        terms[group % (1 + AHEAD)].multiply(sum, ring, stage, next);
      }
    }
    finish(sum, work, origin, epilogue_of(matrix), shared, workspace);
  }
}
