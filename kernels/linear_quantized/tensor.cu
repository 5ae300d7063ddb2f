// Y = X dequantised(W)^T on tensor cores, for up to 64 rows of X (problem.cuh has the layouts).
//
// Weights stand where a product has its 16 rows, X where it has its 8 columns, so that few rows of X waste little. A warp
// has 16 * ROWS rows of W and all of X, and takes every WARPS-th step of 128 k; in the end the block's warps add up what
// they have, in a fixed order. A lane loads 16 bytes of each of its rows at a time, UNROLL steps ahead of the products,
// and turns them into whole numbers of 16 bits, exactly; sums of a group are multiplied by its scale in float32. Which
// terms of k stand at a place of a product is free: a lane takes those that it has loaded.
//   block (32 * WARPS), grid (ceil(n / (16 * ROWS)))
// Kim et al., "Who Says Elephants Can't Run: Bringing Large Scale MoE Models into Cloud Scale Production" (2022), for
// numbers of 16 bits from the last bits of a significand.
#include "hmma/element.cuh"
#include "problem.cuh"

#include "ptx/fma_half.cuh"
#include "ptx/mma_sync_half.cuh"
#ifndef WARPS
#define WARPS 4
#endif
#ifndef ROWS
#define ROWS 1     // of fragments: 16 rows of W each
#endif
#ifndef UNROLL
#define UNROLL 2
#endif

constexpr unsigned STEP = 128, STEPS = K / STEP;
constexpr unsigned STEP_LOADS = STEP / (4 * LOAD);   // of a lane, of one row
constexpr unsigned COLUMNS = tw::ceil_div(M, 8u);    // of fragments: 8 rows of X each
constexpr unsigned WORD_TERMS = 32 / BITS;           // weights of a word
constexpr unsigned LANE_SUMS = ROWS * COLUMNS * 4;

typedef float Sums[ROWS][COLUMNS][4];

// Two weights of a word as whole numbers of 16 bits, their zero point taken off: terms 2 p and 2 p + 1 of 8 bits; of 4 bits
// p and p + 4, which one mask brings forth together.
__device__ __forceinline__ unsigned pair_of(unsigned word, unsigned p, unsigned bias) {
#if BITS == 8
  const unsigned raised = word ^ 0x80808080u;
  const float first = __uint_as_float(0x4b000000u | (raised >> (16 * p) & 255)) - 8388736.0f;
  const float second = __uint_as_float(0x4b000000u | (raised >> (16 * p + 8) & 255)) - 8388736.0f;
  return cvt_rn_x2<IS_BFLOAT16>(first, second);
#else
  constexpr unsigned ONE = IS_BFLOAT16 ? 0x3f803f80u : 0x3c003c00u;
  constexpr unsigned RAISED = IS_BFLOAT16 ? 0x43004300u : 0x64006400u;   // 128 or 1024, in steps of 1
  return fma_rn_x2<IS_BFLOAT16>((word >> (4 * p) & 0x000f000fu) | RAISED, ONE, bias);
#endif
}

// What takes a group's zero point and the height that weights are raised by off a pair of them.
__device__ __forceinline__ unsigned bias_of(const Grid& grid) {
  const float bias = -((IS_BFLOAT16 ? 128.0f : 1024.0f) + grid.zero);
  return BITS == 4 ? cvt_rn_x2<IS_BFLOAT16>(bias, bias) : 0;
}

// The terms of X that stand beside the weights of a word, in the same order: 8 or 16 bytes as four or two words.
struct Terms {
  unsigned pair[WORD_TERMS / 2];

  __device__ __forceinline__ void load(const Half* source, bool is_inside) {
    Line<unsigned, WORD_TERMS / 2> words = {};
    if (is_inside) words = *reinterpret_cast<const Line<unsigned, WORD_TERMS / 2>*>(source);
#if BITS == 8
    pair[0] = words.lane[0];
    pair[1] = words.lane[1];
#else
    pair[0] = (words.lane[0] & 0xffffu) | words.lane[2] << 16;   // terms 0 and 4
    pair[1] = words.lane[0] >> 16 | (words.lane[2] & 0xffff0000u);
    pair[2] = (words.lane[1] & 0xffffu) | words.lane[3] << 16;
    pair[3] = words.lane[1] >> 16 | (words.lane[3] & 0xffff0000u);
#endif
  }
};

__device__ __forceinline__ unsigned word_of(const uint4& load, unsigned i) {
  return i == 0 ? load.x : i == 1 ? load.y : i == 2 ? load.z : load.w;
}

// What a lane has of a step's weights: of each fragment two rows, 8 apart.
struct Weights {
  uint4 load[ROWS][2][STEP_LOADS];

