// The problem: Y = act(X W^T + b), baked in as constants. X: (m, k), W: (n, k), b: (n), Y: (m, n), all row-major.
//
// The product inside is gemm's with A = X and B = W stored as (n, k): both operands are contiguous along k.
#pragma once
#ifdef TRANS_B
#error "linear/problem.cuh include linear/problem.cuh before the headers of the product that the layer has inside"
#endif
#ifndef SHAPE_M
#define SHAPE_M 256   // rows of X and Y: the batch
#define SHAPE_N 512   // columns of Y: outputs of the layer
#define SHAPE_K 784   // columns of X and W: inputs of the layer
#endif
#define TRANS_A 0
#define TRANS_B 1
#include "common/product.cuh"
#include "common/real.cuh"
