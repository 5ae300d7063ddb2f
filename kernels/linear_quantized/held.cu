// Y = X dequantised(W)^T on tensor cores, for 9 to 16 rows of X and weights of 4 bits, W at the speed of memory (problem.cuh
// has the layouts).
//
// Weights stand where a product has its 16 rows, X where it has its 8 columns. k is shared by SPLIT blocks of a cluster and by
// WARPS_K warps of each, so that a warp holds X of its share of k in registers, as products take it, and reads nothing but W
// from then on: fragments of 16 rows, by a ring of its own in shared memory, which its lanes fill and read without
// waiting for other warps. Sums of a group are multiplied by its scale in float32. Those of all fragments stay in shared memory
// until the end, when those of the warps are added up in a fixed order.
//   block (32 * WARPS_K * WARPS_N), grid (ceil(fragments / (WARPS_N * ROUNDS)) * SPLIT; with rows at launch along y as many
//   blocks as have 16 of them each)
#include "held_parameters.cuh"

#include "common/overlap.cuh"
#include "held_ring.cuh"
#include "ptx/cluster_push.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_sync_half.cuh"
#include "ptx/shared_memory.cuh"
#include "whole_numbers.cuh"

typedef float Sums[COLUMNS][4];

// The warp's share of X: of a row of each eight, of each step, the terms beside the lane's weights. These are a word in each
// 16 bytes of a row of W: eight neighbours along k.
struct Terms {
  uint4 quads[OWN][QUADS][COLUMNS];

  // A row beyond the last is read as the last one: its sums go nowhere.
  __device__ __forceinline__ void read(const Half* X, unsigned part) {
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (unsigned i = 0; i < OWN * QUADS * COLUMNS; ++i) {
      const unsigned column = i / (OWN * QUADS), step = i / QUADS % OWN, quad = i % QUADS;
      const Half* const row = X + static_cast<size_t>(tw::min(ROW_OF_BLOCK(column * 8 + g), M - 1)) * K;
      quads[step][quad][column] =
          __ldg(reinterpret_cast<const uint4*>(row + part * (OWN * STEP) + step * STEP + quad * 32 + t * 8));
    }
  }
  // As pairs of weights have them.
  __device__ __forceinline__ void order() {
#pragma unroll
    for (unsigned i = 0; i < OWN * QUADS * COLUMNS; ++i) {
      uint4& x = quads[i / COLUMNS / QUADS][i / COLUMNS % QUADS][i % COLUMNS];
      x = as_pairs(x);
    }
  }
};

// sum += the products of a step: of words of both of the lane's rows of W, 8 apart.
__device__ __forceinline__ void multiply(
    Sums& sum, const unsigned (&words)[2][QUADS], const uint4 (&x)[QUADS][COLUMNS], const float (&scale)[2],
    const float (&zero)[2]) {
  Sums some = {};
#pragma unroll
  for (unsigned i = 0; i < 2 * QUADS; ++i) {
    const unsigned quad = i / 2, p = i % 2 * 2;
    const unsigned a[4] = {pair_of(words[0][quad], p, zero[0]), pair_of(words[1][quad], p, zero[1]),
                           pair_of(words[0][quad], p + 1, zero[0]), pair_of(words[1][quad], p + 1, zero[1])};
#pragma unroll
    for (unsigned column = 0; column < COLUMNS; ++column) {
      const uint4& terms = x[quad][column];
      float(&d)[4] = some[column];
      mma_m16n8k16<IS_BFLOAT16>(d[0], d[1], d[2], d[3], a, p == 0 ? terms.x : terms.z, p == 0 ? terms.y : terms.w);
    }
  }
#pragma unroll
  for (unsigned i = 0; i < 4 * COLUMNS; ++i) sum[i / 4][i % 4] += scale[i % 4 / 2] * some[i / 4][i % 4];
}

// The products of a stage's fragment, whose first row is `row`. A lane names a row of what ldmatrix reads, at `place`.
__device__ __forceinline__ void multiply_stage(
    Sums& sum, const unsigned char* stage, unsigned address, unsigned place, const Terms& x, unsigned row, unsigned part) {
  const unsigned g = threadIdx.x % 32 / 4;
  typedef Line<Half, SCALE_BYTES / 2> Scales;
  Scales scales[2];
#pragma unroll
  for (unsigned i = 0; i < 2; ++i) {
    scales[i] = reinterpret_cast<const Scales*>(stage + WEIGHT_BYTES)[i * 8 + g];
    if (SCALES == 1 && Source::scale_at(tw::min(row + i * 8 + g, N - 1), part * OWN) % 2) scales[i].lane[0] = scales[i].lane[1];
  }
#pragma unroll
  for (unsigned u = 0; u < OWN; ++u) {
    unsigned words[2][QUADS];
    float scale[2], zero[2];
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
      ldmatrix_x4(words[i], address + (place ^ u % 2 * 64) + (u / 2 * 16 + i * 8) * PIECE);
      const unsigned at = GROUPS == 1 ? 0 : u * (1 + ZEROS);
      scale[i] = scales[i].lane[at];
      zero[i] = ZEROS ? static_cast<float>(scales[i].lane[at + ZEROS]) : 8.0f;
    }
    multiply(sum, words, x.quads[u], scale, zero);
  }
}

