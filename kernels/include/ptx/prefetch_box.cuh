// A box of a tensor on its way to the L2 cache alone (PTX ISA, "cp.async.bulk.prefetch.tensor"; compute capability 9.0).
#pragma once
#include "ptx/tensor_map.cuh"

// Fetches a box to the L2 cache only. What is written there later is seen all the same.
__device__ __forceinline__ void prefetch_box(const TensorMap& map, const BoxStart& start) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global [%0, {%1, %2, %3}];"
               ::"l"(&map), "r"(start.column), "r"(start.row), "r"(start.matrix) : "memory");
}
