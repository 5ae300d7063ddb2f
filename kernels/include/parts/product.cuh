// Last launch of a product of packed parts: blocks of three warpgroups, of which one loads and two multiply 64 rows each.
// CLUSTER blocks, one below the other, load a share of their columns of B each and send it to all.
#pragma once
#include "common/raster.cuh"
#include "common/real.cuh"
#include "parts/pack.cuh"
#include "parts/wgmma.cuh"
#include "parts/workspace.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cp_async_bulk.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/warpgroup.cuh"

constexpr unsigned MULTIPLIERS = 2;   // warpgroups
constexpr unsigned THREADS = 128 * (MULTIPLIERS + 1);
constexpr unsigned MOST_SHARED = 227 * 1024 - 2048;   // of a block, less alignment and barriers
constexpr unsigned FINE_STAGE = (TILE_M + TILE_N) * STEP_K * 2 * FINE_PARTS;
constexpr unsigned STAGES = MOST_SHARED / FINE_STAGE < 8 ? MOST_SHARED / FINE_STAGE : 8;
constexpr unsigned TILES_M = tw::ceil_div(M, TILE_M * CLUSTER), TILES_N = tw::ceil_div(N, TILE_N);   // of clusters

// The ring of steps in shared memory, with so many parts of each number.
template <unsigned PARTS>
struct Ring {
  static constexpr unsigned A_BYTES = TILE_M * STEP_K * 2 * PARTS, B_BYTES = TILE_N * STEP_K * 2 * PARTS;
  static constexpr unsigned STAGE_BYTES = A_BYTES + B_BYTES;
  static constexpr unsigned COUNT = STAGES * FINE_STAGE / STAGE_BYTES;
  unsigned memory, full, empty;   // addresses: of the first stage, and of STAGES barriers each
  unsigned at = 0, parity = 0;

  __device__ __forceinline__ Ring(unsigned start, unsigned barriers)
      : memory(start), full(barriers), empty(barriers + 8 * STAGES) {}
  __device__ __forceinline__ unsigned stage() const { return memory + at * STAGE_BYTES; }
  __device__ __forceinline__ void advance() {
    if (++at == COUNT) {
      at = 0;
      parity ^= 1;
    }
  }
};

// Where the tiles of this block's `number`-th cluster of tiles begin, in tiles.
struct Tile {
  unsigned row, column;
  __device__ __forceinline__ Tile(unsigned number, unsigned rank) {
    grouped_raster<TILE_M * CLUSTER, TILE_N, GROUP_M>(number, row, column);
    row = row / TILE_M + rank;
    column /= TILE_N;
  }
};

// By one thread: every step of every tile of the block, `passes` times.
template <unsigned PARTS>
__device__ __forceinline__ void load_tiles(unsigned char* workspace, Ring<PARTS> ring, unsigned passes, unsigned rank) {
  typedef Ring<PARTS> R;
  constexpr unsigned SHARE = R::B_BYTES / CLUSTER;
  ring.parity = 1;
  for (unsigned number = blockIdx.x / CLUSTER; number < TILES_M * TILES_N; number += gridDim.x / CLUSTER) {
    const Tile tile(number, rank);
    for (unsigned pass = 0; pass < passes; ++pass) {
      const unsigned char* a = packed<OperandA>(workspace) + static_cast<size_t>(tile.row) * R::A_BYTES;
      const unsigned char* b = packed<OperandB>(workspace) + static_cast<size_t>(tile.column) * R::B_BYTES + rank * SHARE;
#pragma unroll 1
      for (unsigned step = 0; step < STEPS; ++step) {
        const unsigned full = ring.full + 8 * ring.at;
        mbarrier_wait(ring.empty + 8 * ring.at, ring.parity);
        mbarrier_arrive_expect_tx(full, R::STAGE_BYTES);
        cp_async_bulk(ring.stage(), a, R::A_BYTES, full);
        const unsigned target = ring.stage() + R::A_BYTES + rank * SHARE;
        if constexpr (CLUSTER == 1) cp_async_bulk(target, b, SHARE, full);
        else cp_async_bulk_multicast(target, b, SHARE, full, CLUSTER);
        a += static_cast<size_t>(tw::ceil_div(M, GROUP)) * (PARTS * PART_BYTES);
        b += static_cast<size_t>(tw::ceil_div(N, GROUP)) * (PARTS * PART_BYTES);
        ring.advance();
      }
    }
  }
}

