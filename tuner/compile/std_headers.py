"""C and C++ headers, and names that nvcc defines, which CUDA sources rely on and NVRTC lacks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache

from tilewright.tuner.compile import cccl

_LIMITS = """
#define CHAR_BIT 8
#define SCHAR_MIN (-128)
#define SCHAR_MAX 127
#define UCHAR_MAX 255
#define CHAR_MIN SCHAR_MIN
#define CHAR_MAX SCHAR_MAX
#define SHRT_MIN (-32768)
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MIN (-INT_MAX - 1)
#define INT_MAX 2147483647
#define UINT_MAX 4294967295U
#define LONG_MIN (-LONG_MAX - 1L)
#define LONG_MAX 9223372036854775807L
#define ULONG_MAX 18446744073709551615UL
#define LLONG_MIN (-LLONG_MAX - 1LL)
#define LLONG_MAX 9223372036854775807LL
#define ULLONG_MAX 18446744073709551615ULL
#define INT8_MAX 127
#define INT16_MAX 32767
#define INT32_MAX 2147483647
#define INT64_MAX 9223372036854775807LL
#define INT8_MIN (-128)
#define INT16_MIN (-32768)
#define INT32_MIN (-INT32_MAX - 1)
#define INT64_MIN (-INT64_MAX - 1LL)
#define UINT8_MAX 255
#define UINT16_MAX 65535
#define UINT32_MAX 4294967295U
#define UINT64_MAX 18446744073709551615ULL
#define SIZE_MAX 18446744073709551615UL
#define FLT_MAX 3.402823466e+38F
#define FLT_MIN 1.175494351e-38F
#define FLT_TRUE_MIN 1.401298464e-45F
#define FLT_EPSILON 1.192092896e-07F
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define FLT_MAX_EXP 128
#define FLT_MIN_EXP (-125)
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_TRUE_MIN 4.9406564584124654e-324
#define DBL_EPSILON 2.2204460492503131e-016
#define DBL_DIG 15
#define DBL_MANT_DIG 53
#define DBL_MAX_EXP 1024
#define DBL_MIN_EXP (-1021)
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define HUGE_VALF __int_as_float(0x7f800000)
#define HUGE_VAL __longlong_as_double(0x7ff0000000000000LL)
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_INF HUGE_VAL
#define CUDART_NAN __longlong_as_double(0xfff8000000000000ULL)
#define CUDART_PI_F 3.141592654F
#define CUDART_PI M_PI
#define CUDART_SQRT_TWO_F 1.414213562F
#define CUDART_MIN_DENORM_F 1.401298464e-45F
#define CUDART_MAX_NORMAL_F FLT_MAX
#define EXIT_SUCCESS 0
#define EXIT_FAILURE 1
"""

_TYPES = {
    f"{sign}int{bits}_t": f"{'unsigned' if sign else 'signed'} {kind}"
    for sign in ("", "u")
    for bits, kind in ((8, "char"), (16, "short"), (32, "int"), (64, "long"))
}
_TYPES |= {"uint": "unsigned int", "ushort": "unsigned short", "ulong": "unsigned long", "ssize_t": "long"}
_TYPES |= {"uchar": "unsigned char"}  # OpenCV's, whose headers are the host's
_TYPES |= {"intptr_t": "long", "uintptr_t": "unsigned long", "intmax_t": "long", "uintmax_t": "unsigned long"}
"""As on Linux for x86-64, where nvcc's host compiler defines them."""

_WORDS = {line.split()[1]: line for line in _LIMITS.strip().splitlines()} | {
    name: f"typedef {kind} {name};" for name, kind in _TYPES.items()
}

_OF_CCCL = "".join(f"#include <cuda/std/{name}>\n" for name in ("climits", "cfloat", "cmath", "cstdint"))
"""The same words as headers of CUB's define them under NVRTC, where 64 bits are a `long long`: they come first then."""

_ONE = "acos acosh asin asinh atan atanh cbrt ceil cos cosh erf erfc exp exp2 expm1 fabs floor lgamma log log10 log1p"
_ONE += " log2 logb nearbyint rint round sin sinh sqrt tan tanh tgamma trunc isfinite isinf isnan signbit"
_MORE = (
    "atan2 copysign fdim fmax fmin fmod fma hypot nextafter pow remainder frexp ldexp modf scalbn ilogb lrint lround"
)

