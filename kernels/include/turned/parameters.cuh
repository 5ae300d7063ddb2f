// Parameters of the variant `tensor_half_turned_sm90`, and constants that follow from them.
#pragma once
#include "hmma/element.cuh"   // before all that has REAL

#include "common/integers.cuh"
#include "common/product.cuh"

#ifndef TILE_M
#define TILE_M 64         // rows of a block's tile of C, by 8: a product's columns
#endif
#ifndef TILE_N
#define TILE_N 128        // columns of it, by 64: a product's rows
#endif
#ifndef MULTIPLIERS
#define MULTIPLIERS 2     // warpgroups of a block that multiply, which share the rows of A
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
#define SPLIT_K 1         // blocks of a cluster that have a tile together; a block then has one tile
#endif
#ifndef SPLIT_FAR
#define SPLIT_FAR 1       // blocks of as many clusters that have a tile together, by the workspace; a block then has one tile
#endif
#ifndef BLOCKS
#define BLOCKS 132        // multiprocessors to fill
#endif
#ifndef GROUP_M
#define GROUP_M 8         // clusters of row tiles that share columns of B in the L2 cache
#endif
#define CLUSTER (CLUSTER_M * CLUSTER_N * SPLIT_K)
#ifndef PAIRED
#define PAIRED 0          // 1: B has rows of two matrices, N each, one behind the other; C is made of both products
#endif
#define PORTIONS (SPLIT_K * SPLIT_FAR)   // of k
#define WGMMA_COLUMNS TILE_M
#define SPLIT SPLIT_FAR
#include "common/workspace.cuh"

constexpr unsigned STEP_K = 64;   // of a step: 128 bytes of a line, what the swizzle spans
constexpr unsigned LINE_BYTES = 128;
constexpr unsigned BLOCK_BYTES = 64 * LINE_BYTES;   // a step of 64 rows or columns
constexpr unsigned BLOCKS_N = TILE_N / 64 / MULTIPLIERS;   // of 64 columns of C, of a warpgroup
constexpr unsigned FACTORS = 1 + PAIRED, TILE_COLUMNS = TILE_N / FACTORS;   // matrices of B, and columns of C
constexpr unsigned GROUPS = TILE_M / 8;                    // of 8 rows of C
constexpr unsigned MULTIPLYING = 128 * MULTIPLIERS, THREADS = MULTIPLYING + 128;
constexpr unsigned A_BYTES = TRANS_A ? tw::ceil_div(unsigned{TILE_M}, 64u) * BLOCK_BYTES : TILE_M * LINE_BYTES;
constexpr unsigned B_BYTES = TILE_N * LINE_BYTES, STAGE_BYTES = A_BYTES + B_BYTES;

// A warpgroup stores PIECE_M rows of 64 columns of C at once, in boxes of 128 bytes of a row.
constexpr unsigned PIECE_M = 16, BOX_M = TILE_M % PIECE_M == 0 && SPLIT_K == 1 ? PIECE_M : 8;
constexpr unsigned BOX_N = LINE_BYTES / sizeof(Stored);
constexpr unsigned PIECE_BYTES = PIECE_M * 64 * sizeof(Stored), LEAST_STAGING_BYTES = MULTIPLIERS * 2 * PIECE_BYTES;

// Shared memory of a block, less what the driver reserves, alignment and barriers.
constexpr unsigned MOST_SHARED = 228 * 1024 / RESIDENT - 3 * 1024;
constexpr unsigned STAGES = tw::min((MOST_SHARED - LEAST_STAGING_BYTES) / STAGE_BYTES, 16u);
// Pieces that one of a warpgroup's two buffers takes: as many as there is room for beside the ring.
constexpr unsigned STAGING = tw::min((MOST_SHARED - STAGES * STAGE_BYTES) / LEAST_STAGING_BYTES, BLOCKS_N / FACTORS * tw::ceil_div(GROUPS, 2u));
static_assert(TILE_M % 8 == 0 && TILE_N % (64 * MULTIPLIERS) == 0, "a product has 64 rows, and columns by 8");
static_assert(!PAIRED || (BLOCKS_N % 2 == 0 && TRANS_B), "a warpgroup has blocks of both matrices in turn");
static_assert(!TRANS_A || TILE_M % 64 == 0, "across k, boxes have 64 rows of A");
static_assert(STAGES > 1, "a step is released only when the next has begun");
static_assert(SPLIT_K == 1 || TILE_M * TILE_N * 4 <= STAGES * STAGE_BYTES, "a tile's sums take the ring's place");
static_assert(SPLIT_K == 1 || SPLIT_FAR == 1, "blocks add up a tile in one way");
static_assert(CLUSTER <= 8, "as many blocks as every device lets a cluster have");

// Registers of a thread at the launch, of one that loads, and of one that multiplies.
constexpr unsigned LAUNCH_REGISTERS = tw::min(65536 / (THREADS * RESIDENT) / 8 * 8, 256u);
constexpr bool MOVES_REGISTERS = THREADS * RESIDENT > 256;
constexpr unsigned LOADING_REGISTERS = 24;
constexpr unsigned MULTIPLYING_REGISTERS =
    tw::min((LAUNCH_REGISTERS * (MULTIPLIERS + 1) - LOADING_REGISTERS) / MULTIPLIERS / 8 * 8, 240u);
constexpr unsigned STEPS = tw::ceil_div(K, STEP_K);
static_assert(PORTIONS <= STEPS, "a block has one step or more");
