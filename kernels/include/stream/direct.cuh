// The variant `streamed_half` as a whole: few rows of A times a B that is read once, straight into registers.
#pragma once
#ifndef SHAPE_M
#define SHAPE_M 16      // rows of A: tokens, 64 at most
#define SHAPE_N 4096    // columns of op(B)
#define SHAPE_K 4096    // length of each inner product
#define TRANS_B 1
#endif
#include "hmma/element.cuh"   // before all that has REAL

#include "common/integers.cuh"
#include "common/overlap.cuh"
#include "common/product.cuh"
#include "ptx/mma_sync_half.cuh"
#include "ptx/prefetch_line.cuh"

#ifndef WARPS
#define WARPS 8      // of a block, which share k
#endif
#ifndef ROWS
#define ROWS 1       // sixteens of columns of C that a block computes
#endif
#ifndef UNROLL
#define UNROLL 2     // steps of 64 k that a warp has under way
#endif
#ifndef WALK
#define WALK 0       // how warps share k: 0 by turns, a step each; 1 the same, blocks begin at different places; 2 in parts
#endif
#ifndef PAIRED
#define PAIRED 0     // 1: B has rows of two matrices, N each, one behind the other; C is made of both products
#endif
static_assert(!TRANS_A && TRANS_B, "lines lie along k");
static_assert(DIVISOR_A % 8 == 0 && DIVISOR_B % 8 == 0, "lines begin at multiples of 16 bytes");

constexpr unsigned FACTORS = 1 + PAIRED, FRAGMENTS = FACTORS * ROWS;   // matrices of B; sixteens of its lines in a tile
constexpr unsigned STEP_K = 64, STEPS = tw::ceil_div(K, STEP_K);       // 128 bytes of a line: of a lane 16 bytes
constexpr unsigned TILE_N = 16 * ROWS, THREADS = 32 * WARPS;
// Lines of B stand where a product has its 16 rows, rows of A where it has its 8 columns. With few of these, a load of a warp
// is of four whole lines of the cache: the halves of a line are neighbouring rows of a product, those of a row of A
// neighbouring columns, and sums of halves that do not belong together are dropped. With more, it is of eight half lines.
constexpr bool IS_WHOLE = M <= 16;
constexpr unsigned LINE_LANES = IS_WHOLE ? 8 : 4, LOAD_LINES = 32 / LINE_LANES;   // lanes of a line in a load, lines of a load
constexpr unsigned COLUMNS = tw::ceil_div(M, LOAD_LINES);                         // loads of rows of A
constexpr unsigned LOADS = 4, LOADS_A = IS_WHOLE ? 1 : 2;                         // of 16 lines of B in a step, of rows of A
constexpr unsigned PARTS = IS_WHOLE ? 2 : 1, KEPT = IS_WHOLE ? 2 : 4;             // products of 16 lines; sums of each that count
constexpr unsigned LANE_SUMS = FRAGMENTS * PARTS * COLUMNS * KEPT;
// Whether B fits an L2 cache beside other things: then the next launch may find it there.
constexpr bool STAYS = BATCH == 1 && static_cast<size_t>(FACTORS) * N * K * sizeof(Half) <= 32 << 20;

typedef float Sums[FRAGMENTS][PARTS][COLUMNS][4];

// A lane's part of a step.
struct Step {
  uint4 b[FRAGMENTS][LOADS], a[COLUMNS][LOADS_A];

  __device__ __forceinline__ static uint4 line(const Half* line, unsigned k, bool is_read_once) {
    if (K % STEP_K != 0 && k >= K) return make_uint4(0, 0, 0, 0);
    const uint4* const source = reinterpret_cast<const uint4*>(line + k);
    return is_read_once && !STAYS ? __ldcs(source) : __ldg(source);
  }

  // The line of B with this number in the tile. What is behind the last is the last again.
  __device__ __forceinline__ static const Half* line_of_b(const Half* B, unsigned first_column, unsigned number) {
    const unsigned column = first_column + number % TILE_N;
    return B + ((N % TILE_N == 0 ? column : tw::min(column, N - 1)) + number / TILE_N * N) * static_cast<size_t>(LDB);
  }

  // Prefetches B's part of a step to the L2 cache, a line a lane.
  __device__ __forceinline__ static void prefetch(const Half* B, unsigned first_column, unsigned step) {
#pragma unroll
    for (unsigned number = threadIdx.x % 32; number < 16 * FRAGMENTS; number += 32) {
      prefetch_line(line_of_b(B, first_column, number) + step * STEP_K);
    }
  }

  __device__ __forceinline__ void read(const Half* A, const Half* B, unsigned first_column, unsigned step) {
    const unsigned in_line = threadIdx.x % 32 / LINE_LANES, k = step * STEP_K + threadIdx.x % LINE_LANES * 8;
#pragma unroll
    for (unsigned i = 0; i < FRAGMENTS; ++i) {
#pragma unroll
      for (unsigned load = 0; load < LOADS; ++load) {
        const Half* const from = line_of_b(B, first_column, i * 16 + load * LOAD_LINES % 16 + in_line);
        b[i][load] = line(from, k + load * LOAD_LINES / 16 * 32, true);
      }
    }
#pragma unroll
    for (unsigned i = 0; i < COLUMNS; ++i) {
#pragma unroll
      for (unsigned load = 0; load < LOADS_A; ++load) {
        const unsigned row = tw::min(i * LOAD_LINES + in_line, M - 1);
        a[i][load] = line(A + static_cast<size_t>(row) * LDA, k + load * 32, false);
      }
    }
  }

