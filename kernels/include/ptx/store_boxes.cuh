// Boxes and matrices on their way from registers to global memory, as the variants of turned/ store them (PTX ISA,
// "cp.async.bulk.tensor", "stmatrix"; compute capability 9.0).
#pragma once
#include "ptx/tensor_map.cuh"

// Starts the copy of a box from shared memory; `commit_boxes` closes the group.
__device__ __forceinline__ void start_box(const TensorMap& map, const BoxStart& start, unsigned source) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
               ::"l"(&map), "r"(start.column), "r"(start.row), "r"(start.matrix), "r"(source) : "memory");
}
__device__ __forceinline__ void commit_boxes() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Four 8 x 8 matrices of 16 bits to shared memory by a warp, transposed: lanes 8 i to 8 i + 7 name the lines of matrix i, 16
// bytes each; lane 4 g + t holds element g of lines 2 t and 2 t + 1 of all four.
__device__ __forceinline__ void stmatrix_x4_trans(unsigned line, const unsigned (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(line), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
}
