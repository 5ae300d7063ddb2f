// s = x + r, y = s / sqrt(mean of s^2 + eps) w, row by row.  X, R, Y, S: (m, n) row-major, w: (n).
//
// A block a row of any length, which walks along it. norm/walk.cuh says how.
// Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
#define CENTRED 0
#define RESIDUAL 1
#include "norm/walk.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
add_rms_norm(const REAL* __restrict__ X, const REAL* __restrict__ R, const REAL* __restrict__ w,
             float eps, REAL* __restrict__ Y, REAL* __restrict__ S SIZE_PARAMETER) {
  normalise_walking({X, R, w, nullptr, Y, S}, eps);
}
