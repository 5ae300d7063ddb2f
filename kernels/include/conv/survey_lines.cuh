// First launch of a convolution by packed lines: what the numbers of images and filters are like.
#pragma once
#include "conv/lines.cuh"
#include "ptx/dependent_launch.cuh"

namespace lines {

constexpr unsigned SURVEY_THREADS = 256, SURVEY_WARPS = SURVEY_THREADS / 32;
constexpr unsigned PIXELS = IMAGES * IMAGE_H * IMAGE_W;
constexpr unsigned SURVEYED = IS_NHWC ? 32 * SURVEY_WARPS : 32;   // pixels of a block
[[maybe_unused]] constexpr unsigned SURVEY_BLOCKS = tw::ceil_div(PIXELS, SURVEYED);

// A survey of finite numbers that are not zero: the bits of the largest, the sum of all logarithms, their count; and the
// bits of the largest of all numbers, which say whether one is infinite or NaN.
struct Survey {
  unsigned largest = 0, count = 0, any = 0;
  long long logarithms = 0;

  __device__ __forceinline__ void add(float x) {
    const unsigned magnitude = __float_as_uint(x) & 0x7fffffffu;
    const bool counts = magnitude - 1 < 0x7f7fffffu;
    largest = max(largest, counts ? magnitude : 0);
    logarithms += counts ? logarithm(magnitude) : 0;
    count += counts;
    any = max(any, magnitude);
  }
  __device__ __forceinline__ void add(const Survey& other) {
    largest = max(largest, other.largest);
    logarithms += other.logarithms;
    count += other.count;
    any = max(any, other.any);
  }
  __device__ __forceinline__ void add_from_lane(unsigned distance) {
    Survey other;
    other.largest = __shfl_xor_sync(0xffffffffu, largest, distance);
    other.count = __shfl_xor_sync(0xffffffffu, count, distance);
    other.any = __shfl_xor_sync(0xffffffffu, any, distance);
    other.logarithms = __shfl_xor_sync(0xffffffffu, logarithms, distance);
    add(other);
  }
  // How many bits the numbers lie below one of these bits, all together; not too few.
  __device__ __forceinline__ float deficit(unsigned bits) const {
    const long long most = static_cast<long long>(logarithm(bits)) * count;
    return static_cast<float>(most - logarithms) * 0x1p-23f + 0.0861f * static_cast<float>(count);
  }
};

// The same of numbers that are usual, finite and neither zero nor below the normal ones, at a third of the instructions.
struct QuickSurvey {
  static constexpr unsigned SHIFT = 12;   // so that logarithms of 2^13 numbers fit
  float most = 0, least = __int_as_float(0x7f800000), nothing = 0;
  unsigned logarithms = 0;

  __device__ __forceinline__ void add(float x) {
    most = fmaxf(most, fabsf(x));
    least = fminf(least, fabsf(x));
    nothing = fmaf(x, 0.0f, nothing);   // NaN, where one is infinite or NaN
    logarithms += (__float_as_uint(x) & 0x7fffffffu) >> SHIFT;
  }
  __device__ __forceinline__ bool is_usual() const { return nothing == 0.0f && least >= 0x1p-126f; }
  __device__ __forceinline__ Survey of(unsigned numbers) const {
    return {__float_as_uint(most), numbers, __float_as_uint(most), static_cast<long long>(logarithms) << SHIFT};
  }
};
static_assert(CHANNELS / 4 <= 8192, "what a thread looks at");

// The worst of some pixels (WHICH 0) or taps (1).
template <unsigned WHICH>
struct Worst {
  unsigned largest = 0, smallest = 0, zeros = 0, is_odd = 0;
  float deficit = 0;

