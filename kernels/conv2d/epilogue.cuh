// Epilogue of a convolution: Y = act(sum + b). Headers that several kernels share write through it.
#pragma once
#include "common/activation.cuh"
#include "common/global_memory.cuh"
#include "conv/patches.cuh"
#include "problem.cuh"

// Where channel `channel` of the output pixel of that number lies in Y.
__device__ __forceinline__ size_t index_y(unsigned pixel, unsigned channel) {
  if (IS_NHWC) return static_cast<size_t>(pixel) * OUT_CHANNELS + channel;
  const unsigned image = pixel / OUT_PIXELS, inside = pixel % OUT_PIXELS;
  return (static_cast<size_t>(image) * OUT_CHANNELS + channel) * OUT_PIXELS + inside;
}

struct Epilogue {
  static constexpr bool ROWS_ARE_CONTIGUOUS = IS_NHWC;
  const REAL* bias;
  REAL* Y;

  // All images are one product.
  __device__ __forceinline__ const Epilogue& of_matrix(unsigned) const { return *this; }

  // WIDE neighbours of a row; rows divide into WIDE, and `column` by it.
  template <unsigned WIDE>
  __device__ __forceinline__ void write(unsigned row, unsigned column, const Pack<WIDE>& sum) const {
    Pack<WIDE> out = load_pack<WIDE>(bias + column);
#pragma unroll
    for (unsigned i = 0; i < WIDE; ++i) out.lane[i] = activate(sum.lane[i] + out.lane[i]);
    if constexpr (IS_NHWC) {
      store_global<WIDE>(Y + index_y(row, column), out);
    } else {
      const size_t at = index_y(row, column);
#pragma unroll
      for (unsigned i = 0; i < WIDE; ++i) Y[at + i * OUT_PIXELS] = out.lane[i];
    }
  }
};
