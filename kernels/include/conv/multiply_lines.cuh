// Last launch of a convolution by packed lines: blocks of three warpgroups, of which one loads and two multiply 64 lines
// each with TILE_N filters. Lines come in loads that serve all taps of a row: a tap further on is 16 bytes behind.
#pragma once
#include "common/real.cuh"
#include "conv/lines.cuh"
#include "parts/wgmma.cuh"
#include "ptx/cp_async_bulk.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/warpgroup.cuh"

namespace lines {

constexpr unsigned MULTIPLIERS = 2;   // warpgroups
constexpr unsigned MULTIPLY_THREADS = 128 * (MULTIPLIERS + 1);
constexpr unsigned MOST_RING_BYTES = 227 * 1024 - 2048;   // of a block, less alignment and barriers
constexpr unsigned MOST_STAGES = 16;
constexpr unsigned TILES_N = tw::ceil_div(FILTERS, unsigned{TILE_N});

// Two rings in shared memory, of loads of lines and of steps of filters.
template <unsigned PARTS>
struct Rings {
  static constexpr unsigned RUN_BYTES = LOADED * 16;   // a chunk's lines
  static constexpr unsigned LINES_BYTES = PARTS * CHUNKS * RUN_BYTES, FILTERS_BYTES = TILE_N * STEP * 2 * PARTS;
  static constexpr unsigned WHOLE = MOST_RING_BYTES / (LINES_BYTES + BUNDLE * FILTERS_BYTES);
  static constexpr unsigned LOADS = WHOLE < 2 ? 2 : WHOLE < 8 ? WHOLE : 8;
  static constexpr unsigned REST = (MOST_RING_BYTES - LOADS * LINES_BYTES) / FILTERS_BYTES;
  static constexpr unsigned STEPS_HELD = REST < MOST_STAGES ? REST : MOST_STAGES;
  static_assert(STEPS_HELD >= 2 && LINES_BYTES % 512 == 0 && FILTERS_BYTES % 512 == 0, "aligned as the swizzle needs it");
};

// Where one of the rings stands: `full` and `empty` are addresses of MOST_STAGES barriers each.
template <unsigned COUNT, unsigned BYTES>
struct Ring {
  unsigned memory, full, empty;
  unsigned at = 0, parity;

