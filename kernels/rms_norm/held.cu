// y = x / sqrt(mean of x^2 + eps) w, row by row.  X, Y: (m, n) row-major, w: (n).
//
// A row in the registers of a part of a block, or of all of it: one read. norm/held.cuh says how.
// Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
#define CENTRED 0
#define RESIDUAL 0
#include "norm/held.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
rms_norm(const REAL* __restrict__ X, const REAL* __restrict__ w, float eps, REAL* __restrict__ Y SIZE_PARAMETER) {
  normalise_held({X, nullptr, w, nullptr, Y, nullptr}, eps);
}