_STD_TYPES = " ".join(f"typedef {kind} {name};" for name, kind in _TYPES.items() if name.endswith("_t"))
_STD = f"""
#pragma once
namespace std {{
{" ".join(f"using ::{name};" for name in f"{_ONE} {_MORE} abs".split())}
using ::size_t; using ::ptrdiff_t; typedef decltype(nullptr) nullptr_t;
{_STD_TYPES}
using ::memcpy; using ::memset;
template <class T> __device__ __host__ constexpr const T& min(const T& a, const T& b) {{ return b < a ? b : a; }}
template <class T> __device__ __host__ constexpr const T& max(const T& a, const T& b) {{ return a < b ? b : a; }}
template <class T> __device__ __host__ constexpr const T& clamp(const T& x, const T& low, const T& high) {{
  return x < low ? low : high < x ? high : x;
}}
template <class T> struct remove_reference {{ typedef T type; }};
template <class T> struct remove_reference<T&> {{ typedef T type; }};
template <class T> struct remove_reference<T&&> {{ typedef T type; }};
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> struct remove_const {{ typedef T type; }};
template <class T> struct remove_const<const T> {{ typedef T type; }};
template <class T> struct remove_cv {{ typedef T type; }};
template <class T> struct remove_cv<const T> {{ typedef T type; }};
template <class T> struct remove_cv<volatile T> {{ typedef T type; }};
template <class T> struct remove_cv<const volatile T> {{ typedef T type; }};
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> struct decay {{ typedef remove_cv_t<remove_reference_t<T>> type; }};
template <class T> using decay_t = typename decay<T>::type;
template <class T, T V> struct integral_constant {{
  static constexpr T value = V;
  typedef T value_type;
  __device__ __host__ constexpr operator T() const {{ return V; }}
}};
typedef integral_constant<bool, true> true_type;
typedef integral_constant<bool, false> false_type;
template <class T, class U> struct is_same : false_type {{}};
template <class T> struct is_same<T, T> : true_type {{}};
template <class T, class U> constexpr bool is_same_v = is_same<T, U>::value;
template <class T> struct is_floating_point
    : integral_constant<bool, is_same_v<remove_cv_t<T>, float> || is_same_v<remove_cv_t<T>, double>> {{}};
template <class T> constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T, class... All> constexpr bool tilewright_is_one_of = (is_same_v<remove_cv_t<T>, All> || ...);
template <class T> struct is_unsigned
    : integral_constant<bool, tilewright_is_one_of<T, bool, unsigned char, unsigned short, unsigned, unsigned long,
                                                   unsigned long long>> {{}};
template <class T> struct is_integral
    : integral_constant<bool, is_unsigned<T>::value || tilewright_is_one_of<T, char, signed char, short, int, long,
                                                                             long long>> {{}};
template <class T> constexpr bool is_integral_v = is_integral<T>::value;
template <class T> struct is_arithmetic
    : integral_constant<bool, is_integral<T>::value || is_floating_point<T>::value> {{}};
template <class T> struct is_signed
    : integral_constant<bool, is_arithmetic<T>::value && !is_unsigned<T>::value> {{}};
template <class T> struct is_pointer : false_type {{}};
template <class T> struct is_pointer<T*> : true_type {{}};
template <bool, class T = void> struct enable_if {{}};
template <class T> struct enable_if<true, T> {{ typedef T type; }};
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool, class T, class F> struct conditional {{ typedef T type; }};
template <class T, class F> struct conditional<false, T, F> {{ typedef F type; }};
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;
template <class T> __device__ __host__ constexpr void swap(T& a, T& b) {{ T c = move(a); a = move(b); b = move(c); }}
template <class T> struct numeric_limits;
#define TILEWRIGHT_LIMITS(T, least, lowest_, most, step, is_whole)                         \\
  template <> struct numeric_limits<T> {{                                                  \\
    static constexpr bool is_integer = is_whole, is_specialized = true;                    \\
    __device__ __host__ static constexpr T min() {{ return least; }}                       \\
    __device__ __host__ static constexpr T lowest() {{ return lowest_; }}                  \\
    __device__ __host__ static constexpr T max() {{ return most; }}                        \\
    __device__ __host__ static constexpr T epsilon() {{ return step; }}                    \\
    __device__ __host__ static T infinity() {{ return static_cast<T>(is_whole ? 0 : __int_as_float(0x7f800000)); }} \\
    __device__ __host__ static T quiet_NaN() {{ return static_cast<T>(is_whole ? 0 : __int_as_float(0x7fffffff)); }} \\
  }};
TILEWRIGHT_LIMITS(float, FLT_MIN, -FLT_MAX, FLT_MAX, FLT_EPSILON, false)
TILEWRIGHT_LIMITS(double, DBL_MIN, -DBL_MAX, DBL_MAX, DBL_EPSILON, false)
TILEWRIGHT_LIMITS(signed char, SCHAR_MIN, SCHAR_MIN, SCHAR_MAX, 0, true)
TILEWRIGHT_LIMITS(unsigned char, 0, 0, UCHAR_MAX, 0, true)
TILEWRIGHT_LIMITS(char, CHAR_MIN, CHAR_MIN, CHAR_MAX, 0, true)
TILEWRIGHT_LIMITS(short, SHRT_MIN, SHRT_MIN, SHRT_MAX, 0, true)
TILEWRIGHT_LIMITS(unsigned short, 0, 0, USHRT_MAX, 0, true)
TILEWRIGHT_LIMITS(int, INT_MIN, INT_MIN, INT_MAX, 0, true)
TILEWRIGHT_LIMITS(unsigned, 0, 0, UINT_MAX, 0, true)
TILEWRIGHT_LIMITS(long, LONG_MIN, LONG_MIN, LONG_MAX, 0, true)
TILEWRIGHT_LIMITS(unsigned long, 0, 0, ULONG_MAX, 0, true)
TILEWRIGHT_LIMITS(long long, LLONG_MIN, LLONG_MIN, LLONG_MAX, 0, true)
TILEWRIGHT_LIMITS(unsigned long long, 0, 0, ULLONG_MAX, 0, true)
#undef TILEWRIGHT_LIMITS
}}
"""

