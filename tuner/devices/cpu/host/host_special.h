// Functions of CUDA's mathematics that C lacks. Those in float are computed in double.
#pragma once
#include "host_atomics.h"
#include "host_math.h"

#define HOST_ONE_OF(name)                                                                                              \
  HOST_BUILTIN float name##f(float x) { return static_cast<float>(host_##name(static_cast<double>(x))); }              \
  HOST_BUILTIN double name(double x) { return host_##name(x); }                                                        \
  HOST_BUILTIN float name(float x) { return static_cast<float>(host_##name(static_cast<double>(x))); }

static inline double host_rcbrt(double x) { return 1 / ::cbrt(x); }

// Multiples of pi are taken off x, where that is exact.
static inline double host_sinpi(double x) {
  if (x == 0) return x;
  double rest = ::remainder(x, 2.0);
  if (rest > 0.5) rest = 1 - rest;
  if (rest < -0.5) rest = -1 - rest;
  return rest == 0 ? ::copysign(0.0, x) : ::sin(M_PI * rest);
}
static inline double host_cospi(double x) {
  const double rest = ::fabs(::remainder(x, 2.0));
  if (rest <= 0.25) return ::cos(M_PI * rest);
  return rest <= 0.75 ? ::sin(M_PI * (0.5 - rest)) : -::cos(M_PI * (1 - rest));
}

// Halley's method from an estimate of the normal quantile (Abramowitz and Stegun, 26.2.22).
static inline double host_erfinv(double x);
static inline double host_erfcinv(double x) {
  if (!(x >= 0 && x <= 2)) return NAN;
  if (x > 0.5 && x < 1.5) return host_erfinv(1 - x);
  if (x > 1) return -host_erfcinv(2 - x);
  if (x == 0) return INFINITY;
  const double t = ::sqrt(-2 * ::log(x / 2));
  double y = M_SQRT1_2 * (t - (2.30753 + 0.27061 * t) / (1 + (0.99229 + 0.04481 * t) * t));
  for (int i = 0; i < 3; ++i) {
    const double error = ::erfc(y) - x;
    y += error / (M_2_SQRTPI * ::exp(-y * y) - y * error);
  }
  return y;
}
static inline double host_erfinv(double x) {
  if (!(::fabs(x) <= 1)) return NAN;
  if (::fabs(x) > 0.5) return ::copysign(host_erfcinv(1 - ::fabs(x)), x);
  double y = x / M_2_SQRTPI;
  for (int i = 0; i < 4 && x != 0; ++i) {
    const double error = ::erf(y) - x;
    y -= error / (M_2_SQRTPI * ::exp(-y * y) + y * error);
  }
  return y;
}
static inline double host_normcdf(double x) {
  return static_cast<double>(::erfcl(-static_cast<long double>(x) * 0.707106781186547524400844362104849039L) / 2);
}
static inline double host_normcdfinv(double p) { return -M_SQRT2 * host_erfcinv(2 * p); }
static inline double host_erfcx(double x) {
  if (x < 25) return static_cast<double>(::expl(static_cast<long double>(x) * x) * ::erfcl(x));
  const double z = 1 / (2 * x * x);  // the asymptotic series
  return M_2_SQRTPI / 2 / x * (1 - z * (1 - 3 * z * (1 - 5 * z * (1 - 7 * z))));
}

// The power series, whose terms are positive.
static inline double host_cyl_bessel_i(double x, int order) {
  if (x != x) return x;
  if (::fabs(x) > 720) return order && x < 0 ? -INFINITY : INFINITY;
  long double term = order ? static_cast<long double>(x) / 2 : 1, sum = term;
  const long double square = static_cast<long double>(x) * x / 4;
  for (int k = 1; ::fabsl(term) > ::fabsl(sum) * 1e-20L; ++k) sum += term *= square / (static_cast<long double>(k) * (k + order));
  return static_cast<double>(sum);
}
static inline double host_cyl_bessel_i0(double x) { return host_cyl_bessel_i(x, 0); }
static inline double host_cyl_bessel_i1(double x) { return host_cyl_bessel_i(x, 1); }
HOST_ONE_OF(rcbrt) HOST_ONE_OF(sinpi) HOST_ONE_OF(cospi) HOST_ONE_OF(erfinv) HOST_ONE_OF(erfcinv) HOST_ONE_OF(erfcx)
HOST_ONE_OF(normcdf) HOST_ONE_OF(normcdfinv) HOST_ONE_OF(cyl_bessel_i0) HOST_ONE_OF(cyl_bessel_i1)
#undef HOST_ONE_OF

// Lengths of vectors, without overflow on the way. An infinite component counts before a NaN.
static inline double host_norm(const double* p, int count) {
  double largest = 0, sum = 0;
  bool is_nan = false;
  for (int i = 0; i < count; ++i) {
    if (__builtin_isinf(p[i])) return INFINITY;
    is_nan |= p[i] != p[i];
    largest = ::fmax(largest, ::fabs(p[i]));
  }
  if (is_nan) return NAN;
  if (largest == 0) return 0;
  int exponent;
  ::frexp(largest, &exponent);
  for (int i = 0; i < count; ++i) {
    const double scaled = ::scalbn(p[i], -exponent);
    sum += scaled * scaled;
  }
  return ::scalbn(::sqrt(sum), exponent);
}
#define HOST_NORM(name, parameters, ...)                                              \
  HOST_BUILTIN double name parameters(double) {                                       \
    const double p[] = {__VA_ARGS__};                                                 \
    return host_norm(p, sizeof p / sizeof *p);                                        \
  }                                                                                   \
  HOST_BUILTIN double r##name parameters(double) { const double p[] = {__VA_ARGS__}; return 1 / host_norm(p, sizeof p / sizeof *p); } \
  HOST_BUILTIN float name##f parameters(float) {                                      \
    const double p[] = {__VA_ARGS__};                                                 \
    return static_cast<float>(host_norm(p, sizeof p / sizeof *p));                    \
  }                                                                                   \
  HOST_BUILTIN float r##name##f parameters(float) { const double p[] = {__VA_ARGS__}; return static_cast<float>(1 / host_norm(p, sizeof p / sizeof *p)); }
#define HOST_OF_3(T) (T a, T b, T c)
#define HOST_OF_4(T) (T a, T b, T c, T d)
HOST_NORM(norm3d, HOST_OF_3, a, b, c)
HOST_NORM(norm4d, HOST_OF_4, a, b, c, d)
#undef HOST_NORM
#undef HOST_OF_3
#undef HOST_OF_4
HOST_BUILTIN double rhypot(double x, double y) { return 1 / ::hypot(x, y); }
HOST_BUILTIN float rhypotf(float x, float y) { return static_cast<float>(1 / ::hypot(static_cast<double>(x), static_cast<double>(y))); }
HOST_BUILTIN double norm(int count, const double* p) { return host_norm(p, count); }
HOST_BUILTIN double rnorm(int count, const double* p) { return 1 / host_norm(p, count); }
HOST_BUILTIN float normf(int count, const float* p) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum = ::hypot(sum, static_cast<double>(p[i]));
  return static_cast<float>(sum);
}
HOST_BUILTIN float rnormf(int count, const float* p) { return 1 / normf(count, p); }
