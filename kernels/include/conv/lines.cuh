// Images as lines of channels, packed so that each tap of a convolution is the same lines a constant distance further on,
// and the workspace that holds them (conv2d/tensor_fp16_sm90.cu tells what for).
//
// A line is a pixel of the padded images, in the order of the outputs. Where outputs are STRIDE pixels apart, so are
// neighbouring lines, and there is a set of lines for each phase that taps are in. Zeros on the right of a row are also those on
// the left of the next where their neighbours are one pixel apart, and so are rows of zeros between images. Zeros are
// never written: the workspace has them from the start.
#pragma once
#include "common/integers.cuh"
#include "conv/patches.cuh"
#ifndef TILE_N
#define TILE_N 128      // filters that a block computes
#endif
#ifndef PROMOTE_K
#define PROMOTE_K 256   // products that the tensor cores add up before FP32 registers do
#endif
#ifndef BLOCKS
#define BLOCKS 132      // of the grid
#endif
#include "parts/wgmma.cuh"

namespace lines {

constexpr unsigned TILE = 128;           // lines that a block computes
constexpr unsigned STEP = 32;            // channels of a step: 64 bytes of a part
constexpr unsigned CHUNKS = 4;           // 16 bytes each, of a step
constexpr unsigned STEPS = CHANNELS / STEP;   // of a tap
constexpr unsigned FINE = 2, WIDE = 3;   // parts of a number, in FP16 and in BF16
constexpr unsigned GROUP = 8;            // filters that the tensor cores' swizzle spans
constexpr unsigned GROUP_BYTES = GROUP * STEP * 2;   // of a part and a step
static_assert(CHANNELS % STEP == 0, "a step is of one tap");

constexpr unsigned REACH_H = DILATION_H * (KERNEL_H - 1), REACH_W = DILATION_W * (KERNEL_W - 1);
constexpr unsigned PHASES_H = tw::min(STRIDE_H, REACH_H + 1), PHASES_W = tw::min(STRIDE_W, REACH_W + 1);
constexpr unsigned GRID_H = OUT_H + REACH_H / STRIDE_H, GRID_W = OUT_W + REACH_W / STRIDE_W;   // what taps touch
constexpr unsigned PITCH_H = GRID_H - (STRIDE_H == 1 ? tw::min(PADDING_H, REACH_H) : 0);       // from image to image
constexpr unsigned PITCH_W = GRID_W - (STRIDE_W == 1 ? tw::min(PADDING_W, REACH_W) : 0);       // from row to row
constexpr unsigned OUTPUTS = IMAGES * PITCH_H * PITCH_W;   // lines, of which some are no outputs
constexpr unsigned TILES = tw::ceil_div(OUTPUTS, TILE);
// Taps of a row that one load serves: those that are lines of one set, where they are not too far apart.
constexpr unsigned BUNDLE = STRIDE_W == 1 && REACH_W <= 64 ? KERNEL_W : 1;
constexpr unsigned BUNDLES = TAPS / BUNDLE;
constexpr unsigned LOADED = TILE + (BUNDLE > 1 ? tw::ceil_div(REACH_W, 8u) * 8 : 0);   // lines of a load
// Lines of a set, with what the last tile reads beyond.
constexpr unsigned SET = TILES * TILE + REACH_H / STRIDE_H * PITCH_W + REACH_W / STRIDE_W + LOADED - TILE;
constexpr unsigned FILTER_GROUPS = tw::ceil_div(FILTERS, unsigned{TILE_N}) * (TILE_N / GROUP);

// Facts about images and filters that are found before anything is packed; all zero between launches.
struct Summary {
  unsigned finished;   // blocks of the last launch
  unsigned is_odd;     // whether there is an infinity or a NaN
  unsigned largest;    // bits of the largest magnitude of all pixels
  unsigned smallest;   // the complement of the bits of the smallest largest magnitude of a pixel that is not all zeros
  unsigned zeros[2];   // most zeros of a pixel, and of a tap of a filter
  float deficit[2];    // most bits that the numbers of a pixel, a tap, lie below the largest of the pixel, the filter
};

constexpr size_t SCALES_AT = 256;   // of filters
constexpr size_t FILTERS_AT = (SCALES_AT + 4 * static_cast<size_t>(FILTERS) + 255) / 256 * 256;
constexpr size_t ALL_FILTERS_BYTES = static_cast<size_t>(TAPS) * STEPS * FILTER_GROUPS * WIDE * GROUP_BYTES;
constexpr size_t SETS_AT = FILTERS_AT + ALL_FILTERS_BYTES;
constexpr size_t PART_LINES = static_cast<size_t>(PHASES_H) * PHASES_W * STEPS * CHUNKS * SET;   // 16 bytes each

__device__ __forceinline__ Summary* summary(unsigned char* workspace) { return reinterpret_cast<Summary*>(workspace); }
__device__ __forceinline__ int* scales(unsigned char* workspace) { return reinterpret_cast<int*>(workspace + SCALES_AT); }

// The 16 bytes of a part, a set, a step, a chunk and a line.
__device__ __forceinline__ unsigned char* line_chunk(
    unsigned char* workspace, unsigned part, unsigned set, unsigned step, unsigned chunk, unsigned line) {
  const size_t run = (static_cast<size_t>(set) * STEPS + step) * CHUNKS + chunk;
  return workspace + SETS_AT + (part * PART_LINES + run * SET + line) * 16;
}

// The filters of a tap's step from a group on: their parts one behind the other, group by group, swizzled as tensor cores
// read them.
template <unsigned PARTS>
__device__ __forceinline__ unsigned char* filter_group(unsigned char* workspace, unsigned tap, unsigned step, unsigned group) {
  return workspace + FILTERS_AT + ((static_cast<size_t>(tap) * STEPS + step) * FILTER_GROUPS + group) * (PARTS * GROUP_BYTES);
}

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// 2^23 times the logarithm to the base 2 and 127, at most 0.0861 * 2^23 too small.
__device__ __forceinline__ int logarithm(unsigned bits) {
  const int enlarged = __float_as_int(__uint_as_float(bits) * 0x1p24f) - (24 << 23);
  return bits < 0x00800000u ? enlarged : static_cast<int>(bits);
}

// The exponent of two that brings a number of these bits between 2^14 and 2^15; 0 for none.
__device__ __forceinline__ int scale_of(unsigned bits) {
  if (bits == 0) return 0;
  return 14 - (bits >= 0x00800000u ? static_cast<int>(bits >> 23) - 127 : 31 - __clz(static_cast<int>(bits)) - 149);
}

// Whether two FP16 parts of each number are not exact enough. Of a sum of n products they miss at most n 2^-38 a b, where
// a is the largest number of all pixels and b that of the filter (parts/workspace.cuh has the reasoning). The n products of
// a pixel and a tap are, by the means of logarithms, at least n a b 2^-d, where d is how many bits the n pairs lie below a
// and b on the mean. Where d <= 14 + log2(K) / 2 for every pixel and tap, the bound holds for all their sums; half a bit is
// kept in reserve. Pairs with a zero say nothing.
__device__ __forceinline__ bool is_wide(const Summary& known) {
  if (known.largest == 0) return false;
  const int below = logarithm(known.largest) - logarithm(~known.smallest);
  const float spread = static_cast<float>(below) * 0x1p-23f + 0.0861f;
  const float deficit = known.deficit[0] + known.deficit[1] + spread * static_cast<float>(CHANNELS);
  const float pairs = static_cast<float>(CHANNELS) - static_cast<float>(known.zeros[0]) - static_cast<float>(known.zeros[1]);
  return !(pairs > 0 && deficit <= pairs * (13.5f + 0.5f * log2f(static_cast<float>(TAPS * CHANNELS))));
}

}  // namespace lines