_TWO = "pow atan2 fmod hypot fmax fmin fdim remainder copysign nextafter"
_OF_NUMBERS = f"""
template <class T> struct tilewright_number {{ static const bool is = false, is_whole = false; }};
#define TILEWRIGHT_WHOLE(T) template <> struct tilewright_number<T> {{ static const bool is = true, is_whole = true; }};
TILEWRIGHT_WHOLE(bool) TILEWRIGHT_WHOLE(char) TILEWRIGHT_WHOLE(signed char) TILEWRIGHT_WHOLE(unsigned char)
TILEWRIGHT_WHOLE(short) TILEWRIGHT_WHOLE(unsigned short) TILEWRIGHT_WHOLE(int) TILEWRIGHT_WHOLE(unsigned)
TILEWRIGHT_WHOLE(long) TILEWRIGHT_WHOLE(unsigned long) TILEWRIGHT_WHOLE(long long) TILEWRIGHT_WHOLE(unsigned long long)
template <> struct tilewright_number<float> {{ static const bool is = true, is_whole = false; }};
template <> struct tilewright_number<double> {{ static const bool is = true, is_whole = false; }};
template <class A, class B> struct tilewright_same {{ static const bool is = false; }};
template <class A> struct tilewright_same<A, A> {{ static const bool is = !tilewright_number<A>::is_whole; }};
template <bool> struct tilewright_if {{}};
template <> struct tilewright_if<true> {{ typedef double number; }};
#define TILEWRIGHT_ONE(f) template <class T> __device__ __forceinline__ \\
  typename tilewright_if<tilewright_number<T>::is_whole>::number f(T x) {{ return f(static_cast<double>(x)); }}
#define TILEWRIGHT_TWO(f) template <class A, class B> __device__ __forceinline__ typename tilewright_if< \\
  tilewright_number<A>::is && tilewright_number<B>::is && !tilewright_same<A, B>::is>::number f(A a, B b) {{ \\
  return f(static_cast<double>(a), static_cast<double>(b)); }}
{" ".join(f"TILEWRIGHT_ONE({name})" for name in _ONE.split())}
{" ".join(f"TILEWRIGHT_TWO({name})" for name in _TWO.split())}
"""
OVERLOADS = "".join(f"{line}\n" for line in _OF_NUMBERS.replace("\\\\\n", "").strip().splitlines())
"""`sqrt` of a whole number and `pow` of two types, as C++'s <cmath> has them and NVRTC has not: they are of doubles."""

