// Integer intrinsics: bits, high products, dot products, numbers of 8 and 16 bits in a word, DPX.
#pragma once
#include <limits.h>

#include "host_atomics.h"

HOST_BUILTIN int __popc(unsigned x) { return __builtin_popcount(x); }
HOST_BUILTIN int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
HOST_BUILTIN int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
HOST_BUILTIN int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
HOST_BUILTIN int __ffs(int x) { return __builtin_ffs(x); }
HOST_BUILTIN int __ffsll(long long x) { return __builtin_ffsll(x); }
HOST_BUILTIN unsigned __brev(unsigned x) {
  x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
  x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
  x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(x);
}
HOST_BUILTIN unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 | __brev(static_cast<unsigned>(x >> 32));
}
// Of both words, high before low: shifted left the upper one, shifted right the lower one. _lc and _rc stop at 32.
static inline unsigned long long host_word_pair(unsigned low, unsigned high) {
  return static_cast<unsigned long long>(high) << 32 | low;
}
HOST_BUILTIN unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(host_word_pair(low, high) << (shift & 31) >> 32);
}
HOST_BUILTIN unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(host_word_pair(low, high) >> (shift & 31));
}
HOST_BUILTIN unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
  return shift < 32 ? __funnelshift_l(low, high, shift) : low;
}
HOST_BUILTIN unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
  return shift < 32 ? __funnelshift_r(low, high, shift) : high;
}

HOST_BUILTIN int __mul24(int x, int y) {
  return static_cast<int>(static_cast<long long>(static_cast<int>(static_cast<unsigned>(x) << 8) >> 8) *
                          (static_cast<int>(static_cast<unsigned>(y) << 8) >> 8));
}
HOST_BUILTIN unsigned __umul24(unsigned x, unsigned y) { return (x & 0xffffffu) * (y & 0xffffffu); }
HOST_BUILTIN int __mulhi(int x, int y) { return static_cast<int>(static_cast<long long>(x) * y >> 32); }
HOST_BUILTIN unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}
HOST_BUILTIN long long __mul64hi(long long x, long long y) {
  return static_cast<long long>(static_cast<__int128>(x) * y >> 64);
}
HOST_BUILTIN unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
HOST_BUILTIN unsigned __usad(unsigned x, unsigned y, unsigned sum) { return (x > y ? x - y : y - x) + sum; }
HOST_BUILTIN unsigned __sad(int x, int y, unsigned sum) {
  return (x > y ? static_cast<unsigned>(x) - y : static_cast<unsigned>(y) - x) + sum;
}
HOST_BUILTIN int __hadd(int x, int y) { return static_cast<int>((static_cast<long long>(x) + y) >> 1); }
HOST_BUILTIN int __rhadd(int x, int y) { return static_cast<int>((static_cast<long long>(x) + y + 1) >> 1); }
HOST_BUILTIN unsigned __uhadd(unsigned x, unsigned y) {
  return static_cast<unsigned>((static_cast<unsigned long long>(x) + y) >> 1);
}
HOST_BUILTIN unsigned __urhadd(unsigned x, unsigned y) {
  return static_cast<unsigned>((static_cast<unsigned long long>(x) + y + 1) >> 1);
}
#define HOST_MINMAX_OF(prefix, T)                                                       \
  HOST_BUILTIN T prefix##min(T x, T y) { return x < y ? x : y; }                        \
  HOST_BUILTIN T prefix##max(T x, T y) { return x > y ? x : y; }
HOST_MINMAX_OF(u, unsigned) HOST_MINMAX_OF(ll, long long) HOST_MINMAX_OF(ull, unsigned long long)
#undef HOST_MINMAX_OF

