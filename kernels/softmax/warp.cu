// y = exp(x - max) / sum of exp(x - max), row by row.  X, Y: (m, n) row-major.
//
// LANES lanes of a warp take a row and keep all of it in registers, where it fits: X is read once, each exp computed
// once, and no shared memory or barrier is needed. With fewer than 32 lanes a warp takes several rows, so that short
// rows (the ten classes of a last layer) do not leave most of it idle.
//   block (32 * WARPS); grid (ceil(m / rows of a block)), 32 * WARPS / LANES rows a block
// Shuffle reduction: Luitjens, "Faster Parallel Reductions on Kepler" (NVIDIA, 2014).
#include "common/real.cuh"
#include "problem.cuh"
#ifndef WARPS
#define WARPS 4
#endif
#ifndef LANES
#define LANES 32         // lanes that share a row
#endif
#ifndef VECTOR_WIDTH
#define VECTOR_WIDTH 4   // elements in one access to memory; rows divide into such vectors
#endif

static_assert(N % VECTOR_WIDTH == 0, "rows divide into vectors, so that each starts aligned");
constexpr unsigned STEP = LANES * VECTOR_WIDTH;          // elements that the lanes load at once
constexpr unsigned STEPS = (N + STEP - 1) / STEP;
typedef Pack<VECTOR_WIDTH> Vector;

extern "C" __global__ void __launch_bounds__(32 * WARPS)
softmax(const REAL* __restrict__ X, REAL* __restrict__ Y SIZE_PARAMETER) {
  const unsigned first = threadIdx.x % LANES * VECTOR_WIDTH;
  const unsigned row = blockIdx.x * (32 * WARPS / LANES) + threadIdx.x / LANES;
  // Past the end: the last row again, and no write, because shuffles want every lane.
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
  highest = lanes_max<LANES>(highest);
#pragma unroll
  for (unsigned s = 0; s < STEPS; ++s) {
    if (N % STEP != 0 && first + s * STEP >= N) continue;
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) sum += held[s][w] = exp(held[s][w] - highest);
  }
  const Sum scale = Sum(1) / lanes_sum<LANES>(sum);
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
