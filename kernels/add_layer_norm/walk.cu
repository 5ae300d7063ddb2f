// s = x + r, y = (s - mean) / sqrt(mean of (s - mean)^2 + eps) w + b, row by row.  X, R, Y, S: (m, n) row-major,
// w, b: (n).
//
// A block a row of any length, which walks along it. norm/walk.cuh says how.
// Ba, Kiros and Hinton, "Layer Normalization" (2016).
#define CENTRED 1
#define RESIDUAL 1
#include "norm/walk.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
add_layer_norm(const REAL* __restrict__ X, const REAL* __restrict__ R, const REAL* __restrict__ w, const REAL* __restrict__ b,
               float eps, REAL* __restrict__ Y, REAL* __restrict__ S SIZE_PARAMETER) {
  normalise_walking({X, R, w, b, Y, S}, eps);
}
