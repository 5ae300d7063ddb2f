// y = (x - mean) / sqrt(mean of (x - mean)^2 + eps) w + b, row by row.  X, Y: (m, n) row-major, w, b: (n).
//
// A block a row of any length, which walks along it. norm/walk.cuh says how.
// Ba, Kiros and Hinton, "Layer Normalization" (2016).
#define CENTRED 1
#define RESIDUAL 0
#include "norm/walk.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
layer_norm(const REAL* __restrict__ X, const REAL* __restrict__ w, const REAL* __restrict__ b,
           float eps, REAL* __restrict__ Y SIZE_PARAMETER) {
  normalise_walking({X, nullptr, w, b, Y, nullptr}, eps);
}
