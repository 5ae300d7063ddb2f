// What a configuration of the variant `streamed_half_sm90` says, and what follows from it.
#pragma once
#ifndef SHAPE_M
#define SHAPE_M 16      // rows of A: tokens, 64 at most
#define SHAPE_N 4096    // columns of op(B)
#define SHAPE_K 4096    // length of each inner product
#endif
#include "hmma/element.cuh"   // before all that has REAL

#include "common/integers.cuh"
#include "common/product.cuh"

#ifndef TILE_N
#define TILE_N 64       // columns of C that a block computes: 64, 128 or 256
#endif
#ifndef SPLIT_K
#define SPLIT_K 1       // blocks of a cluster, which have a tile together and a part of k each
#endif
#ifndef RESIDENT
#define RESIDENT 1      // blocks that share a multiprocessor's memory
#endif
#ifndef DEPTH
#define DEPTH 32        // steps under way, at most
#endif
#ifndef WALK
#define WALK 0          // where along k a tile begins: 0 at its first step, 1 at a place of its own
#endif
#ifndef PAIRED
#define PAIRED 0        // 1: B has rows of two matrices, N each, one behind the other; C is made of both products
#endif
// Rows of A with the zeros below them, which stand where a product has its columns; a thread's sums of 64 columns of B.
constexpr unsigned COLUMNS = M <= 8 ? 8 : M <= 16 ? 16 : M <= 32 ? 32 : 64;
constexpr unsigned SUMS = COLUMNS / 2;
static_assert(!TRANS_A, "rows of A, 64 at most, lie along k");
static_assert(TILE_N % 64 == 0 && (TRANS_B || !PAIRED), "a product has 64 rows; lines of a pair are those along k");

constexpr unsigned FACTORS = 1 + PAIRED;   // matrices of B
constexpr unsigned STEP_K = 64;            // of a step: 128 bytes of a line, what the swizzle spans
constexpr unsigned LINE_BYTES = 128;
constexpr unsigned BLOCK_BYTES = 64 * LINE_BYTES;                        // of a step of 64 columns of B
constexpr unsigned TILE_BLOCKS = FACTORS * TILE_N / 64;
constexpr unsigned STAGE_BYTES = TILE_BLOCKS * BLOCK_BYTES + COLUMNS * LINE_BYTES;
constexpr unsigned MULTIPLYING = 128, THREADS = MULTIPLYING + 32;        // a warpgroup, and a warp that loads
constexpr unsigned STEPS = tw::ceil_div(K, STEP_K);
// A block's share of shared memory, without the driver's part, alignment and barriers.
constexpr unsigned MOST_SHARED = 228 * 1024 / RESIDENT - 3 * 1024;
constexpr unsigned STAGES =
    tw::min(tw::min(MOST_SHARED / STAGE_BYTES, unsigned{DEPTH}), tw::max(tw::ceil_div(STEPS, unsigned{SPLIT_K}), 2u));
// Sums of a tile in shared memory, a row of A after the other: four floats more make writes free of bank conflicts.
constexpr unsigned PITCH = FACTORS * TILE_N + 4;
static_assert(STAGES > 1, "a step is released only when the next has begun");
static_assert(COLUMNS * PITCH * 4 <= STAGES * STAGE_BYTES, "a tile's sums take the ring's place");
static_assert(STEPS >= SPLIT_K, "every block has a step");
