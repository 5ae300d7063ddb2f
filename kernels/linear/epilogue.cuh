// Epilogue of a layer: Y = act(sum + b). Headers that several kernels share write through it.
#pragma once
#include "common/activation.cuh"
#include "common/global_memory.cuh"
#include "problem.cuh"

struct Epilogue {
  static constexpr bool ROWS_ARE_CONTIGUOUS = true;
  const REAL* bias;
  REAL* Y;

  // There is but one matrix.
  __device__ __forceinline__ const Epilogue& of_matrix(unsigned) const { return *this; }

  // WIDTH neighbours of a row; rows of Y divide into WIDTH, and `column` by it.
  template <unsigned WIDTH>
  __device__ __forceinline__ void write(unsigned row, unsigned column, const Pack<WIDTH>& sum) const {
    Pack<WIDTH> out = load_pack<WIDTH>(bias + column);
#pragma unroll
    for (unsigned i = 0; i < WIDTH; ++i) out.lane[i] = activate(sum.lane[i] + out.lane[i]);
    store_global<WIDTH>(Y + static_cast<size_t>(row) * N + column, out);
  }
};
