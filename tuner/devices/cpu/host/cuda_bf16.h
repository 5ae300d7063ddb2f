// CUDA's header of that name on the CPU device: __nv_bfloat16, pairs of it, and conversions.
#pragma once
#include "host_half_type.h"

HALF_TYPE(__nv_bfloat16, __nv_bfloat162, host_bfloat16_of_float, host_float_of_bfloat16)
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline float __bfloat162float(__nv_bfloat16 x) { return x; }
static inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
static inline float2 __bfloat1622float2(__nv_bfloat162 pair) { return {pair.x, pair.y}; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
static inline __nv_bfloat162 __float22bfloat162_rn(float2 pair) { return {pair.x, pair.y}; }
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
