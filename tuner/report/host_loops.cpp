// The loops that people write first, on one thread of the host. Row-major; REAL is float or double.
//   gemm    C (m, n) = A (m, k) B (k, n)
//   gemv    y (m) = A (m, n) x (n)
//   linear  Y (m, n) = max(X (m, k) Wᵀ + b, 0), W (n, k), b (n)
// -ffast-math is off: one sum, added up in the order of the formula.
extern "C" void gemm_loop(long m, long n, long k, const REAL* A, const REAL* B, REAL* C) {
  for (long i = 0; i < m; ++i)
    for (long j = 0; j < n; ++j) {
      REAL sum = 0;
      for (long p = 0; p < k; ++p) sum += A[i * k + p] * B[p * n + j];
      C[i * n + j] = sum;
    }
}

extern "C" void gemv_loop(long m, long n, long, const REAL* A, const REAL* x, REAL* y) {
  for (long i = 0; i < m; ++i) {
    REAL sum = 0;
    for (long j = 0; j < n; ++j) sum += A[i * n + j] * x[j];
    y[i] = sum;
  }
}

extern "C" void linear_loop(long m, long n, long k, const REAL* X, const REAL* W, const REAL* b, REAL* Y) {
  for (long i = 0; i < m; ++i)
    for (long j = 0; j < n; ++j) {
      REAL sum = 0;
      for (long p = 0; p < k; ++p) sum += X[i * k + p] * W[j * k + p];
      const REAL z = sum + b[j];
      Y[i * n + j] = z > 0 ? z : 0;
    }
}
