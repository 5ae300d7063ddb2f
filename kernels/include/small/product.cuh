// The variant `tensor3xfp16_small_sm90` as a whole: op(A) op(B), each finished sum handed to the kernel's Epilogue.
#pragma once
#include "common/overlap.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/wgmma_half_across.cuh"
#include "small/operand.cuh"
#include "small/reduce.cuh"

// A part of B in shared memory: lines of 128 bytes, a term's 64 columns or a column's terms, with swizzled 16-byte chunks.
constexpr unsigned LINE_BYTES = 128, PART_BYTES = (TRANS_B ? SIDE : TILE_K) * LINE_BYTES, BUFFER_BYTES = 2 * PART_BYTES;
constexpr unsigned BUFFERS = STEPS > 1 ? 2 : 1, NEXT_K16 = TRANS_B ? 2 : 16 * LINE_BYTES / 16;
// Room for them, and for the sums of all warpgroups in the end.
constexpr unsigned PARTS_BYTES = SLICES * tw::max(BUFFERS * BUFFER_BYTES, SLICES > 1 ? SIDE * SIDE * REAL_BYTES : 0u);
constexpr int NOT_HELD = 1000;   // in place of a scale
constexpr unsigned WIDTH_C = tw::gcd(DIVISOR_C, QUAD);

// The descriptor of lines from `address` on, by PTX ISA, "Matrix Descriptor Format", in units of 16 bytes: eight are 1024 bytes
// apart, and the swizzle spans 128 bytes.
__device__ __forceinline__ unsigned long long descriptor(unsigned address) {
  return (address & 0x3ffff) / 16 | 1ull << 16 | 8ull * LINE_BYTES / 16 << 32 | 1ull << 62;
}

// Stores one part of the warp's numbers of B.
__device__ __forceinline__ void store_part(const Parts& part, unsigned buffer, const Place& place) {
  const unsigned to = buffer + place.g * LINE_BYTES + place.t * 4;
#pragma unroll
  for (unsigned number = 0; number < 2 * K16; ++number) {
    const unsigned line = TRANS_B ? place.warp * 16 + number % 2 * 8 : number * 8;
#pragma unroll
    for (unsigned pair = 0; pair < 2; ++pair) {
      const unsigned chunk = (TRANS_B ? number / 2 : place.warp) * 2 + pair;
      st_shared_b32(to + line * LINE_BYTES + (chunk ^ place.g) * 16, part[number][pair]);
    }
  }
}

// A warp's rows of A in the form that tensor cores take.
struct RowsOfA {
  unsigned high[K16][4], low[K16][4];
  int scale;
  bool are_held;

  __device__ __forceinline__ explicit RowsOfA(const Numbers& x) {
    Parts highs, lows;
    bool is_safe;
    scale = scale_of(x, is_safe);
    are_held = split(x, scale, highs, lows) && is_safe;
#pragma unroll
    for (unsigned i = 0; i < K16 * 4; ++i) {
      high[i / 4][i % 4] = highs[i / 4 * 2 + i % 2][i / 2 % 2];
      low[i / 4][i % 4] = lows[i / 4 * 2 + i % 2][i / 2 % 2];
    }
  }
};

// The sums of high by high parts, and those of high by low and low by high ones, which are LOW_SCALE times as large.
__device__ __forceinline__ void multiply(float (&large)[32], float (&small)[32], const RowsOfA& a, unsigned buffer) {
  const unsigned long long high = descriptor(buffer), low = descriptor(buffer + PART_BYTES);
  warpgroup_arrive();
#pragma unroll
  for (unsigned s = 0; s < K16; ++s) wgmma_k16_columns_64<!TRANS_B>(large, a.high[s], high + s * NEXT_K16, s);
#pragma unroll
  for (unsigned s = 0; s < K16; ++s) wgmma_k16_columns_64<!TRANS_B>(small, a.high[s], low + s * NEXT_K16, s);
#pragma unroll
  for (unsigned s = 0; s < K16; ++s) wgmma_k16_columns_64<!TRANS_B>(small, a.low[s], high + s * NEXT_K16, 1);
  warpgroup_commit_batch();
  warpgroup_wait_but<0>();
  fence_sums(large);
  fence_sums(small);
}

// sum += the products of a step, from what tensor cores have added up. The scales of B's columns are `scales`.
__device__ __forceinline__ void add_products(
    Sums& sum, const float (&large)[32], const float (&small)[32], int scale, const int* scales) {
#pragma unroll
  for (unsigned q = 0; q < WARPS; ++q) {
    const float factor = power_of_two(-scale - scales[q]);
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) {   // of two fragments of eight columns, two neighbours of a row, then of the other
      const unsigned half = i / 4, number = q * 8 + i / 2 % 2 * 4 + half * 2 + i % 2;
      const float product = fmaf(small[number], 1 / LOW_SCALE, large[number]);
      sum[half][q * 4 + i % 4] = fmaf(product, factor, sum[half][q * 4 + i % 4]);
    }
  }
}

