// y[m] = sum over n of x[m][n], REAL.  x: (m, n) row-major.  grid (m), block (THREADS).
// Warp 0 only combines: the other warps walk along the row, so that who forgets to wait for them reads too early.
#ifndef REAL
#define REAL float
#endif
#ifndef SHAPE_M
#define SHAPE_M 37
#define SHAPE_N 300
#endif
#ifndef THREADS
#define THREADS 128   // threads of a block, 64 or more
#endif

__device__ __forceinline__ REAL part_of_row(const REAL* x, int columns) {
  REAL sum = 0;
  for (int n = static_cast<int>(threadIdx.x) - 32; n < columns && threadIdx.x >= 32; n += THREADS - 32)
    sum += x[static_cast<size_t>(blockIdx.x) * SHAPE_N + n];
  return sum;
}

__device__ __forceinline__ REAL combine(const REAL* parts) {
  REAL sum = 0;
  for (int i = 32; i < THREADS; ++i) sum += parts[i];
  return sum;
}
