// Epilogue of a layer where operands have 16 bits: Y = act(sum + b), rounded once.
#pragma once
#include "common/activation_half.cuh"
#include "hmma/element.cuh"
#include "problem.cuh"

struct Epilogue {
  const Half* bias;
  Stored* Y;

  // The numbers of Y for WIDTH neighbouring sums of a row; rows of Y divide into WIDTH, and `column` by it.
  template <unsigned WIDTH>
  __device__ __forceinline__ Pack<WIDTH> finished(unsigned, unsigned column, const Pack<WIDTH>& sum) const {
    Pack<WIDTH> out = load_floats<WIDTH>(bias + column);
#pragma unroll
    for (unsigned i = 0; i < WIDTH; ++i) {
      const float total = sum.lane[i] + out.lane[i];
      out.lane[i] = sizeof(Stored) == 2 ? activate_for_half(total) : activate(total);
    }
    return out;
  }

  template <unsigned WIDTH>
  __device__ __forceinline__ void write(unsigned row, unsigned column, const Pack<WIDTH>& sum) const {
    store_floats<WIDTH>(Y + static_cast<size_t>(row) * N + column, finished(row, column, sum));
  }
};
