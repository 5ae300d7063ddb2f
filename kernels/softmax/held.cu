// y = exp(x - max) / sum of exp(x - max), row by row.  X, Y: (m, n) row-major.
//
// As `warp`, for longer rows: THREADS_PER_ROW threads hold a row in registers, so that X is read once and each exp is
// computed once. Threads of several warps meet in shared memory, once for the largest and once for the sum.
//   block (THREADS_PER_ROW * ROWS), whole warps; grid (ceil(m / ROWS))
#include "common/real.cuh"
#include "problem.cuh"
#ifndef THREADS_PER_ROW
#define THREADS_PER_ROW 256
#endif
#ifndef ROWS
#define ROWS 1           // of a block
#endif
#ifndef VECTOR_WIDTH
#define VECTOR_WIDTH 4   // elements in one access to memory; rows divide into such vectors
#endif

static_assert(N % VECTOR_WIDTH == 0, "rows divide into vectors, so that each starts aligned");
static_assert(THREADS_PER_ROW % 32 == 0, "a row is that of whole warps");
constexpr unsigned STEP = THREADS_PER_ROW * VECTOR_WIDTH;   // elements of a row that its threads load at once
constexpr unsigned STEPS = (N + STEP - 1) / STEP;
constexpr unsigned TEAM_WARPS = THREADS_PER_ROW / 32, WARPS = TEAM_WARPS * ROWS;
typedef Pack<VECTOR_WIDTH> Vector;

// Partial results in shared memory, one for each warp of the row, over all warps of the block.
__device__ __forceinline__ const Sum* shared_by_row(Sum (&shared)[WARPS], Sum value) {
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  return shared + threadIdx.x / THREADS_PER_ROW * TEAM_WARPS;
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_ROW * ROWS)
softmax(const REAL* __restrict__ X, REAL* __restrict__ Y SIZE_PARAMETER) {
  __shared__ Sum warp_highest[WARPS], warp_sums[WARPS];
  const unsigned first = threadIdx.x % THREADS_PER_ROW * VECTOR_WIDTH;
  const unsigned row = blockIdx.x * ROWS + threadIdx.x / THREADS_PER_ROW;
  // Past the end: the last row again, and no write, because barriers want every thread.
  const REAL* x = X + static_cast<size_t>(row < M ? row : M - 1) * N;
  Sum held[STEPS][VECTOR_WIDTH];
  Sum highest = LOWEST, sum = 0;
#pragma unroll
  for (unsigned s = 0; s < STEPS; ++s) {
    if (N % STEP != 0 && first + s * STEP >= N) continue;
    const Vector vector = load_pack<VECTOR_WIDTH>(x + first + s * STEP);
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) highest = max(highest, held[s][w] = vector.lane[w]);
  }
  const Sum* const others = shared_by_row(warp_highest, lanes_max<32>(highest));
#pragma unroll
  for (unsigned warp = 0; warp < TEAM_WARPS; ++warp) highest = max(highest, others[warp]);
#pragma unroll
  for (unsigned s = 0; s < STEPS; ++s) {
    if (N % STEP != 0 && first + s * STEP >= N) continue;
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) sum += held[s][w] = exp(held[s][w] - highest);
  }
  const Sum* const sums = shared_by_row(warp_sums, lanes_sum<32>(sum));
  sum = 0;
#pragma unroll
  for (unsigned warp = 0; warp < TEAM_WARPS; ++warp) sum += sums[warp];
  const Sum scale = Sum(1) / sum;
  if (row >= M) return;
  REAL* y = Y + static_cast<size_t>(row) * N;
#pragma unroll
  for (unsigned s = 0; s < STEPS; ++s) {
    if (N % STEP != 0 && first + s * STEP >= N) continue;
    Vector vector;
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) vector.lane[w] = held[s][w] * scale;
    store_pack<VECTOR_WIDTH>(y + first + s * STEP, vector);
  }
}
