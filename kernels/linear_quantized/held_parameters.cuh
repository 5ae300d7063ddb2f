// Parameters of the variant `held`, and constants that follow from them.
#pragma once
#ifndef SHAPE_M
#define WEIGHTS_INT4   // of 4 bits, where no problem is given
#endif
#include "hmma/element.cuh"
#include "problem.cuh"

#include "common/integers.cuh"

#ifndef WARPS_K
#define WARPS_K 2   // warps of a block that share k
#endif
#ifndef WARPS_N
#define WARPS_N 4   // warps of a block side by side
#endif
#ifndef DEPTH
#define DEPTH 2     // stages of a warp, one of which is multiplied while the others come
#endif
#ifndef SPLIT
#define SPLIT 8     // blocks of a cluster, which share k
#endif
#ifndef ROUNDS
#define ROUNDS 1    // fragments of a warp, one after the other: 16 rows of W each
#endif

static_assert(BITS == 4, "a step of a row of W takes half a line of the cache");
#ifdef M_AT_LAUNCH
#define ROW_OF_BLOCK(row) (blockIdx.y * 16 + (row))   // of X
#define COLUMNS_ARE_WHOLE false
#else
#define ROW_OF_BLOCK(row) (row)
#define COLUMNS_ARE_WHOLE (M % 8 == 0)   // of products: X ends where one does
static_assert(M > 8 && M <= 16, "X takes two columns of products");
#endif
constexpr unsigned STEP = 128, STEPS = K / STEP, QUADS = 4;   // k; of a lane's terms of a step: eight each, 16 bytes of X
constexpr unsigned WARPS = WARPS_K * WARPS_N, THREADS = 32 * WARPS;
constexpr unsigned PARTS = SPLIT * WARPS_K, OWN = STEPS / PARTS;   // of k, and steps of each
static_assert(OWN * PARTS == STEPS && OWN % 2 == 0, "all warps have as many steps, and whole lines");
constexpr unsigned LINE_BYTES = K / 2;                    // of a row of W
constexpr unsigned PIECE = 128, OWN_PIECES = OWN / 2;     // bytes of a line of the cache, lines of a warp's share of a row
constexpr unsigned FRAGMENTS = tw::ceil_div(N, 16u);      // 16 rows of W
constexpr unsigned STRIDE = tw::ceil_div(FRAGMENTS, unsigned{ROUNDS * WARPS_N}) * WARPS_N;   // from a warp's fragment to its next
constexpr unsigned COLUMNS = 2;   // of fragments: 8 rows of X each
// Bytes of a row of S in a stage, four at least.
constexpr unsigned SCALES = (GROUPS == 1 ? 1 : OWN) * (1 + ZEROS), SCALE_BYTES = SCALES == 1 ? 4 : 2 * SCALES;
constexpr unsigned WEIGHT_BYTES = 16 * OWN_PIECES * PIECE, STAGE_BYTES = WEIGHT_BYTES + 16 * SCALE_BYTES;
// Products of 16 rows of W and 8 of X, whose sums are added up by every SPLIT-th block: of each part 512 bytes.
constexpr unsigned PRODUCTS = ROUNDS * WARPS_N * COLUMNS, OWN_PRODUCTS = tw::ceil_div(PRODUCTS, unsigned{SPLIT});
constexpr unsigned SUM_BYTES = OWN_PRODUCTS * PARTS * 512;
