// Epilogue of gemm where operands have 16 bits: C = alpha sum + beta C, rounded once.
#pragma once
#include "hmma/element.cuh"
#include "problem.cuh"

struct Epilogue {
  float alpha, beta;
  Stored* C;

  // The numbers of C for WIDTH neighbouring sums of a row; N, LDC and STRIDE_C divide into WIDTH, and `column` by it.
  template <unsigned WIDTH>
  __device__ __forceinline__ Pack<WIDTH> finished(unsigned row, unsigned column, const Pack<WIDTH>& sum) const {
    Pack<WIDTH> out = {};
    if (!BETA_ZERO) out = load_floats<WIDTH>(C + static_cast<size_t>(row) * LDC + column);
#pragma unroll
    for (unsigned i = 0; i < WIDTH; ++i) {
      out.lane[i] = BETA_ZERO ? alpha * sum.lane[i] : alpha * sum.lane[i] + beta * out.lane[i];
    }
    return out;
  }

  template <unsigned WIDTH>
  __device__ __forceinline__ void write(unsigned row, unsigned column, const Pack<WIDTH>& sum) const {
    store_floats<WIDTH>(C + static_cast<size_t>(row) * LDC + column, finished(row, column, sum));
  }
};
