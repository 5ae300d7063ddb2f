// The problem: Y = act(X W^T + b), baked in as constants. X: (m, k), W: (n, k), b: (n), Y: (m, n), all row-major.
#ifndef SHAPE_M
#define SHAPE_M 256   // rows of X and Y: the batch
#define SHAPE_N 512   // columns of Y: outputs of the layer
#define SHAPE_K 784   // columns of X and W: inputs of the layer
#endif

// Unsigned: an axis may be 2^31 - 1, and the end of its last tile then lies beyond a signed int.
constexpr unsigned M = SHAPE_M;
constexpr unsigned N = SHAPE_N;
constexpr unsigned K = SHAPE_K;

// The product inside is gemm's with A = X and B = W stored as (n, k): both operands are contiguous along k.
[[maybe_unused]] constexpr bool TRANS_A = false;
[[maybe_unused]] constexpr bool TRANS_B = true;

// How many tiles of `tile` cover `extent`.
__device__ constexpr unsigned tiles(unsigned extent, unsigned tile) { return (extent + tile - 1) / tile; }