// The i-th number of that type in a word.
template <class Lane> static inline Lane host_lane_of(unsigned word, int i) {
  return static_cast<Lane>(word >> i * 8 * static_cast<int>(sizeof(Lane)));
}
template <class A, class B, class T> static inline T host_dot4(unsigned a, unsigned b, T sum) {
  for (int i = 0; i < 4; ++i)
    sum += static_cast<T>(host_lane_of<A>(a, i)) * static_cast<T>(host_lane_of<B>(b, i));
  return sum;
}
HOST_BUILTIN int __dp4a(int a, int b, int sum) {
  return static_cast<int>(host_dot4<signed char, signed char>(a, b, static_cast<unsigned>(sum)));
}
HOST_BUILTIN unsigned __dp4a(unsigned a, unsigned b, unsigned sum) {
  return host_dot4<unsigned char, unsigned char>(a, b, sum);
}
// Two numbers of 16 bits by the lower or the upper two of 8.
#define HOST_DOT2(name, first)                                                                                     \
  HOST_BUILTIN int name(int a, int b, int sum) {                                                                   \
    for (int i = 0; i < 2; ++i)                                                                                    \
      sum = static_cast<int>(static_cast<unsigned>(sum) + host_lane_of<short>(a, i) * host_lane_of<signed char>(b, first + i)); \
    return sum;                                                                                                    \
  }                                                                                                                \
  HOST_BUILTIN unsigned name(unsigned a, unsigned b, unsigned sum) {                                               \
    for (int i = 0; i < 2; ++i)                                                                                    \
      sum += static_cast<unsigned>(host_lane_of<unsigned short>(a, i)) * host_lane_of<unsigned char>(b, first + i);   \
    return sum;                                                                                                    \
  }
HOST_DOT2(__dp2a_lo, 0) HOST_DOT2(__dp2a_hi, 2)
#undef HOST_DOT2

// Numbers in a word: each result by that expression of x and y, in an int.
template <class Lane> static inline int host_saturated(int x) {
  constexpr int bits = 8 * sizeof(Lane);
  constexpr int low = static_cast<Lane>(-1) < Lane(0) ? -(1 << (bits - 1)) : 0;
  constexpr int high = low ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
  return x < low ? low : x > high ? high : x;
}
#define HOST_LANES(name, Lane, result)                                                    \
  HOST_BUILTIN unsigned name(unsigned a, unsigned b) {                                    \
    constexpr int bits = 8 * sizeof(Lane);                                                \
    unsigned word = 0;                                                                    \
    for (int i = 0; i < 32 / bits; ++i) {                                                 \
      const int x = host_lane_of<Lane>(a, i), y = host_lane_of<Lane>(b, i);               \
      word |= (static_cast<unsigned>(result) & ((1u << bits) - 1)) << i * bits;           \
    }                                                                                     \
    return word;                                                                          \
  }
