// HALF_TYPE: a type of 16 bits with the operators that CUDA's own headers give it, for a kernel that includes those.
// Every operation is float's, rounded to nearest even; of a sum, product or quotient that is what the device gives, and
// __hfma, which rounds twice here, may be off by its last place.
#pragma once
#include "host_half.h"

#define HALF_TYPE(T, T2, narrow, widen)                                                 \
  struct T {                                                                            \
    unsigned short bits;                                                                \
    T() = default;                                                                      \
    T(float x) : bits(narrow(x)) {}                                                     \
    T(double x) : bits(narrow(static_cast<float>(x))) {}                                \
    T(int x) : bits(narrow(static_cast<float>(x))) {}                                   \
    T(unsigned x) : bits(narrow(static_cast<float>(x))) {}                              \
    operator float() const { return widen(bits); }                                      \
    T& operator+=(T y) { return *this = T(float(*this) + float(y)); }                   \
    T& operator-=(T y) { return *this = T(float(*this) - float(y)); }                   \
    T& operator*=(T y) { return *this = T(float(*this) * float(y)); }                   \
    T& operator/=(T y) { return *this = T(float(*this) / float(y)); }                   \
  };                                                                                    \
  struct __align__(4) T2 { T x, y; };                                                   \
  static inline T operator+(T x, T y) { return x += y; }                                \
  static inline T operator-(T x, T y) { return x -= y; }                                \
  static inline T operator*(T x, T y) { return x *= y; }                                \
  static inline T operator/(T x, T y) { return x /= y; }                                \
  static inline T operator-(T x) { x.bits ^= 0x8000; return x; }                        \
  static inline bool operator<(T x, T y) { return float(x) < float(y); }                \
  static inline bool operator>(T x, T y) { return float(x) > float(y); }                \
  static inline bool operator<=(T x, T y) { return float(x) <= float(y); }              \
  static inline bool operator>=(T x, T y) { return float(x) >= float(y); }              \
  static inline bool operator==(T x, T y) { return float(x) == float(y); }              \
  static inline bool operator!=(T x, T y) { return float(x) != float(y); }              \
  static inline T __hadd(T x, T y) { return x + y; }                                    \
  static inline T __hsub(T x, T y) { return x - y; }                                    \
  static inline T __hmul(T x, T y) { return x * y; }                                    \
  static inline T __hdiv(T x, T y) { return x / y; }                                    \
  static inline T __hfma(T x, T y, T z) { return T(fmaf(x, y, z)); }                    \
  static inline T __hneg(T x) { return -x; }                                            \
  static inline T __habs(T x) { x.bits &= 0x7fff; return x; }                           \
  static inline T __hmax(T x, T y) { return T(fmaxf(x, y)); }                           \
  static inline T __hmin(T x, T y) { return T(fminf(x, y)); }                           \
  static inline bool __hisnan(T x) { return x != x; }                                   \
  static inline T2 __hadd2(T2 a, T2 b) { return {a.x + b.x, a.y + b.y}; }               \
  static inline T2 __hmul2(T2 a, T2 b) { return {a.x * b.x, a.y * b.y}; }               \
  static inline T2 __hfma2(T2 a, T2 b, T2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }  \
  static inline float __low2float(T2 pair) { return pair.x; }                           \
  static inline float __high2float(T2 pair) { return pair.y; }