// The descriptor of lines that start at `address`, by PTX ISA, "Matrix Descriptor Format": the distance of eight lines
// and a swizzle of 64 bytes. In units of 16 bytes, so that adding 2 goes 16 k on, and adding 32 to the next part.
template <unsigned PARTS>
__device__ __forceinline__ unsigned long long descriptor(unsigned address) {
  constexpr unsigned long long GROUP_DISTANCE = PARTS * PART_BYTES / 16, SWIZZLE_64 = 2;
  return (address & 0x3ffff) / 16 | 1ull << 16 | GROUP_DISTANCE << 32 | SWIZZLE_64 << 62;
}

// Starts the products of a step. ALL: those that count for FP32's accuracy, small ones first; else first parts only.
template <unsigned PARTS, bool ALL>
__device__ __forceinline__ void start_step(float (&sum)[SUMS], unsigned stage, unsigned warpgroup, unsigned add) {
  constexpr bool BF16 = PARTS == WIDE_PARTS;
  constexpr unsigned PART = PART_BYTES / 16;
  const unsigned long long first_a = descriptor<PARTS>(stage + warpgroup * (64 * STEP_K * 2 * PARTS));
  const unsigned long long first_b = descriptor<PARTS>(stage + Ring<PARTS>::A_BYTES);
  warpgroup_arrive();
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned long long a = first_a + 2 * half, b = first_b + 2 * half;
    if constexpr (ALL && BF16) {
      wgmma_k16<BF16>(sum, a, b + 2 * PART, half ? 1 : add);
      wgmma_k16<BF16>(sum, a + 2 * PART, b, 1);
      wgmma_k16<BF16>(sum, a + PART, b + PART, 1);
    }
    if constexpr (ALL) {
      wgmma_k16<BF16>(sum, a, b + PART, BF16 || half ? 1 : add);
      wgmma_k16<BF16>(sum, a + PART, b, 1);
    }
    wgmma_k16<BF16>(sum, a, b, ALL || half ? 1 : add);
  }
  warpgroup_commit_batch();
}

// A stage may be written again, in this block and those that its columns of B came from.
__device__ __forceinline__ void release(unsigned empty) {
  __syncwarp();
  if (threadIdx.x % 32 < CLUSTER) mbarrier_arrive_cluster(empty, threadIdx.x % 32);
}

// The sums over the next `steps` steps, on the tensor cores alone.
template <unsigned PARTS, bool ALL>
__device__ __forceinline__ void multiply_steps(
    float (&sum)[SUMS], Ring<PARTS>& ring, unsigned warpgroup, unsigned steps) {
  unsigned before = 0;
#pragma unroll 1
  for (unsigned step = 0; step < steps; ++step) {
    mbarrier_wait(ring.full + 8 * ring.at, ring.parity);
    start_step<PARTS, ALL>(sum, ring.stage(), warpgroup, step);
    if (step > 0) {
      warpgroup_wait_all_but_last();
      release(before);
    }
    before = ring.empty + 8 * ring.at;
    ring.advance();
  }
  warpgroup_wait(sum);
  release(before);
}

// x times 2^exponent. MILD: both halves of it are exponents of normal numbers.
template <bool MILD>
__device__ __forceinline__ float times_power(float x, int row, int column) {
  if constexpr (MILD) return x * power_of_two(row) * power_of_two(column);
  const int exponent = row + column, half = max(exponent / 2, -126);
  return x * power_of_two(half) * power_of_two(max(exponent - exponent / 2, -126));
}

// Undoes the scales and passes the sums on. A thread has, of each 8 columns, 2 in its row and 2 in the row 8 below.
template <bool MILD, class Epilogue>
__device__ __forceinline__ void write_sums(
    const Epilogue& epilogue, unsigned char* workspace, const Tile& tile, const float (&sum)[SUMS]) {
  unsigned thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));   // read again, so that nothing of it is kept in registers
  const unsigned row = tile.row * TILE_M + thread / 32 * 16 + thread % 32 / 4;
  const unsigned first_column = tile.column * TILE_N + thread % 4 * 2;
  const int* rows = scales<OperandA>(workspace);
  const int* columns = scales<OperandB>(workspace);
  const bool has_row[2] = {M % TILE_M == 0 && CLUSTER == 1 || row < M, M % TILE_M == 0 && CLUSTER == 1 || row + 8 < M};
  const int row_scale[2] = {has_row[0] ? -__ldg(rows + row) : 0, has_row[1] ? -__ldg(rows + row + 8) : 0};
