// The parameters of the variants for Hopper, whose meaning tensor_sm90.cu tells, and the tiles that they make.
#pragma once
#include "common/integers.cuh"
#include "common/product.cuh"
#include "ptx/wgmma.cuh"

#ifndef PRODUCTS
#define PRODUCTS 3
#endif
#ifndef SMALL_BF16
#define SMALL_BF16 0   // how many of the two small products are in BF16
#endif
#ifndef SHARED_A
#define SHARED_A 1
#endif
#ifndef BLOCKS_R
#define BLOCKS_R 2
#endif
#ifndef CONSUMERS
#define CONSUMERS 2
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef SPLIT_K
#define SPLIT_K 1
#endif
#ifndef GROUP_M
#define GROUP_M 8
#endif
#ifndef CLUSTER
#define CLUSTER 1   // blocks, side by side, that share lines of the operand in shared memory (multicast.cuh)
#endif
#ifndef BLOCKS
#define BLOCKS 132
#endif
#define SPLIT SPLIT_K
#include "common/workspace.cuh"

constexpr unsigned STEP_K = 32;   // 128 bytes of a line: what the tensor cores' widest swizzle spans
constexpr unsigned TILE_R = 64 * BLOCKS_R * CONSUMERS;
constexpr unsigned TILE_M = SHARED_A ? TILE_S : TILE_R, TILE_N = SHARED_A ? TILE_R : TILE_S;
constexpr unsigned TEAM_M = SHARED_A ? TILE_M : TILE_M * CLUSTER, TEAM_N = SHARED_A ? TILE_N * CLUSTER : TILE_N;
constexpr unsigned TILES_M = tw::ceil_div(M, TEAM_M), TILES_N = tw::ceil_div(N, TEAM_N), TILES = TILES_M * TILES_N;   // of clusters
constexpr unsigned THREADS = 128 * (CONSUMERS + (PRODUCTS == 3 ? 2 : 1));
constexpr unsigned LOADERS = 128;   // threads that load, and as many that convert

// Sums of a thread that multiplies, those of the step at work included.
constexpr unsigned HELD_SUMS = (BLOCKS_R + (PRODUCTS == 3 ? 1 : 0)) * TILE_S / 2;
// Whether registers suffice to split the next block's numbers while the tensor cores work on this one's. The steps then
// go in pairs, so that what is next and what is at work change places without a copy; a last step may be one of zeros.
constexpr bool AHEAD = HELD_SUMS + 2 * (PRODUCTS == 3 ? 32 : 16) < 192;
constexpr unsigned STEPS_AT_ONCE = AHEAD && BLOCKS_R == 1 ? 2 : 1;
