// Parameters of the variant `streamed_sm90`, and constants that follow from them.
#pragma once
#include "hmma/element.cuh"
#include "problem.cuh"

#include "common/integers.cuh"

#ifndef BLOCKS
#define BLOCKS 1     // of 64 rows of W in a tile
#endif
#ifndef PARTS
#define PARTS 1      // of k, of each of which a warpgroup has a block's rows
#endif
#ifndef SPLIT
#define SPLIT 1      // blocks of a cluster that have a tile together and a part of k each
#endif
#ifndef RESIDENT
#define RESIDENT 1   // blocks that share a multiprocessor's memory
#endif
#ifndef DEPTH
#define DEPTH 32     // steps under way, at most
#endif
#ifdef M_AT_LAUNCH
constexpr unsigned MOST_M = 64;   // rows of X that there is room for
#else
constexpr unsigned MOST_M = M;
#endif
// Rows of X with the zeros below them, which stand where a product has its columns; a thread's sums of a block's rows.
constexpr unsigned COLUMNS = MOST_M <= 16 ? 16 : MOST_M <= 32 ? 32 : 64;
constexpr unsigned SUMS = COLUMNS / 2;
constexpr unsigned TILE_N = 64 * BLOCKS;
constexpr unsigned LINE_BYTES = 128;   // of a row of W in a step, and of 64 k of a row of X: what the swizzle spans
constexpr unsigned STEP_K = LINE_BYTES * 8 / BITS, STEPS = tw::ceil_div(K, STEP_K), BOXES = STEP_K / 64;
constexpr unsigned GROUP_K = 128, STEP_GROUPS = STEP_K / GROUP_K;   // sums of which are made at once
constexpr unsigned BLOCK_BYTES = 64 * LINE_BYTES, BOX_BYTES = COLUMNS * LINE_BYTES;
constexpr unsigned STAGE_BYTES = BLOCKS * BLOCK_BYTES + BOXES * BOX_BYTES;
constexpr unsigned MULTIPLYING = 128 * BLOCKS * PARTS, THREADS = MULTIPLYING + 32;   // warpgroups, and a warp that loads
// Sums of a tile in shared memory, of a row of X after the other. A tile that is split has every SPLIT-th four columns of all
// parts beside the ring; else all columns take the ring's place. Four floats more make writes free of bank conflicts.
constexpr unsigned OWN = tw::ceil_div(unsigned{TILE_N}, unsigned{4 * SPLIT}) * 4, PITCH = OWN + 4;
constexpr unsigned SUM_BYTES = SPLIT * PARTS * MOST_M * PITCH * 4, BESIDE = SPLIT == 1 ? 0 : SUM_BYTES;
// Scales, and zero points, of the tile's rows beside the ring: an odd number of words each, so that those of eight rows lie in
// different banks.
constexpr unsigned OWN_GROUPS = GROUPS == 1 ? 1 : tw::ceil_div(STEPS, unsigned{SPLIT}) * STEP_GROUPS;
constexpr unsigned GRID_WORDS = tw::ceil_div(OWN_GROUPS * (1 + ZEROS), 2u) | 1, GRID_BYTES = TILE_N * GRID_WORDS * 4;
// A block's share of shared memory, without the driver's part, alignment and barriers.
constexpr unsigned MOST_SHARED = 228 * 1024 / RESIDENT - 3 * 1024 - BESIDE - GRID_BYTES;
constexpr unsigned STAGES =
    tw::min(tw::min(MOST_SHARED / STAGE_BYTES, unsigned{DEPTH}),
            tw::max(tw::ceil_div(STEPS, unsigned{SPLIT}), tw::max(unsigned{PARTS}, 2u)));
// A warpgroup waits for its next step before it releases the one before.
static_assert(STAGES > PARTS || STAGES >= tw::ceil_div(STEPS, unsigned{SPLIT}), "loads run ahead");
static_assert(SUM_BYTES - BESIDE <= STAGES * STAGE_BYTES, "a tile's sums take the ring's place");
