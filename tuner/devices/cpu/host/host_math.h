// C's mathematics with the overloads that CUDA C++ has: float for float, double for whole numbers and mixed arguments.
//
// They come from C++'s own headers where those are libc++'s. libstdc++'s are 20,000 lines, which take longer to compile
// than most kernels, so only C's part of them is included and the overloads are these. They lie in a namespace: a
// source that includes <cmath> then finds in the global one what <cmath> expects there.
#pragma once
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#include <stdlib.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS

#ifndef _LIBCPP_VERSION
#define _GLIBCXX_MATH_H 1  // libstdc++'s own <math.h> and <stdlib.h>, if a source includes them, add nothing then
#define _GLIBCXX_STDLIB_H 1
#undef isfinite
#undef isinf
#undef isnan
#undef isnormal
#undef signbit

namespace host_math {

// `T = 0` holds for whole numbers only.
#define HOST_UNARY(name)                                                  \
  static inline float name(float x) { return __builtin_##name##f(x); }    \
  template <class T, T = 0> static inline double name(T x) { return ::name(static_cast<double>(x)); }
#define HOST_BINARY(name)                                                                 \
  static inline float name(float x, float y) { return __builtin_##name##f(x, y); }        \
  template <class T, class U> static inline double name(T x, U y) {                       \
    return ::name(static_cast<double>(x), static_cast<double>(y));                        \
  }
#define HOST_CLASS(name)                                                                  \
  static inline bool name(float x) { return __builtin_##name(x); }                        \
  static inline bool name(double x) { return __builtin_##name(x); }                       \
  template <class T, T = 0> static inline bool name(T x) { return __builtin_##name(static_cast<double>(x)); }
HOST_UNARY(acos) HOST_UNARY(acosh) HOST_UNARY(asin) HOST_UNARY(asinh) HOST_UNARY(atan) HOST_UNARY(atanh)
HOST_UNARY(cbrt) HOST_UNARY(ceil) HOST_UNARY(cos) HOST_UNARY(cosh) HOST_UNARY(erf) HOST_UNARY(erfc)
HOST_UNARY(exp) HOST_UNARY(exp2) HOST_UNARY(expm1) HOST_UNARY(fabs) HOST_UNARY(floor) HOST_UNARY(lgamma)
HOST_UNARY(log) HOST_UNARY(log10) HOST_UNARY(log1p) HOST_UNARY(log2) HOST_UNARY(logb) HOST_UNARY(nearbyint)
HOST_UNARY(rint) HOST_UNARY(round) HOST_UNARY(sin) HOST_UNARY(sinh) HOST_UNARY(sqrt) HOST_UNARY(tan)
HOST_UNARY(tanh) HOST_UNARY(tgamma) HOST_UNARY(trunc)
HOST_BINARY(atan2) HOST_BINARY(copysign) HOST_BINARY(fdim) HOST_BINARY(fmax) HOST_BINARY(fmin) HOST_BINARY(fmod)
HOST_BINARY(hypot) HOST_BINARY(nextafter) HOST_BINARY(pow) HOST_BINARY(remainder)
HOST_CLASS(isfinite) HOST_CLASS(isinf) HOST_CLASS(isnan) HOST_CLASS(isnormal) HOST_CLASS(signbit)
#undef HOST_UNARY
#undef HOST_BINARY
#undef HOST_CLASS

static inline float abs(float x) { return __builtin_fabsf(x); }
static inline double abs(double x) { return __builtin_fabs(x); }
static inline long abs(long x) { return x < 0 ? -x : x; }
static inline long long abs(long long x) { return x < 0 ? -x : x; }
static inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
template <class T, class U, class V> static inline double fma(T x, U y, V z) {
  return ::fma(static_cast<double>(x), static_cast<double>(y), static_cast<double>(z));
}
static inline float frexp(float x, int* exponent) { return __builtin_frexpf(x, exponent); }
static inline float ldexp(float x, int exponent) { return __builtin_ldexpf(x, exponent); }
static inline float scalbn(float x, int exponent) { return __builtin_scalbnf(x, exponent); }
static inline float modf(float x, float* whole) { return __builtin_modff(x, whole); }
static inline float remquo(float x, float y, int* quotient) { return __builtin_remquof(x, y, quotient); }
static inline int ilogb(float x) { return __builtin_ilogbf(x); }
static inline long lrint(float x) { return __builtin_lrintf(x); }
static inline long lround(float x) { return __builtin_lroundf(x); }
static inline long long llrint(float x) { return __builtin_llrintf(x); }
static inline long long llround(float x) { return __builtin_llroundf(x); }

}  // namespace host_math
using namespace host_math;
#endif
