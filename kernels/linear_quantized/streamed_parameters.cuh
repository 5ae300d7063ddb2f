// Parameters of the variant `streamed`, and constants that follow from them.
#pragma once
#include "hmma/element.cuh"
#include "problem.cuh"

#include "common/integers.cuh"

#ifndef WARPS_K
#define WARPS_K 8   // warps of a block that share k
#endif
#ifndef WARPS_N
#define WARPS_N 1   // warps of a block side by side
#endif
#ifndef ROWS
#define ROWS 1      // of fragments of a warp: 16 rows of W each
#endif
#ifndef UNROLL
#define UNROLL 1    // steps of 128 k of a stage
#endif
#ifndef DEPTH
#define DEPTH 2     // stages of a warp, one of which is multiplied while the others come
#endif
#ifndef SPLIT
#define SPLIT 1     // blocks of a cluster, which share k
#endif
#ifndef DIVIDE
#define DIVIDE 1    // parts of X's rows, for each of which W is read
#endif
#ifndef ROUNDS
#define ROUNDS 1    // tiles of a block
#endif

constexpr unsigned STEP = 128, STEPS = K / STEP, STEP_LOADS = STEP / (4 * LOAD);   // loads of a lane, of one row
constexpr unsigned QUADS = 4;   // of a lane's terms of a step: eight each, 16 bytes of X
constexpr unsigned PARTS = SPLIT * WARPS_K, THREADS = 32 * WARPS_K * WARPS_N, TILE_N = 16 * ROWS * WARPS_N;
constexpr unsigned TILES = tw::ceil_div(N, unsigned{TILE_N});
constexpr unsigned STRIDE = tw::ceil_div(TILES, unsigned{ROUNDS});   // from a tile to the next
static_assert(UNROLL == 1 || STEPS % (PARTS * UNROLL) == 0, "stages are whole");
constexpr unsigned LINE = K / (8 / BITS), STEP_BYTES = STEP * BITS / 8;   // bytes of a row of W, and of a step of it
// Bytes of a row of S in a stage. A scale alone comes with one of its neighbours: four bytes are copied at least.
constexpr unsigned SCALES = GROUPS == 1 ? 1 + ZEROS : UNROLL * (1 + ZEROS), SCALE_BYTES = SCALES == 1 ? 4 : 2 * SCALES;
constexpr unsigned STEP_WEIGHTS = 2 * ROWS * STEP_LOADS * 32;   // of a warp, of 16 bytes
constexpr unsigned WEIGHT_BYTES = UNROLL * STEP_WEIGHTS * 16, STAGE_BYTES = WEIGHT_BYTES + 16 * ROWS * SCALE_BYTES;
#ifdef M_AT_LAUNCH
constexpr unsigned MOST_M = 64;   // rows that are divided by DIVIDE; blocks along y have as many of what there are
#else
constexpr unsigned MOST_M = M;
#endif
constexpr unsigned COLUMNS = tw::ceil_div(tw::ceil_div(MOST_M, 8u), unsigned{DIVIDE});   // of a block: 8 rows of X each
constexpr unsigned M_ROWS = tw::min(MOST_M, 8 * COLUMNS), X_ROWS = COLUMNS == 1 ? M_ROWS : 8 * COLUMNS;
// In units of 16 bytes: the pitch from a quad of all rows to the next, without bank conflicts; all quads of a block.
constexpr unsigned QUAD_PITCH = 4 * X_ROWS + (BITS == 4 ? 2 : X_ROWS % 2 == 0 ? 4 : 0);
constexpr unsigned X_QUADS = tw::ceil_div(STEPS, unsigned{SPLIT}) * QUADS * QUAD_PITCH;
constexpr unsigned CHAINS = ROWS * COLUMNS == 1 ? 2 : 1;   // of products that wait for one another
// Rows of a tile that a block adds up, every SPLIT-th four; from a row of X to the next, free of bank conflicts.
constexpr unsigned OWN_ROWS = tw::ceil_div(unsigned{TILE_N / 4}, unsigned{SPLIT}) * 4, PITCH = OWN_ROWS + 4;
constexpr unsigned BUFFER = PARTS * M_ROWS * PITCH, BUFFERS = ROUNDS > 1 ? 2 : 1;
constexpr bool IN_RINGS = SPLIT == 1 && ROUNDS == 1;   // sums take their place: nobody else's come while they are read
constexpr unsigned MOST_HELD = 20;   // loads of X of a thread under way, of 16 bytes

typedef float Sums[ROWS][COLUMNS][4];