// A lane's sums of a fragment to the shared memory of the blocks that add them up.
__device__ __forceinline__ void put_sums(float* shared, const Sums& sum, unsigned fragment, unsigned part) {
#pragma unroll
  for (unsigned column = 0; column < COLUMNS; ++column) {
    const unsigned product = fragment * COLUMNS + column;
    float* const place = shared + ((product / SPLIT * PARTS + part) * 32 + threadIdx.x % 32) * 4;
    const Pack<4> four = {sum[column][0], sum[column][1], sum[column][2], sum[column][3]};
    if constexpr (SPLIT > 1) {
      st_shared_cluster(mapa(shared_address(place), product % SPLIT), reinterpret_cast<const uint4&>(four));
    } else {
      store_pack<4>(place, four);
    }
  }
}

// Adds up and writes the block's share of the sums, a product a warp.
__device__ __forceinline__ void finish(const float* shared, Half* Y, unsigned rank) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll 1
  for (unsigned own = threadIdx.x / 32; own < OWN_PRODUCTS; own += WARPS) {
    const unsigned product = own * SPLIT + rank, fragment = product / COLUMNS;
    if (PRODUCTS % SPLIT != 0 && product >= PRODUCTS) break;
    Pack<4> total = {};
#pragma unroll
    for (unsigned part = 0; part < PARTS; ++part) {
      const Pack<4> some = load_pack<4>(shared + ((own * PARTS + part) * 32 + lane) * 4);
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) total.lane[i] += some.lane[i] / UNIT;
    }
    const unsigned first = blockIdx.x / SPLIT * WARPS_N + fragment / WARPS_N * STRIDE + fragment % WARPS_N;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned m = ROW_OF_BLOCK(product % COLUMNS * 8 + lane % 4 * 2 + i % 2), n = first * 16 + lane / 4 + i / 2 * 8;
      if ((COLUMNS_ARE_WHOLE || m < M) && n < N) Y[static_cast<size_t>(m) * N + n] = Half(total.lane[i]);
    }
  }
}

#if SPLIT > 1
#define IN_CLUSTERS __cluster_dims__(SPLIT, 1, 1)
#else
#define IN_CLUSTERS
#endif
extern "C" __global__ void __launch_bounds__(THREADS, 1) IN_CLUSTERS linear_quantized(
    const Half* __restrict__ X, const Weight* __restrict__ W, const Half* __restrict__ S, Half* __restrict__ Y
    SIZE_PARAMETER) {
  extern __shared__ uint4 shared[];   // sums, and rings
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = SPLIT > 1 ? cluster_ctarank() : 0;
  const unsigned part = rank * WARPS_K + warp % WARPS_K, first = blockIdx.x / SPLIT * WARPS_N + warp / WARPS_K;
  const unsigned ring = SUM_BYTES + warp * (DEPTH * STAGE_BYTES), address = shared_address(shared) + ring;
  const unsigned char* const stages = reinterpret_cast<const unsigned char*>(shared) + ring;
  const unsigned place = lane % 8 * PIECE + (lane / 8 ^ lane % 8) * 16;
  begin_overlapped();
  if constexpr (SPLIT > 1) cluster_arrive();   // that it is there: others put sums into its memory
  Terms x;
  x.read(X, part);   // ahead of the weights, which wait for them
  Source source(W, S, first, part, address);
#pragma unroll 1
  for (unsigned i = 0; i < DEPTH - 1; ++i) source.copy(i * STAGE_BYTES);
  x.order();
  if constexpr (SPLIT > 1) cluster_wait();
  unsigned now = 0, before = (DEPTH - 1) * STAGE_BYTES;   // stages, by what lies ahead of them
#pragma unroll 1
  for (unsigned round = 0; round < ROUNDS; ++round) {
    Sums sum = {};
    cp_async_wait_group<DEPTH - 2>();
    __syncwarp();
    source.copy(before);
    multiply_stage(sum, stages + now, address + now, place, x, (first + round * STRIDE) * 16, part);
    put_sums(reinterpret_cast<float*>(shared), sum, round * WARPS_N + warp / WARPS_K, part);
    before = now;
    now = now == (DEPTH - 1) * STAGE_BYTES ? 0 : now + STAGE_BYTES;
  }
  if constexpr (SPLIT > 1) cluster_sync();
  else __syncthreads();
  finish(reinterpret_cast<const float*>(shared), Y, rank);
}