#pragma unroll
  for (unsigned eight = 0; eight < TILE_N / 8; ++eight) {
    const unsigned n = first_column + eight * 8;
    const bool has_column = N % TILE_N == 0 || n < N, has_next = N % 2 == 0 ? has_column : n + 1 < N;
    // Read by __ldg, so that no store to C has to come first.
    const int scale = has_column ? -__ldg(columns + n) : 0, next_scale = has_next ? -__ldg(columns + n + 1) : 0;
#pragma unroll
    for (unsigned below = 0; below < 2; ++below) {
      if (!has_row[below] || !has_column) continue;
      const float x = times_power<MILD>(sum[eight * 4 + below * 2], row_scale[below], scale);
      const float y = times_power<MILD>(sum[eight * 4 + below * 2 + 1], row_scale[below], next_scale);
      if constexpr (N % 2 == 0) {
        epilogue.template write<2>(row + 8 * below, n, Pack<2>{x, y});
      } else {
        epilogue.template write<1>(row + 8 * below, n, Pack<1>{x});
        if (has_next) epilogue.template write<1>(row + 8 * below, n + 1, Pack<1>{y});
      }
    }
  }
}

// By a warpgroup that multiplies: all tiles of the block. The tensor cores cut off what they add, so that FP32 registers
// take over every PROMOTE_K products, or half as many where each number counts for twice as many.
template <unsigned PARTS, class Epilogue>
__device__ __forceinline__ void multiply_tiles(
    const Epilogue& epilogue, unsigned char* workspace, Ring<PARTS> ring, const Summary& known, unsigned rank) {
  constexpr unsigned PROMOTED = PROMOTE_K / STEP_K / (PARTS == WIDE_PARTS ? 2 : 1);
  const unsigned warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  float sum[SUMS], recent[SUMS];
#pragma unroll
  for (unsigned i = 0; i < SUMS; ++i) recent[i] = 0.0f;
#pragma unroll 1
  for (unsigned number = blockIdx.x / CLUSTER; number < TILES_M * TILES_N; number += gridDim.x / CLUSTER) {
#pragma unroll
    for (unsigned i = 0; i < SUMS; ++i) sum[i] = 0.0f;
#pragma unroll 1
    for (unsigned step = 0; step < STEPS; step += PROMOTED) {
      multiply_steps<PARTS, true>(recent, ring, warpgroup, STEPS - step < PROMOTED ? STEPS - step : PROMOTED);
#pragma unroll
      for (unsigned i = 0; i < SUMS; ++i) sum[i] += recent[i];
    }
    // Where a factor is infinite or NaN, products with small parts made the sum NaN. First parts alone give what FP32
    // arithmetic gives: the right infinity, or NaN.
    if (known.is_odd) {
      multiply_steps<PARTS, false>(recent, ring, warpgroup, STEPS);
#pragma unroll
      for (unsigned i = 0; i < SUMS; ++i) sum[i] = fabsf(sum[i]) <= 0x1.fffffep127f ? sum[i] : recent[i];
    }
    const Tile tile(number, rank);
    if (known.is_extreme) write_sums<false>(epilogue, workspace, tile, sum);
    else write_sums<true>(epilogue, workspace, tile, sum);
  }
}

// All of the launch.
template <class Epilogue>
__device__ __forceinline__ void multiply_packed(const Epilogue& epilogue, unsigned char* workspace) {
  extern __shared__ unsigned char dynamic[];
  __shared__ alignas(8) unsigned long long barriers[2 * STAGES];
  const unsigned start = (shared_address(dynamic) + 1023) / 1024 * 1024, full = shared_address(barriers);
  const unsigned rank = CLUSTER == 1 ? 0 : cluster_ctarank();
  if (threadIdx.x == 0) {
    for (unsigned stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      mbarrier_init(full + 8 * (STAGES + stage), 4 * MULTIPLIERS * CLUSTER);
    }
    fence_mbarrier_init();
  }
  cluster_sync();
  const Summary known = *summary(workspace);
  const Ring<FINE_PARTS> fine(start, full);
  const Ring<WIDE_PARTS> wide(start, full);
  if (threadIdx.x < 128 * MULTIPLIERS) {
    warpgroup_reg_alloc<240>();
    if (is_wide(known)) multiply_tiles(epilogue, workspace, wide, known, rank);
    else multiply_tiles(epilogue, workspace, fine, known, rank);
  } else {
    warpgroup_reg_dealloc<24>();
    const unsigned passes = known.is_odd ? 2 : 1;
    if (threadIdx.x == 128 * MULTIPLIERS) {
      if (is_wide(known)) load_tiles(workspace, wide, passes, rank);
      else load_tiles(workspace, fine, passes, rank);
    }
  }
  __syncwarp();
  cluster_sync();   // until then another block's copies and arrivals may come in
  if (threadIdx.x == 0) {
    __threadfence();
    Summary* const all = summary(workspace);
    if (atomicInc(&all->finished, gridDim.x - 1) == gridDim.x - 1) *all = Summary{};
  }
}
