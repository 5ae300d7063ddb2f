// The problem: Y = softmax(relu(X W1^T + b1) W2^T + b2), baked in as constants. X: (m, k), W1: (h, k), b1: (h),
// W2: (n, h), b2: (n), Y: (m, n), all row-major; softmax over each row, its largest element taken off first.
#pragma once
#include "common/real.cuh"

#ifndef SHAPE_M
#define SHAPE_M 256   // rows of X and Y: the batch
#define SHAPE_K 100   // columns of X: inputs
#define SHAPE_H 100   // hidden units
#define SHAPE_N 10    // columns of Y: classes
#endif

// Unsigned: an axis may be 2^31 - 1, and the end of its last tile then lies beyond a signed int.
constexpr unsigned M = SHAPE_M;
constexpr unsigned K = SHAPE_K;
constexpr unsigned H = SHAPE_H;
constexpr unsigned N = SHAPE_N;
