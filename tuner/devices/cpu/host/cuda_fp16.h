// CUDA's header of that name on the CPU device: __half, pairs of it, and conversions.
#pragma once
#include "host_half_type.h"

HALF_TYPE(__half, __half2, host_float16_of_float, host_float_of_float16)
typedef __half half;
typedef __half2 half2;

static inline float __half2float(__half x) { return x; }
static inline __half __float2half(float x) { return x; }
static inline __half __float2half_rn(float x) { return x; }
static inline float2 __half22float2(__half2 pair) { return {pair.x, pair.y}; }
static inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
static inline __half2 __float22half2_rn(float2 pair) { return {pair.x, pair.y}; }
static inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
