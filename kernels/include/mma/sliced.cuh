// The parameters of `tensor3xtf32_sliced`, ahead of those that it shares with mma/tiles.cuh.
#pragma once

#ifndef SLICES
#define SLICES 2     // groups of warps that share the terms of a step
#endif
#ifndef TILE_K
#define TILE_K 64    // length of a step along k
#endif
#ifndef RESIDENT
#define RESIDENT 1   // blocks that find room on a multiprocessor
#endif
