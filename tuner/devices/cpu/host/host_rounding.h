// Arithmetic and conversions with the rounding that their names end in: _rn nearest even, _rz towards zero, _rd down, _ru up.
#pragma once
#include <fenv.h>

#include "host_atomics.h"
#include "host_math.h"

// The value as it is: a compiler that may contract a product and a sum into an fma must not do so with these.
#if defined(__has_builtin) && __has_builtin(__builtin_assoc_barrier)
#define HOST_KEPT(x) __builtin_assoc_barrier(x)
#else
template <class T> static inline T host_kept(T x) {
#if defined(__x86_64__)
  asm("" : "+x"(x));
#else
  asm("" : "+w"(x));
#endif
  return x;
}
#define HOST_KEPT(x) host_kept(x)
#endif

// Volatile operands and results keep the operation between both settings of the processor's rounding.
#define HOST_ROUNDED(mode, T, expression) \
  fesetround(mode);                       \
  volatile T rounded = (expression);      \
  fesetround(FE_TONEAREST);               \
  return rounded;
#define HOST_EACH_MODE(one, ...) \
  one(z, FE_TOWARDZERO, __VA_ARGS__) one(d, FE_DOWNWARD, __VA_ARGS__) one(u, FE_UPWARD, __VA_ARGS__)
#define HOST_TO_NEAREST(T, name, parameters, expression) \
  HOST_BUILTIN T name##n parameters { return HOST_KEPT(expression); }
#define HOST_DIRECTED(letter, mode, T, name, a, b, c, parameters, expression) \
  HOST_BUILTIN T name##letter parameters {                                    \
    volatile T x = a, y = b, z = c;                                           \
    HOST_ROUNDED(mode, T, expression)                                         \
  }
#define HOST_ONE(T, name, expression)                   \
  HOST_TO_NEAREST(T, name, (T x), expression)           \
  HOST_EACH_MODE(HOST_DIRECTED, T, name, first, 0, 0, (T first), expression)
#define HOST_TWO(T, name, expression)                   \
  HOST_TO_NEAREST(T, name, (T x, T y), expression)      \
  HOST_EACH_MODE(HOST_DIRECTED, T, name, first, second, 0, (T first, T second), expression)
#define HOST_THREE(T, name, expression)                 \
  HOST_TO_NEAREST(T, name, (T x, T y, T z), expression) \
  HOST_EACH_MODE(HOST_DIRECTED, T, name, first, second, third, (T first, T second, T third), expression)
HOST_TWO(float, __fadd_r, x + y) HOST_TWO(double, __dadd_r, x + y)
HOST_TWO(float, __fsub_r, x - y) HOST_TWO(double, __dsub_r, x - y)
HOST_TWO(float, __fmul_r, x * y) HOST_TWO(double, __dmul_r, x * y)
HOST_TWO(float, __fdiv_r, x / y) HOST_TWO(double, __ddiv_r, x / y)
HOST_ONE(float, __frcp_r, 1.0f / x) HOST_ONE(double, __drcp_r, 1.0 / x)
HOST_ONE(float, __fsqrt_r, __builtin_sqrtf(x)) HOST_ONE(double, __dsqrt_r, __builtin_sqrt(x))
HOST_THREE(float, __fmaf_r, __builtin_fmaf(x, y, z)) HOST_THREE(double, __fma_r, __builtin_fma(x, y, z))
#undef HOST_ONE
#undef HOST_TWO
#undef HOST_THREE
#undef HOST_DIRECTED
#undef HOST_TO_NEAREST
HOST_BUILTIN float __frsqrt_rn(float x) { return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(x))); }

// Of whole numbers, and of double to float.
#define HOST_CONVERTED(letter, mode, From, To, name)           \
  HOST_BUILTIN To name##letter(From first) {                   \
    volatile From x = first;                                   \
    HOST_ROUNDED(mode, To, static_cast<To>(x))                 \
  }
