// What a block of the variant `tensor_half` works on: as `tensor_fp64` does (dmma/work.cuh), with longer steps.
#pragma once
#include "hmma/element.cuh"

#ifndef TILE_K
#define TILE_K 32
#endif
#ifndef MMA_K
#define MMA_K 16   // terms of one product of a warp
#endif
#ifndef PAIRED
#define PAIRED 0   // 1: B has rows of two matrices, N each, one behind the other; C is made of both products
#endif
#include "dmma/work.cuh"
