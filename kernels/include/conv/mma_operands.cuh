// Both operands of products by mma.sync where the product is a convolution: mma/operand.cuh lays tiles out and reads them,
// only where a copy comes from is another matter. Offsets in X have 32 bits.
#pragma once
#include "conv/patches.cuh"
#include "mma/operand.cuh"

constexpr bool IS_PADDED = PADDING_H > 0 || PADDING_W > 0;

// Copies are of neighbouring channels where these are contiguous, else of neighbouring pixels where these are patches.
template <unsigned TILE_X, unsigned WARP_X, unsigned EXTENT, bool ALONG_K>
struct PatchOperand
    : TensorOperand<TILE_X, WARP_X, EXTENT, ALONG_K ? K : EXTENT, 0, ALONG_K,
                    ALONG_K ? CHANNELS : IS_POINTWISE ? OUT_PIXELS : 1> {
  typedef TensorOperand<TILE_X, WARP_X, EXTENT, ALONG_K ? K : EXTENT, 0, ALONG_K,
                        ALONG_K ? CHANNELS : IS_POINTWISE ? OUT_PIXELS : 1> Walk;
  static constexpr unsigned ROWS = ALONG_K ? tw::ceil_div(Walk::LINES, Walk::LINES_AT_ONCE) : Walk::ACROSS;   // a thread's
  static constexpr unsigned PIXEL = ALONG_K ? CHANNELS : 1, CHANNEL = ALONG_K ? 1 : IMAGE_H * IMAGE_W;   // elements

  int first[ROWS];    // where in X the corner of a row's patch lies: it may be outside
  int corner[ROWS];   // its y and x, 16 bits each

  __device__ __forceinline__ PatchOperand(
      const REAL* X, unsigned buffers, unsigned x0, unsigned first_step, unsigned warp_x)
      : Walk(X, buffers, x0, first_step, warp_x) {
#pragma unroll
    for (unsigned i = 0; i < ROWS; ++i) {
      const unsigned row = x0 + (ALONG_K ? this->line + i * Walk::LINES_AT_ONCE : this->place + i * Walk::LANES * Walk::WIDTH);
      const Corner at(row);
#ifdef BATCH_AT_LAUNCH
      const int y = row < M ? at.y : -(1 << 15);
#else
      const int y = EXTENT >= TILE_X || row < EXTENT ? at.y : -(1 << 15);   // so far up that no tap is on an image
#endif
      first[i] = static_cast<int>(at.image * (CHANNELS * IMAGE_H * IMAGE_W)) +
                 (at.y * static_cast<int>(IMAGE_W) + at.x) * static_cast<int>(PIXEL);
      corner[i] = y << 16 | (at.x & 0xffff);
    }
  }

  template <unsigned I, bool LAST>
  __device__ __forceinline__ void copy_one(unsigned offset) const {
    constexpr unsigned DOWN = I / Walk::ACROSS * Walk::LINES_AT_ONCE, ALONG = I % Walk::ACROSS * Walk::LANES * Walk::WIDTH;
    constexpr unsigned INTO = (DOWN * Walk::LINE + ALONG) * REAL_BYTES, FLIP = Walk::permutation(DOWN) * 16;
    constexpr unsigned ROW = ALONG_K ? I / Walk::ACROSS : I % Walk::ACROSS;
    if (Walk::LINES % Walk::LINES_AT_ONCE != 0 && this->line + DOWN >= Walk::LINES) return;
    const unsigned beyond = ALONG_K ? this->place + ALONG : this->line + DOWN;   // the first element of the step
    Tap tap(CHANNELS % TILE_K == 0 ? this->p : this->p + beyond);
    if (CHANNELS % TILE_K == 0) tap.channel += beyond;   // all of a step are of one tap
    bool inside = !LAST || this->p + beyond < K;
    if (IS_PADDED) {
      inside = inside && is_on_image((corner[ROW] >> 16) + tap.down, static_cast<short>(corner[ROW]) + tap.across);
    } else if (EXTENT < TILE_X) {
      inside = inside && corner[ROW] >= 0;
    }
    const int at = first[ROW] + (tap.down * static_cast<int>(IMAGE_W) + tap.across) * static_cast<int>(PIXEL) +
                   static_cast<int>(tap.channel * CHANNEL);
    cp_async_zfill<Walk::WIDTH * REAL_BYTES, INTO>(
        (this->target ^ FLIP) + offset, inside ? this->matrix + at : this->matrix, inside);
  }
  __device__ __forceinline__ void copy(unsigned offset) const {
    if (K % TILE_K == 0 || this->p + TILE_K <= K) {
      copy_some<0, Walk::COPIES, false>(*this, offset);
    } else {
      copy_some<0, Walk::COPIES, true>(*this, offset);
    }
  }
  __device__ __forceinline__ void advance() { this->p += TILE_K; }
};

