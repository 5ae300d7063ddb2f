// Epilogue of gemm: C = alpha sum + beta C. Headers that several kernels share write through it.
#pragma once
#include "common/global_memory.cuh"
#include "problem.cuh"

struct Epilogue {
  static constexpr bool ROWS_ARE_CONTIGUOUS = true;
  REAL alpha, beta;
  REAL* C;

  // The same for that matrix of the batch.
  __device__ __forceinline__ Epilogue of_matrix(unsigned matrix) const {
    return BATCH == 1 ? *this : Epilogue{alpha, beta, C + matrix * STRIDE_C};
  }

  // WIDTH neighbours of a row; N, LDC and STRIDE_C divide into WIDTH, and `column` by it.
  template <unsigned WIDTH>
  __device__ __forceinline__ void write(unsigned row, unsigned column, const Pack<WIDTH>& sum) const {
    REAL* target = C + static_cast<size_t>(row) * LDC + column;
    Pack<WIDTH> out = {};
    if (!BETA_ZERO) out = load_pack<WIDTH>(target);
#pragma unroll
    for (unsigned i = 0; i < WIDTH; ++i) {
      out.lane[i] = BETA_ZERO ? alpha * sum.lane[i] : alpha * sum.lane[i] + beta * out.lane[i];
    }
    store_global<WIDTH>(target, out);
  }
};
