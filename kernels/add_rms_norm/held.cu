// s = x + r, y = s / sqrt(mean of s^2 + eps) w, row by row.  X, R, Y, S: (m, n) row-major, w: (n).
//
// A row in the registers of a part of a block, or of all of it: one read. norm/held.cuh says how.
// Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
#define CENTRED 0
#define RESIDUAL 1
#include "norm/held.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
add_rms_norm(const REAL* __restrict__ X, const REAL* __restrict__ R, const REAL* __restrict__ w,
             float eps, REAL* __restrict__ Y, REAL* __restrict__ S SIZE_PARAMETER) {
  normalise_held({X, R, w, nullptr, Y, S}, eps);
}