  __device__ __forceinline__ void add(const Survey& found, unsigned largest_of_line) {
    is_odd |= found.any >= 0x7f800000u;
    if (found.count == 0) return;
    largest = max(largest, found.largest);
    smallest = max(smallest, ~found.largest);
    zeros = max(zeros, CHANNELS - found.count);
    deficit = fmaxf(deficit, found.deficit(largest_of_line));
  }
  // Into the summary, by a whole warp. Most change nothing, and many atomic operations on one word would take their time.
  __device__ __forceinline__ void conclude(unsigned char* workspace) {
#pragma unroll
    for (unsigned distance = 16; distance > 0; distance /= 2) {
      largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
      smallest = max(smallest, __shfl_xor_sync(0xffffffffu, smallest, distance));
      zeros = max(zeros, __shfl_xor_sync(0xffffffffu, zeros, distance));
      is_odd |= __shfl_xor_sync(0xffffffffu, is_odd, distance);
      deficit = fmaxf(deficit, __shfl_xor_sync(0xffffffffu, deficit, distance));
    }
    if (threadIdx.x % 32 != 0) return;
    Summary* known = summary(workspace);
    if (WHICH == 0 && largest > __ldcg(&known->largest)) atomicMax(&known->largest, largest);
    if (WHICH == 0 && smallest > __ldcg(&known->smallest)) atomicMax(&known->smallest, smallest);
    if (zeros > __ldcg(&known->zeros[WHICH])) atomicMax(&known->zeros[WHICH], zeros);
    if (deficit > __ldcg(&known->deficit[WHICH])) {
      atomicMax(reinterpret_cast<int*>(&known->deficit[WHICH]), __float_as_int(deficit));
    }
    if (is_odd) known->is_odd = 1;
  }
};

template <class Adding>
__device__ __forceinline__ void add_four(Adding& found, const float* x) {
  const float4 four = *reinterpret_cast<const float4*>(x);
  found.add(four.x);
  found.add(four.y);
  found.add(four.z);
  found.add(four.w);
}

// A warp reads eight pixels at a time, four lanes of it one pixel.
__device__ __forceinline__ void survey_nhwc(const float* __restrict__ X, unsigned char* workspace, unsigned block) {
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Worst<0> worst;
#pragma unroll 1
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned pixel = block * SURVEYED + warp * 32 + i * 8 + lane / 4;
    Survey found;
    if (pixel < PIXELS) {
      const float* x = X + static_cast<size_t>(pixel) * CHANNELS + lane % 4 * 4;
      QuickSurvey quick;
#pragma unroll 8
      for (unsigned channel = 0; channel < CHANNELS; channel += 16) add_four(quick, x + channel);
      found = quick.of(CHANNELS / 4);
      if (!quick.is_usual()) {
        found = Survey();
#pragma unroll 1
        for (unsigned channel = 0; channel < CHANNELS; channel += 16) add_four(found, x + channel);
      }
    }
    found.add_from_lane(1);
    found.add_from_lane(2);
    worst.add(found, found.largest);
  }
  worst.conclude(workspace);
}

// A lane reads a pixel, each warp of the block a share of its channels.
__device__ __forceinline__ void survey_nchw(const float* __restrict__ X, unsigned char* workspace, unsigned block) {
  __shared__ Survey shared[SURVEY_WARPS][32];
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, pixel = block * SURVEYED + lane;
  constexpr unsigned IMAGE = IMAGE_H * IMAGE_W;
  Survey found;
  if (pixel < PIXELS) {
    const float* x = X + static_cast<size_t>(pixel / IMAGE) * (CHANNELS * IMAGE) + pixel % IMAGE;
    QuickSurvey quick;
#pragma unroll 8
    for (unsigned channel = warp; channel < CHANNELS; channel += SURVEY_WARPS) {
      quick.add(x[static_cast<size_t>(channel) * IMAGE]);
    }
    found = quick.of(CHANNELS / SURVEY_WARPS);
    if (!quick.is_usual()) {
      found = Survey();
#pragma unroll 1
      for (unsigned channel = warp; channel < CHANNELS; channel += SURVEY_WARPS) {
        found.add(x[static_cast<size_t>(channel) * IMAGE]);
      }
    }
  }
  shared[warp][lane] = found;
  __syncthreads();
  if (warp != 0) return;
#pragma unroll
  for (unsigned other = 1; other < SURVEY_WARPS; ++other) found.add(shared[other][lane]);
  Worst<0> worst;
  worst.add(found, found.largest);
  worst.conclude(workspace);
}

// A block reads a filter, each warp some of its taps: twice, as its largest number must be known first.
__device__ __forceinline__ void survey_filter(const float* __restrict__ W, unsigned char* workspace, unsigned filter) {
  __shared__ unsigned largest_of[SURVEY_WARPS];
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* w = W + static_cast<size_t>(filter) * (TAPS * CHANNELS);
  unsigned largest = 0;
  for (unsigned i = threadIdx.x; i < TAPS * CHANNELS; i += SURVEY_THREADS) {
    const unsigned magnitude = __float_as_uint(w[i]) & 0x7fffffffu;
    largest = max(largest, magnitude < 0x7f800000u ? magnitude : 0);
  }
#pragma unroll
  for (unsigned distance = 16; distance > 0; distance /= 2) {
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  }
  if (lane == 0) largest_of[warp] = largest;
  __syncthreads();
#pragma unroll
  for (unsigned other = 0; other < SURVEY_WARPS; ++other) largest = max(largest, largest_of[other]);
  if (threadIdx.x == 0) scales(workspace)[filter] = scale_of(largest);
  Worst<1> worst;
#pragma unroll 1
  for (unsigned tap = warp; tap < TAPS; tap += SURVEY_WARPS) {
    Survey found;
#pragma unroll 4
    for (unsigned channel = lane; channel < CHANNELS; channel += 32) {
      found.add(w[IS_NHWC ? tap * CHANNELS + channel : channel * TAPS + tap]);
    }
#pragma unroll
    for (unsigned distance = 16; distance > 0; distance /= 2) found.add_from_lane(distance);
    worst.add(found, largest);
  }
  worst.conclude(workspace);
}

// All of the launch: a block a filter, then SURVEY_BLOCKS for the images.
__device__ __forceinline__ void survey(const float* __restrict__ X, const float* __restrict__ W, unsigned char* workspace) {
  launch_dependents();
  if (blockIdx.x < FILTERS) survey_filter(W, workspace, blockIdx.x);
  else if (IS_NHWC) survey_nhwc(X, workspace, blockIdx.x - FILTERS);
  else survey_nchw(X, workspace, blockIdx.x - FILTERS);
}

}  // namespace lines
