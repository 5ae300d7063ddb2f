// load_once: like load_pack, for data that no thread will ask for again, so that it is the first to leave the caches
// (ld.global.cs). The bits travel as floats whatever REAL is. A host compiler has no such hint and needs none.
template <unsigned WIDTH>
__device__ __forceinline__ Pack<WIDTH> load_once(const REAL* source) {
#ifdef __CUDA_ARCH__
  union {
    float4 quad[(WIDTH * REAL_BYTES + 15) / 16];
    float2 pair;
    float single;
    Pack<WIDTH> pack;
  } bits;
  if constexpr (WIDTH * REAL_BYTES == 4) {
    bits.single = __ldcs(reinterpret_cast<const float*>(source));
  } else if constexpr (WIDTH * REAL_BYTES == 8) {
    bits.pair = __ldcs(reinterpret_cast<const float2*>(source));
  } else {
#pragma unroll
    for (unsigned i = 0; i < WIDTH * REAL_BYTES / 16; ++i) {
      bits.quad[i] = __ldcs(reinterpret_cast<const float4*>(source) + i);
    }
  }
  return bits.pack;
#else
  return load_pack<WIDTH>(source);
#endif
}
