// The problem: Y = act(X G^T) * (X U^T), baked in as constants. X: (m, k), W: (2 n, k), the rows of G and then those of U,
// Y: (m, n), all row-major.
//
// The products inside are gemm's with A = X and B stored as (n, k): both operands are contiguous along k.
#pragma once
#ifdef TRANS_B
#error "linear_gated/problem.cuh include linear_gated/problem.cuh before the headers of the product inside"
#endif
#ifndef SHAPE_M
#define SHAPE_M 16      // rows of X and Y: tokens
#define SHAPE_N 14336   // columns of Y
#define SHAPE_K 4096    // columns of X and W
#endif
#if !defined(ACTIVATION_GELU) && !defined(ACTIVATION_RELU) && !defined(ACTIVATION_SIGMOID)
#define ACTIVATION_SILU 1
#endif
#define TRANS_A 0
#define TRANS_B 1
#include "common/product.cuh"