  __device__ __forceinline__ Ring(unsigned start, unsigned barriers, unsigned parity)
      : memory(start), full(barriers), empty(barriers + 8 * MOST_STAGES), parity(parity) {}
  __device__ __forceinline__ unsigned stage() const { return memory + at * BYTES; }
  __device__ __forceinline__ void wait_full() const { mbarrier_wait(full + 8 * at, parity); }
  __device__ __forceinline__ void wait_empty() const { mbarrier_wait(empty + 8 * at, parity); }
  __device__ __forceinline__ void advance() {
    if (++at == COUNT) {
      at = 0;
      parity ^= 1;
    }
  }
};
template <unsigned PARTS>
using LinesRing = Ring<Rings<PARTS>::LOADS, Rings<PARTS>::LINES_BYTES>;
template <unsigned PARTS>
using FiltersRing = Ring<Rings<PARTS>::STEPS_HELD, Rings<PARTS>::FILTERS_BYTES>;

// The first line and filter of a tile: column tiles of the same lines follow each other, while those are in the L2 cache.
struct Place {
  unsigned line, filter;
  __device__ __forceinline__ explicit Place(unsigned tile) : line(tile / TILES_N * TILE), filter(tile % TILES_N * TILE_N) {}
};

// By one warp: every step of every tile of the block, `passes` times.
template <unsigned PARTS>
__device__ __forceinline__ void load_tiles(unsigned char* workspace, unsigned start, unsigned barriers, unsigned passes) {
  typedef Rings<PARTS> R;
  LinesRing<PARTS> images(start, barriers, 1);
  FiltersRing<PARTS> filters(start + R::LOADS * R::LINES_BYTES, barriers + 16 * MOST_STAGES, 1);
  const unsigned lane = threadIdx.x % 32;
#pragma unroll 1
  for (unsigned tile = blockIdx.x; tile < TILES * TILES_N; tile += gridDim.x) {
    const Place place(tile);
#pragma unroll 1
    for (unsigned load = 0; load < passes * BUNDLES * STEPS; ++load) {
      const unsigned first = load / STEPS % BUNDLES * BUNDLE, step = load % STEPS;   // tap
      const unsigned down = first / KERNEL_W * DILATION_H, across = first % KERNEL_W * DILATION_W;
      const unsigned set = down % STRIDE_H * PHASES_W + across % STRIDE_W;
      const unsigned line = place.line + down / STRIDE_H * PITCH_W + across / STRIDE_W;
      images.wait_empty();
      if (lane == 0) mbarrier_arrive_expect_tx(images.full + 8 * images.at, R::LINES_BYTES);
      __syncwarp();
      if (lane < PARTS * CHUNKS) {
        const unsigned char* source = line_chunk(workspace, lane / CHUNKS, set, step, lane % CHUNKS, line);
        cp_async_bulk(images.stage() + lane * R::RUN_BYTES, source, R::RUN_BYTES, images.full + 8 * images.at);
      }
      images.advance();
#pragma unroll 1
      for (unsigned i = 0; i < BUNDLE; ++i) {
        filters.wait_empty();
        if (lane == 0) {
          const unsigned full = filters.full + 8 * filters.at;
          mbarrier_arrive_expect_tx(full, R::FILTERS_BYTES);
          const unsigned char* source = filter_group<PARTS>(workspace, first + i, step, place.filter / GROUP);
          cp_async_bulk(filters.stage(), source, R::FILTERS_BYTES, full);
        }
        __syncwarp();
        filters.advance();
      }
    }
  }
}

// Descriptors by PTX ISA, "Matrix Descriptor Format", in units of 16 bytes. Of lines: chunks of eight lines are 128
// bytes each, without a swizzle; the next eight follow, the next chunk of k is a run further on.
template <unsigned PARTS>
__device__ __forceinline__ unsigned long long lines_descriptor(unsigned address) {
  constexpr unsigned long long NEXT_CHUNK = Rings<PARTS>::RUN_BYTES / 16, NEXT_EIGHT = 128 / 16;
  return (address & 0x3ffff) / 16 | NEXT_CHUNK << 16 | NEXT_EIGHT << 32;
}
// The descriptor of filters: the distance of eight of them, and a swizzle of 64 bytes.
template <unsigned PARTS>
__device__ __forceinline__ unsigned long long filters_descriptor(unsigned address) {
  constexpr unsigned long long NEXT_EIGHT = PARTS * GROUP_BYTES / 16, SWIZZLE_64 = 2;
  return (address & 0x3ffff) / 16 | 1ull << 16 | NEXT_EIGHT << 32 | SWIZZLE_64 << 62;
}

// Starts the products of a step. ALL: those that count for FP32's accuracy, small ones first; else first parts only.
template <unsigned PARTS, bool ALL>
__device__ __forceinline__ void start_step(float (&sum)[SUMS], unsigned image_lines, unsigned filters, unsigned add) {
  constexpr bool BF16 = PARTS == WIDE;
  constexpr unsigned PART = CHUNKS * Rings<PARTS>::RUN_BYTES / 16, HALF = PART / 2, FILTER_PART = GROUP_BYTES / 16;
  const unsigned long long first_a = lines_descriptor<PARTS>(image_lines), first_b = filters_descriptor<PARTS>(filters);
  warpgroup_arrive();
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned long long a = first_a + half * HALF, b = first_b + 2 * half;
    if constexpr (ALL && BF16) {
      wgmma_k16<BF16>(sum, a, b + 2 * FILTER_PART, half ? 1 : add);
      wgmma_k16<BF16>(sum, a + 2 * PART, b, 1);
      wgmma_k16<BF16>(sum, a + PART, b + FILTER_PART, 1);
    }
    if constexpr (ALL) {
      wgmma_k16<BF16>(sum, a, b + FILTER_PART, BF16 || half ? 1 : add);
      wgmma_k16<BF16>(sum, a + PART, b, 1);
    }
    wgmma_k16<BF16>(sum, a, b, ALL || half ? 1 : add);
  }
  warpgroup_commit_batch();
}

