// Y = softmax(relu(X W1^T + b1) W2^T + b2).  All row-major (problem.cuh).
//
// A block takes ROWS rows through both layers: what lies between them never leaves shared memory, and three launches
// become one. A warp computes OUTPUTS outputs of a layer at a time, for all its rows. Its lanes share the inputs, so
// that a row of W is read in whole runs, once a block, and each number of it is used ROWS times; the lanes' parts are
// then added up by shuffles. The rows' inputs stay in registers for as long as their layer lasts.
//   block (32 * WARPS); grid (ceil(m / ROWS))
// Many sums over one warp, their number halved at each step: Luitjens, "Faster Parallel Reductions on Kepler" (NVIDIA,
// 2014), for several values at once. Where it pays: small layers, whose launches cost more than their arithmetic.
#include "common/real.cuh"
#include "common/reduction.cuh"
#include "problem.cuh"
#ifndef ROWS
#define ROWS 2           // rows of X that a block takes
#endif
#ifndef WARPS
#define WARPS 8
#endif
#ifndef OUTPUTS
#define OUTPUTS 2        // outputs that a warp computes at a time
#endif
#ifndef VECTOR_WIDTH
#define VECTOR_WIDTH 4   // elements in one access to memory, where a layer's inputs divide into such vectors
#endif

constexpr unsigned SUMS = ROWS * OUTPUTS;
static_assert(SUMS <= 32 && (SUMS & (SUMS - 1)) == 0, "every sum ends in a lane of its own");

// The sum over the warp of value[which], and which that is for this lane. Every lane of the warp must call it.
__device__ __forceinline__ REAL scattered_sum(REAL (&value)[SUMS], unsigned& which) {
  unsigned bit = 1;
  which = 0;
#pragma unroll
  for (unsigned half = SUMS / 2; half > 0; half /= 2, bit *= 2) {
    const bool takes_upper = threadIdx.x & bit;
    which += takes_upper ? half : 0;
#pragma unroll
    for (unsigned i = 0; i < half; ++i) {
      const REAL given = takes_upper ? value[i] : value[i + half];
      const REAL kept = takes_upper ? value[i + half] : value[i];
      value[i] = kept + __shfl_xor_sync(0xffffffffu, given, bit);
    }
  }
#pragma unroll
  for (unsigned distance = SUMS; distance < 32; distance *= 2) {
    value[0] += __shfl_xor_sync(0xffffffffu, value[0], distance);
  }
  return value[0];
}

// A lane's part of a row of `length` numbers, STEPS runs of all lanes apart; zeros past its end.
template <unsigned LENGTH>
struct Share {
  static constexpr unsigned WIDTH = LENGTH % VECTOR_WIDTH == 0 ? VECTOR_WIDTH : 1;
  static constexpr unsigned STEP = 32 * WIDTH, STEPS = (LENGTH + STEP - 1) / STEP;
  Pack<WIDTH> part[STEPS];

  __device__ __forceinline__ void load(const REAL* row) {
    const unsigned first = threadIdx.x % 32 * WIDTH;
#pragma unroll
    for (unsigned s = 0; s < STEPS; ++s) {
      const bool is_there = LENGTH % STEP == 0 || s * STEP + first < LENGTH;
      if (is_there) part[s] = load_pack<WIDTH>(row + s * STEP + first);
#pragma unroll
      for (unsigned w = 0; w < WIDTH; ++w) part[s].lane[w] = is_there ? part[s].lane[w] : REAL(0);
    }
  }

  __device__ __forceinline__ REAL times(const Share& other) const {
    REAL sum = 0;
#pragma unroll
    for (unsigned s = 0; s < STEPS; ++s) {
#pragma unroll
      for (unsigned w = 0; w < WIDTH; ++w) sum += part[s].lane[w] * other.part[s].lane[w];
    }
    return sum;
  }
};

// out[r][j] = in[r] . W[j] + b[j] for ROWS rows and COUNT outputs; RELU: negative results are 0, NaN stays NaN.
template <unsigned LENGTH, unsigned COUNT, bool RELU>
__device__ __forceinline__ void layer(const REAL* const (&in)[ROWS], const REAL* __restrict__ W,
                                      const REAL* __restrict__ b, REAL* out) {
  Share<LENGTH> x[ROWS];
#pragma unroll
  for (unsigned r = 0; r < ROWS; ++r) x[r].load(in[r]);
#pragma unroll 1
  for (unsigned first = threadIdx.x / 32 * OUTPUTS; first < COUNT; first += WARPS * OUTPUTS) {
    REAL sum[SUMS];
#pragma unroll
    for (unsigned o = 0; o < OUTPUTS; ++o) {
      Share<LENGTH> weights;
      // Past the end: the last output again, and no write, because shuffles want every lane.
      weights.load(W + static_cast<size_t>(min(first + o, COUNT - 1)) * LENGTH);
#pragma unroll
      for (unsigned r = 0; r < ROWS; ++r) sum[r * OUTPUTS + o] = x[r].times(weights);
    }
    unsigned which;
    const REAL total = scattered_sum(sum, which);
    const unsigned output = first + which % OUTPUTS;
    if (threadIdx.x % 32 < SUMS && output < COUNT) {
      const REAL z = total + b[output];
      out[which / OUTPUTS * COUNT + output] = RELU && z < REAL(0) ? REAL(0) : z;
    }
  }
}

// y = softmax(z), rows of N, by one warp.
__device__ __forceinline__ void write_probabilities(const REAL* z, REAL* y) {
  const unsigned lane = threadIdx.x % 32;
  REAL highest = z[0], sum = 0;
  for (unsigned i = lane; i < N; i += 32) highest = max(highest, z[i]);
#pragma unroll
  for (unsigned distance = 16; distance > 0; distance /= 2) {
    highest = max(highest, __shfl_xor_sync(0xffffffffu, highest, distance));
  }
  for (unsigned i = lane; i < N; i += 32) sum += exp(z[i] - highest);
  const REAL scale = REAL(1) / __shfl_sync(0xffffffffu, warp_sum(sum), 0);
  for (unsigned i = lane; i < N; i += 32) y[i] = exp(z[i] - highest) * scale;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
classifier(const REAL* __restrict__ X, const REAL* __restrict__ W1, const REAL* __restrict__ b1,
           const REAL* __restrict__ W2, const REAL* __restrict__ b2, REAL* __restrict__ Y) {
  alignas(16) __shared__ REAL hidden[ROWS * H];
  __shared__ REAL last[ROWS * N];
  const unsigned row0 = blockIdx.x * ROWS;
  const REAL *inputs[ROWS], *between[ROWS];
#pragma unroll
  for (unsigned r = 0; r < ROWS; ++r) {
    inputs[r] = X + static_cast<size_t>(min(row0 + r, M - 1)) * K;  // past the end: the last row again, and no write
    between[r] = hidden + r * H;
  }
  layer<K, H, true>(inputs, W1, b1, hidden);
  __syncthreads();
  layer<H, N, false>(between, W2, b2, last);
  __syncthreads();
  for (unsigned r = threadIdx.x / 32; r < ROWS && row0 + r < M; r += WARPS) {
    write_probabilities(last + r * N, Y + static_cast<size_t>(row0 + r) * N);
  }
}
