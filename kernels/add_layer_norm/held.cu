// s = x + r, y = (s - mean) / sqrt(mean of (s - mean)^2 + eps) w + b, row by row.  X, R, Y, S: (m, n) row-major,
// w, b: (n).
//
// A row in the registers of a part of a block, or of all of it: one read. norm/held.cuh says how.
// Ba, Kiros and Hinton, "Layer Normalization" (2016).
#define CENTRED 1
#define RESIDUAL 1
#include "norm/held.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
add_layer_norm(const REAL* __restrict__ X, const REAL* __restrict__ R, const REAL* __restrict__ w, const REAL* __restrict__ b,
               float eps, REAL* __restrict__ Y, REAL* __restrict__ S SIZE_PARAMETER) {
  normalise_held({X, R, w, b, Y, S}, eps);
}
