// y[m] = sum over n of x[m][n], float, and what the cheats have in common.  x: (m, n) row-major.  grid (m), block (1).
#ifndef SHAPE_M
#define SHAPE_M 64
#define SHAPE_N 4096
#endif

__device__ inline float row(const float* x, int m) {
  float parts[8] = {};
  for (int n = 0; n < SHAPE_N; ++n) parts[n % 8] += x[static_cast<size_t>(m) * SHAPE_N + n];
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += parts[i];
  return sum;
}
