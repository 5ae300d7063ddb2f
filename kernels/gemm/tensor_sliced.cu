// C = alpha op(A) op(B) + beta C, row-major, in float32 on tensor cores, where tiles are few: tensor_mma.cu tells what both
// share. Here SLICES groups of a block's warps share the terms of every step, blocks of a cluster send each other their
// sums, and the launch begins while the one before ends, on multiprocessors that have room for RESIDENT blocks and no
// more.
//   tile  (WARPS_M * WARP_M) x (WARPS_N * WARP_N), a warp WARP_M x WARP_N of it and of the terms a part
//   block (WARPS_M * WARPS_N * SLICES * 32): one axis
//   grid  (row tiles * column tiles * SPLIT_K, matrices of the batch), in groups of GROUP_M row tiles
// NVIDIA, "CUTLASS: Fast Linear Algebra in CUDA C++" (2017), whose sliced k this is.
#include "mma/sliced.cuh"
#include "tensor_mma.cu"
