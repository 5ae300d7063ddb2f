// Y = X dequantised(W)^T on CUDA cores, for few rows of X (problem.cuh has the layouts).
//
// The weights are what takes the time, so they are read once, in loads of 16 bytes with UNROLL of them in flight, and
// each is used for COLUMNS rows of X. WARPS_PER_ROW warps take a row of W, a block takes ROWS_PER_BLOCK rows. Sums are made
// in float32; those of a load are multiplied by their group's scale.
//   block (32 * WARPS_PER_ROW * ROWS_PER_BLOCK)
//   grid  (ceil(n / ROWS_PER_BLOCK), ceil(m / COLUMNS))
// A whole number becomes a float as the last bits of 2^23's significand: integer units convert too slowly (CUDA C++
// Programming Guide, "Arithmetic Instructions").
#include "problem.cuh"
#ifndef WARPS_PER_ROW
#define WARPS_PER_ROW 2
#endif
#ifndef ROWS_PER_BLOCK
#define ROWS_PER_BLOCK 2
#endif
#ifndef COLUMNS
#define COLUMNS 1   // rows of X, which are columns of its transposed
#endif
#ifndef UNROLL
#define UNROLL 2
#endif

constexpr unsigned ROW_THREADS = 32 * WARPS_PER_ROW;
constexpr unsigned LOADS = K / LOAD;   // of a row
constexpr float INTO_FLOAT = 8388608.0f;   // 2^23

// The weights of a word, less their zero point.
template <unsigned COUNT>
__device__ __forceinline__ void widen(float (&weights)[COUNT], unsigned word, float zero) {
  static_assert(COUNT == 32 / BITS, "all of them");
  const unsigned raised = BITS == 8 ? word ^ 0x80808080u : word;
#pragma unroll
  for (unsigned i = 0; i < COUNT; ++i) {
    const unsigned bits = raised >> (i * BITS) & ((1u << BITS) - 1);
    weights[i] = __uint_as_float(0x4b000000u | bits) - (INTO_FLOAT + (BITS == 8 ? 128.0f : zero));
  }
}

// Adds up the products of one load with COLUMNS rows of X.
__device__ __forceinline__ void add_load(
    float (&sum)[COLUMNS], const uint4& load, const Grid& grid, const REAL* X, unsigned first_column, unsigned k) {
  const unsigned words[4] = {load.x, load.y, load.z, load.w};
  constexpr unsigned COUNT = 32 / BITS;   // weights of a word
  float part[COLUMNS] = {};
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    float weights[COUNT];
    widen(weights, words[i], grid.zero);
#pragma unroll
    for (unsigned column = 0; column < COLUMNS; ++column) {
      const unsigned inside = tw::min(first_column + column, M - 1);
      const Pack<COUNT> x = load_pack<COUNT>(X + static_cast<size_t>(inside) * K + k + i * COUNT);
#pragma unroll
      for (unsigned j = 0; j < COUNT; ++j) part[column] += weights[j] * static_cast<float>(x.lane[j]);
    }
  }
#pragma unroll
  for (unsigned column = 0; column < COLUMNS; ++column) sum[column] += grid.scale * part[column];
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS * ROWS_PER_BLOCK)
linear_quantized(
    const REAL* __restrict__ X, const Weight* __restrict__ W, const REAL* __restrict__ S, REAL* __restrict__ Y
    SIZE_PARAMETER) {
  __shared__ float warp_sums[ROWS_PER_BLOCK][WARPS_PER_ROW][COLUMNS];
  const unsigned thread = threadIdx.x % ROW_THREADS, slot = threadIdx.x / ROW_THREADS;
  const unsigned nominal = blockIdx.x * ROWS_PER_BLOCK + slot, row = tw::min(nominal, N - 1);
  const unsigned first_column = blockIdx.y * COLUMNS;
  float sum[COLUMNS] = {};
  unsigned number = thread;
  for (; number + (UNROLL - 1) * ROW_THREADS < LOADS; number += UNROLL * ROW_THREADS) {
    uint4 loaded[UNROLL];   // all loads are issued before the first product waits for one
#pragma unroll
    for (unsigned u = 0; u < UNROLL; ++u) loaded[u] = load_weights(W, row, number + u * ROW_THREADS);
#pragma unroll
    for (unsigned u = 0; u < UNROLL; ++u) {
      const unsigned k = (number + u * ROW_THREADS) * LOAD;
      add_load(sum, loaded[u], Grid(S, row, k / GROUP), X, first_column, k);
    }
  }
  for (; number < LOADS; number += ROW_THREADS) {
    const unsigned k = number * LOAD;
    add_load(sum, load_weights(W, row, number), Grid(S, row, k / GROUP), X, first_column, k);
  }
#pragma unroll
  for (unsigned column = 0; column < COLUMNS; ++column) {
#pragma unroll
    for (unsigned distance = 16; distance > 0; distance /= 2) {
      sum[column] += __shfl_down_sync(0xffffffffu, sum[column], distance);
    }
    if (thread % 32 == 0) warp_sums[slot][thread / 32][column] = sum[column];
  }
  __syncthreads();
  const unsigned column = first_column + thread;
  if (thread >= COLUMNS || column >= M || nominal >= N) return;
  float total = 0;
#pragma unroll
  for (unsigned warp = 0; warp < WARPS_PER_ROW; ++warp) total += warp_sums[slot][warp][thread];
  Y[static_cast<size_t>(column) * N + row] = REAL(total);
}
