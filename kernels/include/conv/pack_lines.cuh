// Second launch of a convolution by packed lines: each number, scaled, as two FP16 parts or, where these would not be exact
// enough, as three of BF16. A thread packs eight neighbouring channels at a time: 16 bytes of each part.
#pragma once
#include "common/overlap.cuh"
#include "conv/lines.cuh"
#include "conv/survey_lines.cuh"
#include "parts/split.cuh"

namespace lines {

constexpr unsigned PACK_THREADS = 256, PACK_WARPS = PACK_THREADS / 32;
constexpr unsigned PACK_STEPS = 4;   // of a warp
constexpr unsigned PACKED = IS_NHWC ? 8 : 32;   // pixels of a warp at a time
constexpr unsigned BATCHES = tw::ceil_div(STEPS, PACK_STEPS);
constexpr unsigned PIXEL_ITEMS = tw::ceil_div(PIXELS, PACKED) * BATCHES;   // each a warp's
constexpr unsigned FILTER_ITEMS = tw::ceil_div(FILTERS, GROUP) * TAPS * BATCHES;
[[maybe_unused]] constexpr unsigned PACK_BLOCKS = tw::ceil_div(PIXEL_ITEMS, PACK_WARPS) + tw::ceil_div(FILTER_ITEMS, PACK_WARPS);

// The nearest FP16 or (PARTS == WIDE) BF16 number, its bits; and back.
template <unsigned PARTS>
__device__ __forceinline__ unsigned short narrowed(float x) {
  unsigned short bits;
  if constexpr (PARTS == WIDE) asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  else asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
template <unsigned PARTS>
__device__ __forceinline__ float widened(unsigned short bits) {
  if constexpr (PARTS == WIDE) return __uint_as_float(static_cast<unsigned>(bits) << 16);
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}

// Eight numbers times two powers of two, each part what those before leave. Of an infinity or a NaN the first is the same
// and others are zero. With `is_odd` the first is not zero where the number is not, so that its product with infinity is
// right.
template <unsigned PARTS>
__device__ __forceinline__ void split_eight(
    const float (&x)[8], float first, float second, bool is_odd, uint4 (&out)[PARTS]) {
  if constexpr (PARTS == FINE) {
    const float factor = first * second;   // infinite where all numbers are close to the smallest
    if (!is_odd && factor <= 0x1.fffffep127f) {
      split_usual(x, factor, out[0], out[1]);
      return;
    }
  }
  unsigned words[PARTS][4] = {};
#pragma unroll
  for (unsigned i = 0; i < 8; ++i) {
    const float scaled = x[i] * first * second;
    unsigned part = narrowed<PARTS>(scaled);
    float left = fabsf(scaled) <= 0x1.fffffep127f ? scaled - widened<PARTS>(static_cast<unsigned short>(part)) : 0.0f;
    if (is_odd && x[i] != 0.0f && (part & 0x7fff) == 0) part |= 1;
    words[0][i / 2] |= part << i % 2 * 16;
#pragma unroll
    for (unsigned p = 1; p < PARTS; ++p) {
      part = narrowed<PARTS>(left);
      left -= widened<PARTS>(static_cast<unsigned short>(part));
      words[p][i / 2] |= part << i % 2 * 16;
    }
  }
#pragma unroll
  for (unsigned p = 0; p < PARTS; ++p) out[p] = make_uint4(words[p][0], words[p][1], words[p][2], words[p][3]);
}

template <unsigned PARTS>
__device__ __forceinline__ void pack_pixels(
    const float* __restrict__ X, unsigned char* workspace, unsigned item, const Summary& known) {
  if (item >= PIXEL_ITEMS) return;
  const unsigned lane = threadIdx.x % 32, first_step = item % BATCHES * PACK_STEPS;
  const unsigned pixel = item / BATCHES * PACKED + (IS_NHWC ? lane / 4 : lane);
  if (pixel >= PIXELS) return;
  const unsigned image = pixel / (IMAGE_H * IMAGE_W), inside = pixel % (IMAGE_H * IMAGE_W);
  const unsigned y = inside / IMAGE_W + PADDING_H, x = inside % IMAGE_W + PADDING_W;   // in the padded image
  const unsigned row = y / STRIDE_H, column = x / STRIDE_W, phase_h = y % STRIDE_H, phase_w = x % STRIDE_W;
  if (row >= GRID_H || column >= GRID_W || phase_h >= PHASES_H || phase_w >= PHASES_W) return;   // no tap touches it
  const unsigned line = (image * PITCH_H + row) * PITCH_W + column, set = phase_h * PHASES_W + phase_w;
  const int scale = scale_of(known.largest);
  const float first = power_of_two(scale / 2), second = power_of_two(scale - scale / 2);   // one may be beyond 2^127
#pragma unroll
  for (unsigned i = 0; i < PACK_STEPS; ++i) {
    const unsigned step = first_step + i;
    if (STEPS % PACK_STEPS != 0 && step >= STEPS) return;
#pragma unroll
    for (unsigned j = 0; j < (IS_NHWC ? 1 : CHUNKS); ++j) {
      const unsigned chunk = IS_NHWC ? lane % 4 : j, channel = step * STEP + chunk * 8;
      const float* source = X + index_x(image, inside / IMAGE_W, inside % IMAGE_W, channel);
      float numbers[8];
      if constexpr (IS_NHWC) {
        const float4 low = *reinterpret_cast<const float4*>(source), high = *reinterpret_cast<const float4*>(source + 4);
        numbers[0] = low.x, numbers[1] = low.y, numbers[2] = low.z, numbers[3] = low.w;
        numbers[4] = high.x, numbers[5] = high.y, numbers[6] = high.z, numbers[7] = high.w;
      } else {
#pragma unroll
        for (unsigned k = 0; k < 8; ++k) numbers[k] = source[static_cast<size_t>(k) * (IMAGE_H * IMAGE_W)];
      }
      uint4 out[PARTS];
      split_eight<PARTS>(numbers, first, second, known.is_odd, out);
#pragma unroll
      for (unsigned p = 0; p < PARTS; ++p) {
        *reinterpret_cast<uint4*>(line_chunk(workspace, p, set, step, chunk, line)) = out[p];
      }
    }
  }
}

template <unsigned PARTS>
__device__ __forceinline__ void pack_filters(
    const float* __restrict__ W, unsigned char* workspace, unsigned item, const Summary& known) {
  if (item >= FILTER_ITEMS) return;
  const unsigned lane = threadIdx.x % 32, row = lane / 4, chunk = lane % 4, first_step = item % BATCHES * PACK_STEPS;
  const unsigned tap = item / BATCHES % TAPS, group = item / BATCHES / TAPS, filter = group * GROUP + row;
  const bool is_inside = FILTERS % GROUP == 0 || filter < FILTERS;
  const int scale = is_inside ? scales(workspace)[filter] : 0;
  const float first = power_of_two(scale / 2), second = power_of_two(scale - scale / 2);
#pragma unroll
  for (unsigned i = 0; i < PACK_STEPS; ++i) {
    const unsigned step = first_step + i, channel = step * STEP + chunk * 8;
    if (STEPS % PACK_STEPS != 0 && step >= STEPS) return;
    const float* source = W + static_cast<size_t>(filter) * (TAPS * CHANNELS);
    float numbers[8];
#pragma unroll
    for (unsigned k = 0; k < 8; ++k) {
      numbers[k] = is_inside ? source[IS_NHWC ? tap * CHANNELS + channel + k : (channel + k) * TAPS + tap] : 0.0f;
    }
    uint4 out[PARTS];
    split_eight<PARTS>(numbers, first, second, known.is_odd, out);
    unsigned char* target = filter_group<PARTS>(workspace, tap, step, group) + row * 64 + (chunk ^ row / 2 % 4) * 16;
#pragma unroll
    for (unsigned p = 0; p < PARTS; ++p) *reinterpret_cast<uint4*>(target + p * GROUP_BYTES) = out[p];
  }
}

// All of the launch: PACK_BLOCKS.
__device__ __forceinline__ void pack(const float* __restrict__ X, const float* __restrict__ W, unsigned char* workspace) {
  constexpr unsigned FILTER_BLOCKS = tw::ceil_div(FILTER_ITEMS, PACK_WARPS);
  begin_overlapped();
  const Summary known = *summary(workspace);
  const bool wide = is_wide(known);
  const unsigned warp = threadIdx.x / 32;
  if (blockIdx.x < FILTER_BLOCKS) {
    const unsigned item = blockIdx.x * PACK_WARPS + warp;
    if (wide) pack_filters<WIDE>(W, workspace, item, known);
    else pack_filters<FINE>(W, workspace, item, known);
  } else {
    const unsigned item = (blockIdx.x - FILTER_BLOCKS) * PACK_WARPS + warp;
    if (wide) pack_pixels<WIDE>(X, workspace, item, known);
    else pack_pixels<FINE>(X, workspace, item, known);
  }
}

}  // namespace lines