// Stages may be written again; 0 is none.
__device__ __forceinline__ void release(unsigned empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0 && empty != 0) mbarrier_arrive(empty);
}

// The sums over the next `steps` steps, on the tensor cores alone. `tap` is the next of those that a load serves.
template <unsigned PARTS, bool ALL>
__device__ __forceinline__ void multiply_steps(
    float (&sum)[SUMS], LinesRing<PARTS>& images, FiltersRing<PARTS>& filters, unsigned& tap, unsigned warpgroup,
    unsigned steps) {
  unsigned before = 0, lines_before = 0;   // what the products under way read
#pragma unroll 1
  for (unsigned step = 0; step < steps; ++step) {
    images.wait_full();
    filters.wait_full();
    start_step<PARTS, ALL>(sum, images.stage() + (warpgroup * 64 + tap * DILATION_W) * 16, filters.stage(), step);
    if (step > 0) {
      warpgroup_wait_all_but_last();
      release(before);
      release(lines_before);
    }
    before = filters.empty + 8 * filters.at;
    lines_before = tap + 1 == BUNDLE ? images.empty + 8 * images.at : 0;
    filters.advance();
    if (++tap == BUNDLE) {
      tap = 0;
      images.advance();
    }
  }
  warpgroup_wait(sum);
  release(before);
  release(lines_before);
}

// x times 2^exponent, in two factors that are normal numbers.
__device__ __forceinline__ float times_power(float x, int exponent) {
  const int half = max(exponent / 2, -126);
  return x * power_of_two(half) * power_of_two(max(exponent - exponent / 2, -126));
}

// Undoes the scales and passes the sums on. A thread has, of each 8 filters, 2 for its line and 2 for the line 8 below.
template <class Epilogue>
__device__ __forceinline__ void write_sums(
    const Epilogue& epilogue, unsigned char* workspace, const Place& place, int scale, const float (&sum)[SUMS]) {
  const unsigned thread = read_tid_x();   // so that nothing of it is kept in registers
  const unsigned first_filter = place.filter + thread % 4 * 2;
#pragma unroll
  for (unsigned below = 0; below < 2; ++below) {
    const unsigned line = place.line + thread / 32 * 16 + thread % 32 / 4 + below * 8;
    const unsigned image = line / (PITCH_H * PITCH_W), inside = line % (PITCH_H * PITCH_W);
    const unsigned y = inside / PITCH_W, x = inside % PITCH_W;
    if (image >= IMAGES || y >= OUT_H || x >= OUT_W) continue;
    const unsigned pixel = (image * OUT_H + y) * OUT_W + x;
#pragma unroll
    for (unsigned eight = 0; eight < TILE_N / 8; ++eight) {
      const unsigned filter = first_filter + eight * 8;
      if (FILTERS % TILE_N != 0 && filter >= FILTERS) continue;
      const int* filter_scales = scales(workspace) + filter;
      const float low = times_power(sum[eight * 4 + below * 2], -scale - __ldg(filter_scales));
      if constexpr (FILTERS % 2 == 0) {
        const float high = times_power(sum[eight * 4 + below * 2 + 1], -scale - __ldg(filter_scales + 1));
        epilogue.template write<2>(pixel, filter, Pack<2>{low, high});
      } else {
        epilogue.template write<1>(pixel, filter, Pack<1>{low});
        if (FILTERS % TILE_N != 0 && filter + 1 >= FILTERS) continue;
        const float high = times_power(sum[eight * 4 + below * 2 + 1], -scale - __ldg(filter_scales + 1));
        epilogue.template write<1>(pixel, filter + 1, Pack<1>{high});
      }
    }
  }
}