// sum += the products of TILE_K terms from `k` on, by FMAs, whatever the numbers are.
__device__ __forceinline__ void add_by_fma(Sums& sum, const float* A, const float* B, const Place& place, unsigned k) {
  constexpr unsigned WIDE = TRANS_A ? 1 : WIDTH_A, ALONG = TRANS_B ? 1 : WIDTH_B, TERMS = 2;
  const unsigned end = tw::min(k + TILE_K, K), column = place.n + 4 * place.t;
#pragma unroll 1
  for (; k < end; k += TERMS) {
    float a[2][TERMS] = {}, b[TERMS][16] = {};
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
#pragma unroll
      for (unsigned i = 0; i < TERMS; i += tw::min(WIDE, TERMS)) {
        if ((FULL_M || place.row(half) < M) && (FULL_K || k + i < K)) {
          load_global<tw::min(WIDE, TERMS)>(&a[half][i], A + index_a(place.row(half), k + i));
        }
      }
    }
#pragma unroll
    for (unsigned i = 0; i < TERMS; ++i) {
#pragma unroll
      for (unsigned c = 0; c < 16; c += ALONG) {
        const unsigned behind = c / 4 * 16 + c % 4;
        if ((FULL_N || column + behind < N) && (FULL_K || k + i < K)) {
          load_global<ALONG>(&b[i][c], B + index_b(k + i, column + behind));
        }
      }
    }
#pragma unroll
    for (unsigned i = 0; i < TERMS; ++i) {
#pragma unroll
      for (unsigned c = 0; c < 16; ++c) {
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) sum[half][c] = fmaf(a[half][i], b[i][c], sum[half][c]);
      }
    }
  }
}

// The warp's sums of the block's terms.
__device__ __forceinline__ void compute_sums(Sums& sum, const float* A, const float* B, unsigned shared, const Place& place) {
  __shared__ __align__(16) int known[SLICES][2][WARPS];   // the exponents of columns
  constexpr unsigned HELD = STEPS > 1 ? 2 : 1;
  Numbers of_a[HELD], of_b[HELD];
  unsigned k = place.term;
  load_b(of_b[0], B, place, k);
  load_a(of_a[0], A, place, k);
#pragma unroll
  for (unsigned step = 0; step < STEPS; ++step, k += TILE_K) {
    const unsigned at = step % 2, buffer = shared + (place.slice * BUFFERS + at) * BUFFER_BYTES;
    if (step + 1 < STEPS) {
      load_b(of_b[(step + 1) % HELD], B, place, k + TILE_K);
      load_a(of_a[(step + 1) % HELD], A, place, k + TILE_K);
    }
    Parts high, low;
    bool is_safe;
    const int scale = scale_of(of_b[at], is_safe);
    const bool is_held = split(of_b[at], scale, high, low) && is_safe;
    store_part(high, buffer, place);
    store_part(low, buffer + PART_BYTES, place);
    if (threadIdx.x % 32 == 0) known[place.slice][at][place.warp] = is_held ? scale : NOT_HELD;
    const RowsOfA a(of_a[at]);
    fence_proxy_async();
    if constexpr (SLICES == 1) __syncthreads();
    else named_barrier_sync<GROUP_THREADS>(1 + place.slice);
    const int* const scales = known[place.slice][at];
    bool are_held = a.are_held;
#pragma unroll
    for (unsigned q = 0; q < WARPS; ++q) are_held = are_held && scales[q] != NOT_HELD;
    float large[32], small[32];
    multiply(large, small, a, buffer);   // by all warps together, whatever becomes of it
    if (are_held) add_products(sum, large, small, a.scale, scales);
    else add_by_fma(sum, A, B, place, k);
  }
}

// All that the block has to do. `shared` has PARTS_BYTES, then room for sums that come in from others of the cluster.
template <class Output>
__device__ __forceinline__ void compute_block(const float* A, const float* B, const Output& output, unsigned char* shared) {
  [[maybe_unused]] unsigned barrier = 0;
  if constexpr (SPLIT_K > 1) {
    __shared__ unsigned long long arrived;
    barrier = shared_address(&arrived);
    expect_sums(barrier);
  }
  admit_next_launch();
  const Place place;
  const auto here = output.from(place.matrix, place.row(0), place.n + 4 * place.t);
  await_last_launch();
  Sums sum = {};
  compute_sums(sum, A + place.matrix * STRIDE_A, B + place.matrix * STRIDE_B, shared_address(shared), place);
  const auto write = [&](unsigned number, const Pack<QUAD>& quad) {
    const unsigned row = number / 4 * (TRANS_A ? 1 : 8), column = number % 4 * 16;
    if (!FULL_M && place.row(0) + row >= M) return;
#pragma unroll
    for (unsigned i = 0; i < QUAD; i += WIDTH_C) {
      if (!FULL_N && place.n + 4 * place.t + column + i >= N) continue;
      Pack<WIDTH_C> part;
#pragma unroll
      for (unsigned j = 0; j < WIDTH_C; ++j) part.lane[j] = quad.lane[i + j];
      here.template write<WIDTH_C>(row, column + i, part);
    }
  };
  if constexpr (PARTS_K > 1) {
    if constexpr (SLICES > 1) __syncthreads();   // products have read all parts
    add_up(sum, reinterpret_cast<REAL*>(shared), reinterpret_cast<REAL*>(shared + PARTS_BYTES), barrier, place, write);
  } else {
#pragma unroll
    for (unsigned number = 0; number < QUADS; ++number) write(number, quad_of(sum, number));
  }
}
