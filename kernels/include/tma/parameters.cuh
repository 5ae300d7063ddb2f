// What a configuration of the variant `tensor_half_sm90` says, and what follows from it.
#pragma once
#include "hmma/element.cuh"   // before all that has REAL

#include "common/integers.cuh"
#include "common/product.cuh"

#ifndef TILE_M
#define TILE_M 128        // rows of a block's tile
#endif
#ifndef TILE_N
#define TILE_N 256        // columns of it, by 64 or, where operands are packed, by 8; PAIRED, half of them of either matrix
#endif
#ifndef MULTIPLIERS
#define MULTIPLIERS 2     // warpgroups of a block that multiply, each 64 rows of the tile or 128
#endif
#ifndef RESIDENT
#define RESIDENT 1        // blocks that a multiprocessor has at once
#endif
#ifndef CLUSTER_M
#define CLUSTER_M 1       // blocks, one below the other, that share columns of B
#endif
#ifndef CLUSTER_N
#define CLUSTER_N 1       // blocks beside one another that share rows of A
#endif
#ifndef SPLIT_K
#define SPLIT_K 1         // blocks of each tile; a block then has one tile, and is in a cluster with others of it only
#endif
#ifndef GROUP_M
#define GROUP_M 8         // clusters of row tiles that share columns of B in the L2 cache
#endif
#ifndef PAIRED
#define PAIRED 0          // 1: B has rows of two matrices, N each, one behind the other; C is made of both products
#endif
#define CLUSTER_K (SPLIT_K % 2 ? 1 : SPLIT_K % 4 ? 2 : SPLIT_K % 8 ? 4 : 8)   // of the SPLIT_K, those of a cluster
#define CLUSTER (CLUSTER_M * CLUSTER_N * CLUSTER_K)
#define SPLIT (SPLIT_K / CLUSTER_K)   // clusters of a tile, which meet in the workspace
#include "common/workspace.cuh"

constexpr unsigned STEP_K = 64;   // of a step: 128 bytes of a line, what the swizzle spans
constexpr unsigned LINE_BYTES = 128;
constexpr unsigned ROW_BLOCKS = TILE_M / 64 / MULTIPLIERS;       // of 64 rows, of a warpgroup
constexpr unsigned MULTIPLYING = 128 * MULTIPLIERS, THREADS = MULTIPLYING + 128;
constexpr unsigned FACTORS = 1 + PAIRED;                         // matrices of B
constexpr unsigned TILE_COLUMNS = TILE_N / FACTORS;              // of C
#ifndef IS_PACKED
#define IS_PACKED 0   // 1: operands are packed ahead (tma/pack.cuh)
#endif
// Bytes and columns of a row of C that are stored together. Where operands are packed, the last may be fewer.
constexpr unsigned PIECE_LINE_BYTES =
    IS_PACKED || TILE_COLUMNS * sizeof(Stored) % LINE_BYTES == 0 ? LINE_BYTES : LINE_BYTES / 2;
[[maybe_unused]] constexpr unsigned PIECE_N = PIECE_LINE_BYTES / sizeof(Stored);
constexpr unsigned PIECE_BYTES = 16 * LINE_BYTES;                // of a warp's 16 rows
constexpr unsigned PIECES = tw::ceil_div(TILE_COLUMNS, PIECE_N);      // of a row of the tile
constexpr unsigned PIECES_HELD = IS_PACKED && PIECES == 3 ? 3 : 2;    // of a warp, in shared memory
constexpr unsigned STAGING_BYTES = SPLIT_K > 1 ? 0 : 4 * MULTIPLIERS * PIECES_HELD * PIECE_BYTES;
constexpr unsigned STAGE_BYTES = (TILE_M + TILE_N) * LINE_BYTES;

// Whether rows begin in the middle of sectors of 32 bytes. What goes past the L1 cache, boxes too, then takes twice as long; copies
// that go by it do not. Blocks that share an operand get it by boxes all the same.
__device__ constexpr bool splits_sectors(unsigned leading, size_t stride) {
  return leading % 16 != 0 || (BATCH > 1 && stride % 16 != 0);
}
constexpr bool IS_COPIED_A = !IS_PACKED && CLUSTER_N == 1 && splits_sectors(LDA, STRIDE_A);
constexpr bool HAS_PARTED_B = !IS_PACKED && CLUSTER_M == 1 && splits_sectors(LDB, STRIDE_B);
constexpr bool IS_COPIED_B = HAS_PARTED_B && !PAIRED;   // lines of two matrices come by boxes
constexpr bool IS_COPIED = IS_COPIED_A || IS_COPIED_B;
constexpr unsigned LOADERS = 128;   // threads that copy

// A block's share of memory without the driver's part, alignment and barriers. Copies wait in the L1 cache's part.
constexpr unsigned MOST_SHARED = 228 * 1024 / RESIDENT - 3 * 1024;
constexpr unsigned STAGES = tw::min((MOST_SHARED - STAGING_BYTES) / STAGE_BYTES, IS_COPIED_A || HAS_PARTED_B ? 4u : 8u);
static_assert(TILE_M % (64 * MULTIPLIERS) == 0 && ROW_BLOCKS * TILE_N <= 256 + 16 * IS_PACKED, "what a warpgroup can hold");
static_assert(STAGES > 1, "a step is released only when the next has begun");
static_assert(SPLIT_K == 1 || CLUSTER_M * CLUSTER_N == 1, "blocks of a cluster share a tile or an operand");
static_assert(!PAIRED || (TRANS_B && sizeof(Stored) == 2), "what is made of pairs of sums");
static_assert(CLUSTER_K == 1 || TILE_M * TILE_N * 4 <= STAGES * STAGE_BYTES, "a tile's sums take the ring's place");

// Registers of a thread at the launch, of one that loads, and of one that multiplies.
constexpr unsigned LAUNCH_REGISTERS = tw::min(65536 / (THREADS * RESIDENT) / 8 * 8, 256u);
constexpr bool MOVES_REGISTERS = THREADS * RESIDENT > 256;
constexpr unsigned LOADING_REGISTERS = IS_COPIED ? 96 : IS_PACKED ? 40 : 24;
constexpr unsigned MULTIPLYING_REGISTERS =
    tw::min((LAUNCH_REGISTERS * (MULTIPLIERS + 1) - LOADING_REGISTERS) / MULTIPLIERS / 8 * 8, 240u);
constexpr unsigned STEPS = tw::ceil_div(K, STEP_K);
// The parts of 16 k that count in the last step; with tensor maps, leaving out the others gained nothing.
constexpr unsigned LAST_PARTS = IS_PACKED ? tw::ceil_div(K - (STEPS - 1) * STEP_K, 16u) : STEP_K / 16;