_ALL = "tilewright_std.h"
_C = ("assert", "float", "inttypes", "limits", "math", "stddef", "stdint", "stdio", "stdlib", "string", "time")
_CPP = ("algorithm", "limits", "type_traits", "utility", "cstddef", "functional")
_CUDA = "cuda.h cuda_runtime.h cuda_runtime_api.h device_launch_parameters.h vector_types.h vector_functions.h"
_CUDA += " device_functions.h driver_types.h sm_20_atomic_functions.h sm_35_intrinsics.h math_constants.h"

CUDA_HEADERS = tuple(_CUDA.split())
"""Headers of the toolkit whose contents NVRTC has built in, or that only the host needs."""

_CUDA_INCLUDE = re.compile(
    rf"^[ \t]*#[ \t]*include[ \t]*[<\"](?:{'|'.join(map(re.escape, CUDA_HEADERS))})[>\"][^\n]*", re.MULTILINE
)
_DEFINED = re.compile(r"#[ \t]*define[ \t]+(\w+)|\btypedef\b[^;{}]*?\b(\w+)\s*;|\busing\s+(\w+)\s*=")
_MENTIONED = re.compile(rf"\b(?:{'|'.join(map(re.escape, _WORDS))})\b")
_STD_NAME = re.compile(r"(?<![\w:])std::\w")
SYSTEM_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<", re.MULTILINE)


MOST_SOURCES = 64
"""Sources of which the answers are kept: a search asks the same of one source for each configuration, for 10 ms."""


def without_cuda_headers(source: str) -> str:
    """The source without its includes of CUDA_HEADERS, for a compiler that already has those declarations."""
    return _CUDA_INCLUDE.sub("", source)


@lru_cache(MOST_SOURCES)
def prelude(source: str) -> str:
    """Definitions to compile ahead of the source: of words such as `uint8_t` that it uses without defining them."""
    named = set(_MENTIONED.findall(source))
    if named:
        named -= {name for found in _DEFINED.findall(source) for name in found}
    words = sorted(named | _needed_by(named))
    listed = [_beside_cccl(words)] if words and cccl.is_used(source) else [_WORDS[name] for name in words]
    if _STD_NAME.search(source):
        listed.append(f'#include "{_ALL}"')
    return "".join(f"{line}\n" for line in listed)


def _needed_by(names: set[str]) -> set[str]:
    """The words that the texts of these words use in turn: INT_MIN is -INT_MAX - 1."""
    return {word for name in names for word in _MENTIONED.findall(_WORDS[name])} - names


def _beside_cccl(words: Iterable[str]) -> str:
    """Definitions of words that CCCL's headers leave undefined, after what they define."""
    own = [name for name in words if not re.fullmatch(r"u?int\w+_t", name)]
    guarded = "".join(_guarded(name) if name not in _TYPES else f"{_WORDS[name]}\n" for name in own)
    return f"{_OF_CCCL}{guarded}"


def _guarded(name: str) -> str:
    return f"#ifndef {name}\n{_WORDS[name]}\n#endif\n"


@cache
def _headers(*, has_toolkit: bool, has_cccl: bool) -> dict[str, str]:
    """The text of each header by the name that a source includes it by; of CUDA's own too where no toolkit is here."""
    words = "".join(_guarded(name) for name in _WORDS if name not in _TYPES)
    types = "".join(f"{_WORDS[name]}\n" for name in _TYPES)
    one = f'#include "{_ALL}"\n'
    names = [f"{name}.h" for name in _C] + [f"c{name}" for name in _C] + [*_CPP]
    text = f"#pragma once\n{words}{types}{_STD}"
    if has_cccl:
        std_types = " ".join(f"using ::{name};" for name in _TYPES if name.endswith("_t"))
        text = f"#pragma once\n{_beside_cccl(_WORDS)}{_STD.replace(_STD_TYPES, std_types)}"
    made = {_ALL: text} | dict.fromkeys(names, one)
    return made if has_toolkit else made | dict.fromkeys(CUDA_HEADERS, "\n")


@lru_cache(MOST_SOURCES)
def fingerprint(source: str) -> str:
    """A hash of the part of this module that the source's compilation depends on; "" where it depends on none."""
    ahead = prelude(source)
    return ahead + "".join(given_headers(source, has_toolkit=False).values())


@lru_cache(MOST_SOURCES)
def given_headers(source: str, *, has_toolkit: bool) -> dict[str, str]:
    """The headers that a source may include; none where it asks for none."""
    asks = SYSTEM_INCLUDE.search(source) or _STD_NAME.search(source)
    return _headers(has_toolkit=has_toolkit, has_cccl=cccl.is_used(source)) if asks else {}