// By a warpgroup that multiplies: all tiles of the block. The tensor cores cut off what they add, so that FP32 registers
// take over every PROMOTE_K products, or half as many where each number counts for twice as many.
template <unsigned PARTS, class Epilogue>
__device__ __forceinline__ void multiply_tiles(
    const Epilogue& epilogue, unsigned char* workspace, unsigned start, unsigned barriers, const Summary& known) {
  typedef Rings<PARTS> R;
  LinesRing<PARTS> images(start, barriers, 0);
  FiltersRing<PARTS> filters(start + R::LOADS * R::LINES_BYTES, barriers + 16 * MOST_STAGES, 0);
  constexpr unsigned MOST = PROMOTE_K / STEP / (PARTS == WIDE ? 2 : 1), ALL_STEPS = TAPS * STEPS;
  const unsigned warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  unsigned tap = 0;
  float sum[SUMS], recent[SUMS];
#pragma unroll
  for (unsigned s = 0; s < SUMS; ++s) recent[s] = 0.0f;
#pragma unroll 1
  for (unsigned tile = blockIdx.x; tile < TILES * TILES_N; tile += gridDim.x) {
#pragma unroll
    for (unsigned s = 0; s < SUMS; ++s) sum[s] = 0.0f;
#pragma unroll 1
    for (unsigned step = 0; step < ALL_STEPS; step += MOST) {
      multiply_steps<PARTS, true>(recent, images, filters, tap, warpgroup, tw::min(MOST, ALL_STEPS - step));
#pragma unroll
      for (unsigned s = 0; s < SUMS; ++s) sum[s] += recent[s];
    }
    // Where a factor is infinite or NaN, products with small parts made the sum NaN. First parts alone give what FP32
    // arithmetic gives: the right infinity, or NaN.
    if (known.is_odd) {
      multiply_steps<PARTS, false>(recent, images, filters, tap, warpgroup, ALL_STEPS);
#pragma unroll
      for (unsigned s = 0; s < SUMS; ++s) sum[s] = fabsf(sum[s]) <= 0x1.fffffep127f ? sum[s] : recent[s];
    }
    write_sums(epilogue, workspace, Place(tile), scale_of(known.largest), sum);
  }
}

// All of the launch.
template <class Epilogue>
__device__ __forceinline__ void multiply(const Epilogue& epilogue, unsigned char* workspace) {
  extern __shared__ unsigned char dynamic[];
  __shared__ alignas(8) unsigned long long barriers[4 * MOST_STAGES];
  const unsigned start = (shared_address(dynamic) + 1023) / 1024 * 1024, first = shared_address(barriers);
  if (threadIdx.x == 0) {
    for (unsigned i = 0; i < MOST_STAGES; ++i) {
      for (unsigned ring = 0; ring < 2; ++ring) {
        mbarrier_init(first + 8 * (2 * ring * MOST_STAGES + i), 1);
        mbarrier_init(first + 8 * ((2 * ring + 1) * MOST_STAGES + i), 4 * MULTIPLIERS);
      }
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  wait_for_launch_before();
  const Summary known = *summary(workspace);
  const bool wide = is_wide(known);
  if (threadIdx.x < 128 * MULTIPLIERS) {
    warpgroup_reg_alloc<232>();
    if (wide) multiply_tiles<WIDE>(epilogue, workspace, start, first, known);
    else multiply_tiles<FINE>(epilogue, workspace, start, first, known);
  } else {
    warpgroup_reg_dealloc<40>();
    const unsigned passes = known.is_odd ? 2 : 1;
    if (threadIdx.x < 128 * MULTIPLIERS + 32) {
      if (wide) load_tiles<WIDE>(workspace, start, first, passes);
      else load_tiles<FINE>(workspace, start, first, passes);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    Summary* const all = summary(workspace);
    if (atomicInc(&all->finished, gridDim.x - 1) == gridDim.x - 1) *all = Summary{};
  }
}

}  // namespace lines
