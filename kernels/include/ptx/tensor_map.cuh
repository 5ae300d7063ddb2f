// Boxes of a tensor between global and shared memory, by a map that the host encoded (PTX ISA, "cp.async.bulk.tensor";
// CUDA driver API, cuTensorMapEncodeTiled; compute capability 9.0). A box's coordinates name its first element, innermost
// axis first; what lies outside the tensor is read as zero and not written. Every map here has three axes: along a row,
// rows, matrices.
#pragma once

// Opaque: a kernel has it as a parameter `const __grid_constant__ TensorMap`, and only its address counts.
struct alignas(128) TensorMap {
  unsigned char bytes[128];
};

struct BoxStart {
  unsigned column, row, matrix;
};

__device__ __forceinline__ void prefetch_tensor_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Copies a box to this block's shared memory; its bytes count at `barrier`.
__device__ __forceinline__ void load_box(unsigned target, const TensorMap& map, const BoxStart& start, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
      ::"r"(target), "l"(&map), "r"(start.column), "r"(start.row), "r"(start.matrix), "r"(barrier) : "memory");
}

// The same to every block of the cluster whose bit is set in `blocks`, at the same address and barrier of each.
__device__ __forceinline__ void load_box_multicast(
    unsigned target, const TensorMap& map, const BoxStart& start, unsigned barrier, unsigned blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;"
      ::"r"(target), "l"(&map), "r"(start.column), "r"(start.row), "r"(start.matrix), "r"(barrier),
      "h"(static_cast<unsigned short>(blocks)) : "memory");
}

// Copies a box from shared memory, as a group of its own.
__device__ __forceinline__ void store_box(const TensorMap& map, const BoxStart& start, unsigned source) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];\ncp.async.bulk.commit_group;"
      ::"l"(&map), "r"(start.column), "r"(start.row), "r"(start.matrix), "r"(source) : "memory");
}

// Waits until no more than so many of the thread's last stores have yet to read shared memory.
template <unsigned PENDING>
__device__ __forceinline__ void wait_for_stores_to_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
