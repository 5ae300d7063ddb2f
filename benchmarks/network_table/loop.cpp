// Y = act(X W^T + b), as the formula is written: three nested loops, one number at a time, on one thread.
// X: (m, k), W: (n, k), b: (n), Y: (m, n), all row-major; the table's slowest row, and what the others are held against.
#include <math.h>

extern "C" void linear_loop(const float* X, const float* W, const float* b, float* Y, int m, int n, int k, int relu) {
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      float sum = b[j];
      for (int p = 0; p < k; ++p) sum += X[i * k + p] * W[j * k + p];
      Y[i * n + j] = relu && sum < 0 ? 0.0F : sum;
    }
  }
}

// Y = softmax of each row of X, both (m, n).
extern "C" void softmax_loop(const float* X, float* Y, int m, int n) {
  for (int i = 0; i < m; ++i) {
    float largest = X[i * n];
    for (int j = 1; j < n; ++j) largest = X[i * n + j] > largest ? X[i * n + j] : largest;
    float sum = 0;
    for (int j = 0; j < n; ++j) sum += Y[i * n + j] = expf(X[i * n + j] - largest);
    for (int j = 0; j < n; ++j) Y[i * n + j] /= sum;
  }
}
