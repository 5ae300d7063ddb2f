// The ring of steps in shared memory, and how boxes of tensor maps come to lie in it.
#pragma once
#include "ptx/cp_async_bulk.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tensor_map.cuh"
#include "tma/scheduler.cuh"

struct Ring {
  unsigned memory, full, empty;   // addresses: of the first stage, and of STAGES barriers each
  unsigned at = 0, parity = 0;

  __device__ __forceinline__ Ring(unsigned start, unsigned barriers)
      : memory(start), full(barriers), empty(barriers + 8 * STAGES) {}
  __device__ __forceinline__ unsigned stage() const { return memory + at * STAGE_BYTES; }
  __device__ __forceinline__ void advance() {
    if (++at == STAGES) {
      at = 0;
      parity ^= 1;
    }
  }
};

// How a tile of an operand, TILE lines or columns of STEP_K numbers, comes to shared memory and is read there. Where rows
// in memory go along k (K_MAJOR), one box of TILE lines, or one for each of MATRICES that lie N lines apart; else boxes of 64
// columns, one line for each k. SHARERS blocks of a cluster need the same tile: each loads a share of a box and sends it to all.
template <unsigned TILE, bool K_MAJOR, unsigned SHARERS, unsigned MATRICES = 1>
struct BoxedOperand {
  static constexpr bool ACROSS = !K_MAJOR;
  static constexpr unsigned BYTES = TILE * LINE_BYTES;
  static constexpr unsigned BOXES = K_MAJOR ? MATRICES : TILE / 64;
  static constexpr unsigned ALL_LINES = K_MAJOR ? TILE / MATRICES : STEP_K, BOX_LINES = ALL_LINES / SHARERS;
  static_assert(IS_PACKED || BOX_LINES % 8 == 0, "a share is whole repetitions of the swizzle");

  // Starts the copies of what is this block's to load: `first` along the tile's side, the `share`-th of the lines.
  __device__ __forceinline__ static void load(
      const TensorMap& map, unsigned target, unsigned barrier, unsigned first, unsigned k, unsigned matrix, unsigned share,
      unsigned blocks) {
    target += share * (BOX_LINES * LINE_BYTES);
#pragma unroll
    for (unsigned box = 0; box < BOXES; ++box) {
      const BoxStart start = K_MAJOR ? BoxStart{k, first + box * N + share * BOX_LINES, matrix}
                                     : BoxStart{first + box * 64, k + share * BOX_LINES, matrix};
      if constexpr (SHARERS == 1) load_box(target + box * (ALL_LINES * LINE_BYTES), map, start, barrier);
      else load_box_multicast(target + box * (ALL_LINES * LINE_BYTES), map, start, barrier, blocks);
    }
  }

  // The descriptor of the tile from `address` on, by PTX ISA, "Matrix Descriptor Format", in units of 16 bytes: eight
  // lines are 1024 bytes apart; across k, the next 64 columns lie behind all lines of these. The swizzle spans 128 bytes.
  // Packed across k there is none: eight columns have 16 bytes for each k, the next eight follow.
  static constexpr unsigned NEXT_K16 = K_MAJOR ? 2 : IS_PACKED ? 16 : 16 * LINE_BYTES / 16;
  __device__ __forceinline__ static unsigned long long descriptor(unsigned address) {
    constexpr unsigned long long COLUMNS_64 = K_MAJOR ? 1 : STEP_K * LINE_BYTES / 16;
    if constexpr (IS_PACKED && !K_MAJOR) {
      constexpr unsigned long long NEXT_K8 = 8, NEXT_COLUMNS = STEP_K;
      return (address & 0x3ffff) / 16 | NEXT_K8 << 16 | NEXT_COLUMNS << 32;
    }
    return (address & 0x3ffff) / 16 | COLUMNS_64 << 16 | 8ull * LINE_BYTES / 16 << 32 | 1ull << 62;
  }
};

using OperandA = BoxedOperand<TILE_M, !TRANS_A, CLUSTER_N>;
using OperandB = BoxedOperand<TILE_N, TRANS_B, CLUSTER_M, FACTORS>;
