// Patches of images as the rows of a matrix op(A), and filters as the columns of op(B), where a convolution is a product
// (conv/sizes.cuh). Row m is the patch of output pixel m; element p of it is channel p % CHANNELS of tap
// p / CHANNELS. What lies outside of the image is zero.
#pragma once
#include "common/integers.cuh"
#include "common/real.cuh"
#include "conv/sizes.cuh"
#define PATCHES 1   // what is shared with products of matrices asks for it

// The image of an output pixel, and where its patch begins there: above or left of it where there is padding.
struct Corner {
  unsigned image;
  int y, x;
  __device__ __forceinline__ explicit Corner(unsigned row) {
    const unsigned inside = row % OUT_PIXELS;
    image = row / OUT_PIXELS;
    y = static_cast<int>(inside / OUT_W * STRIDE_H) - static_cast<int>(PADDING_H);
    x = static_cast<int>(inside % OUT_W * STRIDE_W) - static_cast<int>(PADDING_W);
  }
};

// An element of a patch: its channel, and its distance from the corner, in pixels down and across.
struct Tap {
  unsigned number, channel;
  int down, across;
  __device__ __forceinline__ explicit Tap(unsigned p) {
    number = p / CHANNELS;
    channel = p % CHANNELS;
    down = static_cast<int>(number / KERNEL_W * DILATION_H);
    across = static_cast<int>(number % KERNEL_W * DILATION_W);
  }
};

// Whether a tap of a patch is on the image.
__device__ __forceinline__ bool is_on_image(int y, int x) {
  return static_cast<unsigned>(y) < IMAGE_H && static_cast<unsigned>(x) < IMAGE_W;
}

// Where a channel of a pixel lies in X.
__device__ __forceinline__ size_t index_x(unsigned image, unsigned y, unsigned x, unsigned channel) {
  return IS_NHWC ? ((static_cast<size_t>(image) * IMAGE_H + y) * IMAGE_W + x) * CHANNELS + channel
                 : ((static_cast<size_t>(image) * CHANNELS + channel) * IMAGE_H + y) * IMAGE_W + x;
}

// Where a filter's element lies in W, from the filter's first on.
__device__ __forceinline__ unsigned index_in_filter(const Tap& tap) {
  return IS_NHWC ? tap.number * CHANNELS + tap.channel : tap.channel * TAPS + tap.number;
}

// Where elements of op(A) and op(B) lie; RUN neighbours are one behind the other. False outside of the image.
struct PlacesA {
  static constexpr unsigned RUN = IS_NHWC ? CHANNELS : 1;
  __device__ static __forceinline__ bool find(unsigned row, unsigned p, size_t& at) {
    const Corner corner(row);
    const Tap tap(p);
    const int y = corner.y + tap.down, x = corner.x + tap.across;
    at = index_x(corner.image, y, x, tap.channel);
    return is_on_image(y, x);
  }
};
struct PlacesB {
  static constexpr unsigned RUN = IS_NHWC || TAPS == 1 ? TAPS * CHANNELS : 1;
  __device__ static __forceinline__ bool find(unsigned filter, unsigned p, size_t& at) {
    at = static_cast<size_t>(filter) * (TAPS * CHANNELS) + index_in_filter(Tap(p));
    return true;
  }
};

// Elements of op(A) and op(B).
__device__ __forceinline__ REAL patch_element(const REAL* X, unsigned row, unsigned p) {
  size_t at;
  return PlacesA::find(row, p, at) ? X[at] : REAL(0);
}
__device__ __forceinline__ REAL filter_element(const REAL* W, unsigned p, unsigned column) {
  size_t at;
  PlacesB::find(column, p, at);
  return W[at];
}