  __device__ __forceinline__ void read(const Weight* W, unsigned first_row, unsigned step) {
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (unsigned i = 0; i < 2 * ROWS; ++i) {
      const unsigned row = tw::min(first_row + i / 2 * 16 + i % 2 * 8 + g, N - 1);
#pragma unroll
      for (unsigned j = 0; j < STEP_LOADS; ++j) {
        load[i / 2][i % 2][j] = load_weights(W, row, (step * STEP_LOADS + j) * 4 + t);
      }
    }
  }
};

// sum += the products of a step.
__device__ __forceinline__ void multiply(
    Sums& sum, const Weights& weights, const Half* X, const Half* S, unsigned first_row, unsigned step) {
  const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  float scale[ROWS][2];
  unsigned bias[ROWS][2];
#pragma unroll
  for (unsigned i = 0; i < 2 * ROWS; ++i) {
    const Grid grid(S, tw::min(first_row + i / 2 * 16 + i % 2 * 8 + g, N - 1), step * STEP / GROUP);
    scale[i / 2][i % 2] = grid.scale;
    bias[i / 2][i % 2] = bias_of(grid);
  }
  Sums part = {};
#pragma unroll
  for (unsigned j = 0; j < STEP_LOADS; ++j) {
#pragma unroll
    for (unsigned word = 0; word < 4; ++word) {
      const unsigned k = step * STEP + (j * 4 + t) * LOAD + word * WORD_TERMS;
      Terms x[COLUMNS];
#pragma unroll
      for (unsigned column = 0; column < COLUMNS; ++column) {
        const unsigned m = column * 8 + g;
        x[column].load(X + static_cast<size_t>(m) * K + k, M % 8 == 0 || m < M);
      }
#pragma unroll
      for (unsigned row = 0; row < ROWS; ++row) {
        const unsigned upper = word_of(weights.load[row][0][j], word), lower = word_of(weights.load[row][1][j], word);
#pragma unroll
        for (unsigned p = 0; p < WORD_TERMS / 2; p += 2) {
          const unsigned a[4] = {
              pair_of(upper, p, bias[row][0]), pair_of(lower, p, bias[row][1]),
              pair_of(upper, p + 1, bias[row][0]), pair_of(lower, p + 1, bias[row][1])};
#pragma unroll
          for (unsigned column = 0; column < COLUMNS; ++column) {
            float(&some)[4] = part[row][column];
            mma_m16n8k16<IS_BFLOAT16>(some[0], some[1], some[2], some[3], a, x[column].pair[p], x[column].pair[p + 1]);
          }
        }
      }
    }
  }
#pragma unroll
  for (unsigned row = 0; row < ROWS; ++row) {
#pragma unroll
    for (unsigned column = 0; column < COLUMNS; ++column) {
#pragma unroll
      for (unsigned q = 0; q < 4; ++q) sum[row][column][q] += scale[row][q / 2] * part[row][column][q];
    }
  }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
linear_quantized(
    const Half* __restrict__ X, const Weight* __restrict__ W, const Half* __restrict__ S, Half* __restrict__ Y) {
  extern __shared__ float shared[];   // of each warp, of each of a lane's sums, the lanes
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, first_row = blockIdx.x * (16 * ROWS);
  Sums sum = {};
#pragma unroll 1
  for (unsigned step = warp; step < STEPS; step += WARPS * UNROLL) {
    Weights weights[UNROLL];   // all loads are issued before the first product waits for one
#pragma unroll
    for (unsigned u = 0; u < UNROLL; ++u) {
      if (step + u * WARPS < STEPS) weights[u].read(W, first_row, step + u * WARPS);
    }
#pragma unroll
    for (unsigned u = 0; u < UNROLL; ++u) {
      if (step + u * WARPS < STEPS) multiply(sum, weights[u], X, S, first_row, step + u * WARPS);
    }
  }
#pragma unroll
  for (unsigned i = 0; i < LANE_SUMS; ++i) {
    shared[(warp * LANE_SUMS + i) * 32 + lane] = sum[i / 4 / COLUMNS][i / 4 % COLUMNS][i % 4];
  }
  __syncthreads();
  // Neighbouring threads write neighbouring rows of W, which are neighbours in Y.
  for (unsigned at = threadIdx.x; at < LANE_SUMS * 32; at += 32 * WARPS) {
    const unsigned row = at % (16 * ROWS), m = at / (16 * ROWS), n = first_row + row;
    if (m >= M || n >= N) continue;
    const unsigned number = (row / 16 * COLUMNS + m / 8) * 4 + row % 16 / 8 * 2 + m % 2;
    const unsigned from = number * 32 + row % 8 * 4 + m % 8 / 2;
    float total = 0;
#pragma unroll
    for (unsigned i = 0; i < WARPS; ++i) total += shared[i * (LANE_SUMS * 32) + from];
    Y[static_cast<size_t>(m) * N + n] = Half(total);
  }
}