// Filters whose elements are not in the order of the product: the taps of a channel one after the other.
template <unsigned TILE_X, unsigned WARP_X, unsigned EXTENT>
struct TurnedFilterOperand : TensorOperand<TILE_X, WARP_X, EXTENT, K, 0, true, 1> {
  typedef TensorOperand<TILE_X, WARP_X, EXTENT, K, 0, true, 1> Walk;
  using Walk::Walk;

  template <unsigned I, bool LAST>
  __device__ __forceinline__ void copy_one(unsigned offset) const {
    constexpr unsigned DOWN = I / Walk::ACROSS * Walk::LINES_AT_ONCE, ALONG = I % Walk::ACROSS * Walk::LANES;
    constexpr unsigned INTO = (DOWN * Walk::LINE + ALONG) * REAL_BYTES, FLIP = Walk::permutation(DOWN) * 16;
    if (Walk::LINES % Walk::LINES_AT_ONCE != 0 && this->line + DOWN >= Walk::LINES) return;
    const unsigned filter = this->x0 + this->line + DOWN, beyond = this->place + ALONG;
    Tap tap(CHANNELS % TILE_K == 0 ? this->p : this->p + beyond);
    if (CHANNELS % TILE_K == 0) tap.channel += beyond;
    const bool inside = (EXTENT >= TILE_X || filter < EXTENT) && (!LAST || this->p + beyond < K);
    const REAL* source = this->matrix + static_cast<size_t>(filter) * K + index_in_filter(tap);
    cp_async_zfill<REAL_BYTES, INTO>((this->target ^ FLIP) + offset, inside ? source : this->matrix, inside);
  }
  __device__ __forceinline__ void copy(unsigned offset) const {
    if (K % TILE_K == 0 || this->p + TILE_K <= K) {
      copy_some<0, Walk::COPIES, false>(*this, offset);
    } else {
      copy_some<0, Walk::COPIES, true>(*this, offset);
    }
  }
  __device__ __forceinline__ void advance() { this->p += TILE_K; }
};

template <bool IS_ORDERED, unsigned TILE_X, unsigned WARP_X, unsigned EXTENT>
struct ChosenFilterOperand {
  typedef TensorOperand<TILE_X, WARP_X, EXTENT, K, 0, true> Type;
};
template <unsigned TILE_X, unsigned WARP_X, unsigned EXTENT>
struct ChosenFilterOperand<false, TILE_X, WARP_X, EXTENT> {
  typedef TurnedFilterOperand<TILE_X, WARP_X, EXTENT> Type;
};
template <unsigned TILE_X, unsigned WARP_X, unsigned EXTENT>
using FilterOperand = typename ChosenFilterOperand<IS_NHWC || TAPS == 1, TILE_X, WARP_X, EXTENT>::Type;

using OperandA = PatchOperand<TILE_M, WARP_M, KNOWN_M, !TRANS_A>;
using OperandB = FilterOperand<TILE_N, WARP_N, N>;