  // sum += the products of the step. Which terms stand at a place of a product is free: a lane takes those that it has.
  __device__ __forceinline__ void multiply(Sums& sum) const {
#pragma unroll
    for (unsigned load = 0; load < LOADS; load += 2) {
#pragma unroll
      for (unsigned i = 0; i < FRAGMENTS; ++i) {
        const uint4 upper = b[i][load], lower = b[i][load + 1];
        const unsigned first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
        for (unsigned column = 0; column < COLUMNS; ++column) {
          float(&some)[4] = sum[i][load / 2 % PARTS][column];
          const uint4 row = a[column][load / 2 % LOADS_A];
          mma_m16n8k16<IS_BFLOAT16>(some[0], some[1], some[2], some[3], first, row.x, row.y);
          mma_m16n8k16<IS_BFLOAT16>(some[0], some[1], some[2], some[3], second, row.z, row.w);
        }
      }
    }
  }
};

// By a warp: the products of its steps. Each is read UNROLL of them ahead. While the launch ahead ends, the first is fetched to the
// L2 cache, which sees what that launch still writes.
__device__ __forceinline__ void multiply_steps(Sums& sum, const Half* A, const Half* B, unsigned first_column) {
  constexpr unsigned STRIDE = WALK == 2 ? 1 : WARPS;
  const unsigned warp = threadIdx.x / 32, first = WALK == 2 ? warp * STEPS / WARPS : warp;
  const unsigned end = WALK == 2 ? (warp + 1) * STEPS / WARPS : STEPS;
  // An odd number of steps on from block to block, so that blocks at work do not all read the same place of their lines.
  const unsigned turned = WALK == 1 ? blockIdx.x * 11 % STEPS : 0;
  const auto turn = [turned](unsigned step) { return step + turned - (WALK == 1 && step + turned >= STEPS ? STEPS : 0); };
  if (first < end) Step::prefetch(B, first_column, turn(first));
  await_last_launch();
  Step held[UNROLL];
#pragma unroll
  for (unsigned u = 0; u < UNROLL; ++u) {
    if (first + u * STRIDE < end) held[u].read(A, B, first_column, turn(first + u * STRIDE));
  }
#pragma unroll 1
  for (unsigned step = first; step < end; step += UNROLL * STRIDE) {
#pragma unroll
    for (unsigned u = 0; u < UNROLL; ++u) {
      if (step + u * STRIDE >= end) break;
      held[u].multiply(sum);
      const unsigned next = step + (u + UNROLL) * STRIDE;
      if (next < end) held[u].read(A, B, first_column, turn(next));
    }
  }
}

// By a warp: its sums that count to shared memory, of each the lanes side by side.
__device__ __forceinline__ void put_sums(float* shared, const Sums& sum) {
  float* const mine = shared + threadIdx.x / 32 * (LANE_SUMS * 32) + threadIdx.x % 32;
  const bool is_second = threadIdx.x / 4 % 2;   // half of a line
#pragma unroll
  for (unsigned i = 0; i < LANE_SUMS; ++i) {
    const unsigned product = i / KEPT, j = i % KEPT;
    const float(&of_product)[4] = sum[product / COLUMNS / PARTS][product / COLUMNS % PARTS][product % COLUMNS];
    mine[i * 32] = !IS_WHOLE ? of_product[j] : is_second ? of_product[j * 2 + 1] : of_product[j * 2];
  }
}

// The sum of the warps' in shared memory, and of both halves, in a fixed order, of a row of A and a line of the block.
__device__ __forceinline__ float add_up(const float* shared, unsigned row, unsigned line) {
  const unsigned product = line / (16 / PARTS) * COLUMNS + row / LOAD_LINES;
  const unsigned number = IS_WHOLE ? product * 2 + line / 4 % 2 : product * 4 + line % 16 / 8 * 2 + row % 2;
  const float* const from = shared + number * 32 + (IS_WHOLE ? line % 4 * 8 + row % 4 : line % 8 * 4 + row % 8 / 2);
  float total = 0;
#pragma unroll
  for (unsigned warp = 0; warp < WARPS; ++warp) {
    total += from[warp * (LANE_SUMS * 32)];
    if (IS_WHOLE) total += from[warp * (LANE_SUMS * 32) + 4];
  }
  return total;
}

// All of the launch.
template <class EpilogueOf>
__device__ __forceinline__ void stream_direct(
    const EpilogueOf& epilogue_of, const Half* __restrict__ A, const Half* __restrict__ B) {
  extern __shared__ float shared[];   // of each warp, of each of a lane's sums, the lanes
  constexpr unsigned TILES_N = tw::ceil_div(N, unsigned{TILE_N});
  const unsigned matrix = BATCH == 1 ? 0 : blockIdx.x / TILES_N;
  const unsigned first_column = (BATCH == 1 ? blockIdx.x : blockIdx.x % TILES_N) * TILE_N;
  Sums sum = {};
  multiply_steps(sum, A + matrix * STRIDE_A, B + matrix * STRIDE_B, first_column);
  put_sums(shared, sum);
  __syncthreads();
  const auto epilogue = epilogue_of(matrix);
  for (unsigned at = threadIdx.x; at < M * TILE_N; at += THREADS) {
    const unsigned row = at / TILE_N, line = at % TILE_N;
    if (N % TILE_N != 0 && first_column + line >= N) continue;
    Pack<1> total{add_up(shared, row, line)};
    if constexpr (PAIRED) total.lane[0] = epilogue.combined(total.lane[0], add_up(shared, row, TILE_N + line));
    epilogue.template write<1>(row, first_column + line, total);
  }
}
