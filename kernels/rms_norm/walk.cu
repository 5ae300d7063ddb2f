// y = x / sqrt(mean of x^2 + eps) w, row by row.  X, Y: (m, n) row-major, w: (n).
//
// A block a row of any length, which walks along it. norm/walk.cuh says how.
// Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
#define CENTRED 0
#define RESIDUAL 0
#include "norm/walk.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
rms_norm(const REAL* __restrict__ X, const REAL* __restrict__ w, float eps, REAL* __restrict__ Y SIZE_PARAMETER) {
  normalise_walking({X, nullptr, w, nullptr, Y, nullptr}, eps);
}