#define HOST_CONVERSION(From, To, name)                                       \
  HOST_BUILTIN To name##n(From x) { return static_cast<To>(x); }              \
  HOST_EACH_MODE(HOST_CONVERTED, From, To, name)
HOST_CONVERSION(int, float, __int2float_r) HOST_CONVERSION(unsigned, float, __uint2float_r)
HOST_CONVERSION(long long, float, __ll2float_r) HOST_CONVERSION(unsigned long long, float, __ull2float_r)
HOST_CONVERSION(long long, double, __ll2double_r) HOST_CONVERSION(unsigned long long, double, __ull2double_r)
HOST_CONVERSION(double, float, __double2float_r)
HOST_BUILTIN double __int2double_rn(int x) { return x; }
HOST_BUILTIN double __uint2double_rn(unsigned x) { return x; }
#undef HOST_CONVERSION
#undef HOST_CONVERTED
#undef HOST_ROUNDED

// To whole numbers: the nearest that there is; of a NaN what the PTX manual says of `cvt`.
template <class To, class From> static inline To host_whole(From x) {
  constexpr bool is_signed = static_cast<To>(-1) < To(0);
  constexpr int bits = 8 * sizeof(To) - is_signed;
  constexpr From end = static_cast<From>(1ull << (bits - 1)) * 2;
  constexpr To top = static_cast<To>(1ull << (8 * sizeof(To) - 1));
  if (x != x) return sizeof(From) == 4 && sizeof(To) == 4 ? To(0) : top;
  if (x >= end) return static_cast<To>(~(is_signed ? top : To(0)));
  if (x < (is_signed ? -end : From(0))) return is_signed ? top : To(0);
  return static_cast<To>(x);
}
#define HOST_TO_WHOLE(From, To, name, suffix)                                                      \
  HOST_BUILTIN To name##n(From x) { return host_whole<To>(__builtin_nearbyint##suffix(x)); }       \
  HOST_BUILTIN To name##z(From x) { return host_whole<To>(__builtin_trunc##suffix(x)); }           \
  HOST_BUILTIN To name##d(From x) { return host_whole<To>(__builtin_floor##suffix(x)); }           \
  HOST_BUILTIN To name##u(From x) { return host_whole<To>(__builtin_ceil##suffix(x)); }
HOST_TO_WHOLE(float, int, __float2int_r, f) HOST_TO_WHOLE(float, unsigned, __float2uint_r, f)
HOST_TO_WHOLE(float, long long, __float2ll_r, f) HOST_TO_WHOLE(float, unsigned long long, __float2ull_r, f)
HOST_TO_WHOLE(double, int, __double2int_r, ) HOST_TO_WHOLE(double, unsigned, __double2uint_r, )
HOST_TO_WHOLE(double, long long, __double2ll_r, ) HOST_TO_WHOLE(double, unsigned long long, __double2ull_r, )
#undef HOST_TO_WHOLE
#undef HOST_EACH_MODE

// A number's bits as another type's.
#define HOST_BITS(name, From, To) \
  HOST_BUILTIN To name(From x) {  \
    To bits;                      \
    memcpy(&bits, &x, sizeof bits); \
    return bits;                  \
  }
HOST_BITS(__float_as_uint, float, unsigned) HOST_BITS(__uint_as_float, unsigned, float)
HOST_BITS(__float_as_int, float, int) HOST_BITS(__int_as_float, int, float)
HOST_BITS(__double_as_longlong, double, long long) HOST_BITS(__longlong_as_double, long long, double)
#undef HOST_BITS
HOST_BUILTIN int __double2hiint(double x) { return static_cast<int>(__double_as_longlong(x) >> 32); }
HOST_BUILTIN int __double2loint(double x) { return static_cast<int>(__double_as_longlong(x)); }
HOST_BUILTIN double __hiloint2double(int high, int low) {
  return __longlong_as_double(static_cast<long long>(host_word_pair(static_cast<unsigned>(low), static_cast<unsigned>(high))));
}
