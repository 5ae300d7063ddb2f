// Epilogue of a gated pair where operands have 16 bits: both sums of an element of Y, rounded once.
#pragma once
#include "gate.cuh"
#include "hmma/element.cuh"
#include "problem.cuh"

struct Epilogue {
  Stored* Y;

  // The gated number from the sums of both products.
  __device__ static __forceinline__ float combined(float gate, float up) { return gated(gate, up); }

  // WIDTH neighbours of a row; rows of Y divide into WIDTH, and `column` by it.
  template <unsigned WIDTH>
  __device__ __forceinline__ void write(unsigned row, unsigned column, const Pack<WIDTH>& value) const {
    store_floats<WIDTH>(Y + static_cast<size_t>(row) * N + column, value);
  }
};
