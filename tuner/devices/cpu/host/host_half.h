// Numbers of 16 bits and floats: conversions by their bits, rounded to nearest even, as the device's instructions do.
#pragma once
#include <string.h>

static inline float host_float_of_bits(unsigned bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
static inline unsigned host_bits_of_float(float x) {
  unsigned bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float host_float_of_bfloat16(unsigned short bits) {
  return host_float_of_bits(static_cast<unsigned>(bits) << 16);
}
static inline unsigned short host_bfloat16_of_float(float x) {
  const unsigned bits = host_bits_of_float(x);
  if (x != x) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The exponent is 112 less in 16 bits. A multiplication by 2^112 adds that, to subnormal numbers too.
static inline float host_float_of_float16(unsigned short bits) {
  const unsigned sign = (bits & 0x8000u) << 16, rest = (bits & 0x7fffu) << 13;
  const bool is_finite = rest < 0x7c00u << 13;
  return host_float_of_bits(sign | (is_finite ? host_bits_of_float(host_float_of_bits(rest) * 0x1p112f) : rest | 0x7f800000u));
}
static inline unsigned short host_float16_of_float(float x) {
  const unsigned bits = host_bits_of_float(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  if (x != x) return 0x7fff;
  if (rest >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);  // 65520: half a place above the largest
  // Below 2^-14: beside one half, a float's last place is float16's smallest number, and the addition rounds.
  if (rest < 0x38800000u) {
    return static_cast<unsigned short>(sign | (host_bits_of_float(host_float_of_bits(rest) + 0.5f) - 0x3f000000u));
  }
  return static_cast<unsigned short>(sign | ((rest - (112u << 23) + 0xfffu + (rest >> 13 & 1)) >> 13));
}
