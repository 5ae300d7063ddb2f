// Sixteen bytes that begin anywhere, of the two times sixteen that have parts of them.
#pragma once

// From byte `by` of `low` on, 0 to 15.
__device__ __forceinline__ uint4 shifted(const uint4& low, const uint4& high, unsigned by) {
  const unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  unsigned word[6];
#pragma unroll
  for (unsigned i = 0; i < 6; ++i) word[i] = by & 8 ? words[i + 2] : words[i];
#pragma unroll
  for (unsigned i = 0; i < 5; ++i) word[i] = by & 4 ? word[i + 1] : word[i];
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) word[i] = __funnelshift_r(word[i], word[i + 1], by % 4 * 8);
  return make_uint4(word[0], word[1], word[2], word[3]);
}
