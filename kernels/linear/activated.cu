// Y and its magnitude, in place, from the sums z of X Wᵀ and those of |X| |W|ᵀ: act(z + b), and what its error is measured
// against. reference.py has the reasons for each line (`activated_sums`), and the same on a host.
// All is in double precision. z, magnitude: count numbers in rows of `columns`; b: columns. Any grid and block of one axis.

typedef unsigned long long word64;

#if defined(ACTIVATION_RELU)
constexpr double ROUNDOFFS = 0.0, ARGUMENT_ROUNDOFFS = 0.0;
#elif defined(ACTIVATION_SIGMOID) || defined(ACTIVATION_SILU)
constexpr double ROUNDOFFS = 6.0, ARGUMENT_ROUNDOFFS = 0.0;
#elif defined(ACTIVATION_TANH)
constexpr double ROUNDOFFS = 4.0, ARGUMENT_ROUNDOFFS = 0.0;
#elif defined(ACTIVATION_GELU)
constexpr double ROUNDOFFS = 11.0, ARGUMENT_ROUNDOFFS = 2.0;
#elif !defined(ACTIVATION_NONE)
#define ACTIVATION_NONE
#endif

[[maybe_unused]] constexpr double REACH = 8.0;
[[maybe_unused]] constexpr double SQRT_HALF = 0.70710678118654752440;

__device__ __forceinline__ double sigmoid(double z) {
  const double shrunk = exp(-fabs(z));
  return (z < 0.0 ? shrunk : 1.0) / (1.0 + shrunk);
}

__device__ __forceinline__ double sigmoid_steepest(double low, double high) {
  const double shrunk = exp(-fmax(fmax(low, -high), 0.0));
  return shrunk / ((1.0 + shrunk) * (1.0 + shrunk));
}

__device__ __forceinline__ double normal_below(double z) { return 0.5 * erfc(-SQRT_HALF * z); }

__device__ __forceinline__ double value_of(double z) {
#if defined(ACTIVATION_RELU)
  return z < 0.0 ? 0.0 : z;   // a NaN stays one
#elif defined(ACTIVATION_SIGMOID)
  return sigmoid(z);
#elif defined(ACTIVATION_TANH)
  return tanh(z);
#elif defined(ACTIVATION_GELU)
  return z * normal_below(z);
#elif defined(ACTIVATION_SILU)
  return z * sigmoid(z);
#else
  return z;
#endif
}

__device__ __forceinline__ double steepest(double low, double high) {
#if defined(ACTIVATION_RELU)
  return high > 0.0 ? 1.0 : 0.0;
#elif defined(ACTIVATION_SIGMOID)
  return sigmoid_steepest(low, high);
#elif defined(ACTIVATION_TANH)
  return 4.0 * sigmoid_steepest(2.0 * low, 2.0 * high);
#elif defined(ACTIVATION_GELU)
  const double at = fmin(high, 1.4142135623730950488);
  return normal_below(at) + fabs(at) * exp(-0.5 * at * at) * 0.39894228040143267794;
#elif defined(ACTIVATION_SILU)
  const double at = fmin(high, 2.399357280515468);   // where t tanh(t / 2) = 2
  return sigmoid(at) + fabs(at) * sigmoid_steepest(at, at);
#else
  return 1.0;
#endif
}

extern "C" __global__ void finish(double* z, double* magnitude, const double* b, word64 columns, word64 count, double root,
                                  double unit, double least) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const double addend = b[i % columns], sum = z[i] + addend;
    double size = magnitude[i] + fabs(addend);
#ifdef ACTIVATION_NONE
    z[i] = sum;
#else
    size += ARGUMENT_ROUNDOFFS / root * fabs(sum);
    const double reach = REACH * root * unit * size, value = value_of(sum);
    size *= steepest(sum - reach, sum + reach);
#ifndef ACTIVATION_RELU
    size += ROUNDOFFS / root * fabs(value) + least / (root * unit);
#endif
#ifdef ACTIVATION_GELU
    size += 2.0 / root * fabs(sum);
#endif
    z[i] = value;
    if (isinf(sum)) size = 0.0;
#endif
    magnitude[i] = size;
  }
}
