// Blocks of a cluster have the same lines of the operand in shared memory: one thread of each loads a share of these by a
// tensor map, as the tensor cores read them, and sends it to all. Where CLUSTER is 1 each block copies its own (copy.cuh).
#pragma once
#include "ptx/cluster.cuh"
#include "ptx/cp_async_bulk.cuh"
#include "ptx/tensor_map.cuh"
#include "wgmma/stage.cuh"

struct NoMap {};
typedef Conditional<(CLUSTER > 1), TensorMap, NoMap>::Type SharedMap;

template <unsigned BLOCKS_THAT_SHARE>
struct SharedLoader {
  static constexpr unsigned LINES = TILE_S / BLOCKS_THAT_SHARE;
  static_assert(LINES % 8 == 0, "a share is whole repetitions of the swizzle");
  const TensorMap& map;
  const bool sends;   // this thread
  const unsigned rank;
  BoxStart from;

  __device__ __forceinline__ SharedLoader(const TensorMap& map, unsigned thread)
      : map(map), sends(thread == 0), rank(cluster_ctarank()), from{} {}
  __device__ __forceinline__ void start(const float*, unsigned first_line, unsigned first_k, unsigned matrix) {
    from = BoxStart{first_k, first_line + rank * LINES, matrix};
  }
  __device__ __forceinline__ void copy(unsigned buffer, unsigned full) {
    if (sends) {
      mbarrier_arrive_expect_tx(full, SHARED_BYTES);
      load_box_multicast(buffer + rank * (LINES * 4 * STEP_K), map, from, full, (1u << BLOCKS_THAT_SHARE) - 1);
    }
    from.column += STEP_K;
  }
};

template <>
struct SharedLoader<1> : SharedOperand {
  __device__ __forceinline__ SharedLoader(const SharedMap&, unsigned thread) : SharedOperand(thread) {}
  __device__ __forceinline__ void start(const float* matrix, unsigned first_line, unsigned first_k, unsigned) {
    SharedOperand::start(matrix, first_line, first_k);
  }
  __device__ __forceinline__ void copy(unsigned buffer, unsigned) {
    SharedOperand::copy(buffer + (STAGED ? STAGED_AT : 0));
  }
};
