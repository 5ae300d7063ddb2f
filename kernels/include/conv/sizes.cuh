// A convolution's sizes and layouts as constants: Y = act(conv(X, W) + b). With LAYOUT_NHWC X is (batch, height, width,
// channels), W (filters, kernel_h, kernel_w, channels) and Y (batch, out_h, out_w, filters), else X is (batch, channels,
// height, width), W (filters, channels, kernel_h, kernel_w) and Y (batch, filters, out_h, out_w). DEPTHWISE: each channel
// has FILTERS filters of its own, W is (channels * filters, kernel_h, kernel_w), and filter f is for channel f / FILTERS.
//
// The product inside has a row for each output pixel, a column for each filter, and runs along taps and channels, the
// channels of a tap one after the other (conv/patches.cuh). Filters are contiguous along it, pixels with LAYOUT_NHWC.
#pragma once
#include "common/at_launch.cuh"
#ifdef TRANS_B
#error "include conv2d/problem.cuh before the headers of the product that the convolution has inside"
#endif
#if !defined(LAYOUT_NHWC) && !defined(LAYOUT_NCHW)
#define LAYOUT_NHWC 1
#endif
#ifdef LAYOUT_NHWC
#define IS_NHWC 1
#else
#define IS_NHWC 0
#endif
#ifndef DEPTHWISE
#define DEPTHWISE 0
#endif
#ifndef SHAPE_BATCH
#define SHAPE_BATCH 8      // images
#define SHAPE_HEIGHT 56    // of an image, in pixels
#define SHAPE_WIDTH 56
#define SHAPE_CHANNELS 64
#define SHAPE_FILTERS 64   // with DEPTHWISE of each channel
#define SHAPE_KERNEL_H 3
#define SHAPE_KERNEL_W 3
#endif
#ifndef SHAPE_STRIDE
#define SHAPE_STRIDE 1     // pixels from a patch to the next
#endif
#ifndef SHAPE_STRIDE_W
#define SHAPE_STRIDE_W SHAPE_STRIDE
#endif
#ifndef SHAPE_PADDING
#define SHAPE_PADDING 0    // lines of zeros around an image
#endif
#ifndef SHAPE_PADDING_W
#define SHAPE_PADDING_W SHAPE_PADDING
#endif
#ifndef SHAPE_DILATION
#define SHAPE_DILATION 1   // pixels from a tap to the next
#endif
#ifndef SHAPE_DILATION_W
#define SHAPE_DILATION_W SHAPE_DILATION
#endif

#ifdef BATCH_AT_LAUNCH
#define IMAGES size_at_launch()
#define M_AT_LAUNCH 1   // for the product inside
constexpr unsigned IMAGE_H = SHAPE_HEIGHT, IMAGE_W = SHAPE_WIDTH;
#else
constexpr unsigned IMAGES = SHAPE_BATCH, IMAGE_H = SHAPE_HEIGHT, IMAGE_W = SHAPE_WIDTH;
#endif
constexpr unsigned CHANNELS = SHAPE_CHANNELS, FILTERS = SHAPE_FILTERS;
constexpr unsigned KERNEL_H = SHAPE_KERNEL_H, KERNEL_W = SHAPE_KERNEL_W, TAPS = KERNEL_H * KERNEL_W;
constexpr unsigned STRIDE_H = SHAPE_STRIDE, STRIDE_W = SHAPE_STRIDE_W;
constexpr unsigned PADDING_H = SHAPE_PADDING, PADDING_W = SHAPE_PADDING_W;
constexpr unsigned DILATION_H = SHAPE_DILATION, DILATION_W = SHAPE_DILATION_W;
constexpr unsigned OUT_H = (IMAGE_H + 2 * PADDING_H - DILATION_H * (KERNEL_H - 1) - 1) / STRIDE_H + 1;
constexpr unsigned OUT_W = (IMAGE_W + 2 * PADDING_W - DILATION_W * (KERNEL_W - 1) - 1) / STRIDE_W + 1;
[[maybe_unused]] constexpr unsigned OUT_PIXELS = OUT_H * OUT_W, OUT_CHANNELS = DEPTHWISE ? CHANNELS * FILTERS : FILTERS;
// Every patch is a pixel and every pixel a patch.
[[maybe_unused]] constexpr bool IS_POINTWISE = TAPS == 1 && STRIDE_H == 1 && STRIDE_W == 1 && PADDING_H == 0 && PADDING_W == 0;

#define SHAPE_M (IMAGES * OUT_PIXELS)
#define SHAPE_N FILTERS
#define SHAPE_K (TAPS * CHANNELS)
#undef SHAPE_BATCH
#define SHAPE_BATCH 1   // all images are one product
#ifdef BATCH_AT_LAUNCH
#define TRANS_A 0   // for where A lies as a matrix, which nobody asks: with rows at launch its distance of columns is not known
#else
#define TRANS_A (!IS_NHWC)
#endif
#define TRANS_B 1
#include "common/product.cuh"
#ifdef BATCH_AT_LAUNCH
#undef TRANS_A
#define TRANS_A (!IS_NHWC)
#undef M
#define M SHAPE_M
#endif
#include "common/real.cuh"