#define HOST_LANES_OF_ONE(name, Lane, result)                                             \
  HOST_LANES(host_one##name, Lane, result)                                                \
  HOST_BUILTIN unsigned name(unsigned a) { return host_one##name(a, 0); }
#define HOST_LANE_SUM(name, Lane)                                                         \
  HOST_BUILTIN unsigned name(unsigned a, unsigned b) {                                    \
    unsigned sum = 0;                                                                     \
    for (int i = 0; i < static_cast<int>(4 / sizeof(Lane)); ++i) {                        \
      const int x = host_lane_of<Lane>(a, i), y = host_lane_of<Lane>(b, i);               \
      sum += static_cast<unsigned>(x > y ? x - y : y - x);                                \
    }                                                                                     \
    return sum;                                                                           \
  }
#define HOST_COMPARED(n, name, Lane, test)             \
  HOST_LANES(__vcmp##name##n, Lane, (test) ? -1 : 0)   \
  HOST_LANES(__vset##name##n, Lane, (test) ? 1 : 0)
#define HOST_WORD(n, S, U)                                                       \
  HOST_LANES(__vadd##n, U, x + y)                                                \
  HOST_LANES(__vsub##n, U, x - y)                                                \
  HOST_LANES(__vaddss##n, S, host_saturated<S>(x + y))                           \
  HOST_LANES(__vaddus##n, U, host_saturated<U>(x + y))                           \
  HOST_LANES(__vsubss##n, S, host_saturated<S>(x - y))                           \
  HOST_LANES(__vsubus##n, U, host_saturated<U>(x - y))                           \
  HOST_LANES(__vabsdiffs##n, S, x > y ? x - y : y - x)                           \
  HOST_LANES(__vabsdiffu##n, U, x > y ? x - y : y - x)                           \
  HOST_LANES(__vavgs##n, S, (x + y + (x + y >= 0)) >> 1)                         \
  HOST_LANES(__vavgu##n, U, (x + y + 1) >> 1)                                    \
  HOST_LANES(__vhaddu##n, U, (x + y) >> 1)                                       \
  HOST_LANES(__vmaxs##n, S, x > y ? x : y)                                       \
  HOST_LANES(__vmaxu##n, U, x > y ? x : y)                                       \
  HOST_LANES(__vmins##n, S, x < y ? x : y)                                       \
  HOST_LANES(__vminu##n, U, x < y ? x : y)                                       \
  HOST_LANES_OF_ONE(__vabs##n, S, x < 0 ? -x : x)                                \
  HOST_LANES_OF_ONE(__vabsss##n, S, host_saturated<S>(x < 0 ? -x : x))           \
  HOST_LANES_OF_ONE(__vneg##n, S, -x)                                            \
  HOST_LANES_OF_ONE(__vnegss##n, S, host_saturated<S>(-x))                       \
  HOST_LANE_SUM(__vsads##n, S)                                                   \
  HOST_LANE_SUM(__vsadu##n, U)                                                   \
  HOST_COMPARED(n, eq, U, x == y) HOST_COMPARED(n, ne, U, x != y)                \
  HOST_COMPARED(n, ges, S, x >= y) HOST_COMPARED(n, geu, U, x >= y)              \
  HOST_COMPARED(n, gts, S, x > y) HOST_COMPARED(n, gtu, U, x > y)                \
  HOST_COMPARED(n, les, S, x <= y) HOST_COMPARED(n, leu, U, x <= y)              \
  HOST_COMPARED(n, lts, S, x < y) HOST_COMPARED(n, ltu, U, x < y)
HOST_WORD(2, short, unsigned short)
HOST_WORD(4, signed char, unsigned char)
#undef HOST_WORD
#undef HOST_COMPARED
#undef HOST_LANE_SUM
#undef HOST_LANES_OF_ONE
#undef HOST_LANES

// DPX of whole words; sums wrap around.
#define HOST_DPX(extreme, S, T, better)                                                                        \
  HOST_BUILTIN T __viadd##extreme##_##S(T a, T b, T c) {                                                       \
    const T sum = static_cast<T>(static_cast<unsigned>(a) + static_cast<unsigned>(b));                         \
    return sum better c ? sum : c;                                                                             \
  }                                                                                                            \
  HOST_BUILTIN T __vi##extreme##3_##S(T a, T b, T c) {                                                         \
    const T two = a better b ? a : b;                                                                          \
    return two better c ? two : c;                                                                             \
  }
#define HOST_DPX_RELU(extreme, better)                                                                         \
  HOST_DPX(extreme, s32, int, better)                                                                          \
  HOST_DPX(extreme, u32, unsigned, better)                                                                     \
  HOST_BUILTIN int __viadd##extreme##_s32_relu(int a, int b, int c) {                                          \
    const int result = __viadd##extreme##_s32(a, b, c);                                                        \
    return result > 0 ? result : 0;                                                                            \
  }                                                                                                            \
  HOST_BUILTIN int __vi##extreme##3_s32_relu(int a, int b, int c) {                                            \
    const int result = __vi##extreme##3_s32(a, b, c);                                                          \
    return result > 0 ? result : 0;                                                                            \
  }                                                                                                            \
  HOST_BUILTIN int __vi##extreme##_s32_relu(int a, int b) {                                                    \
    const int result = a better b ? a : b;                                                                     \
    return result > 0 ? result : 0;                                                                            \
  }
HOST_DPX_RELU(max, >) HOST_DPX_RELU(min, <)
#undef HOST_DPX_RELU
#undef HOST_DPX
