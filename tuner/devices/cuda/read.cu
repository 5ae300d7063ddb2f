// Reads `count` words of 16 bytes and writes nothing: the most that memory gives a kernel which only reads.
// UNROLL loads of a thread are in flight together; neighbouring threads read neighbouring words.
#ifndef UNROLL
#define UNROLL 8
#endif

extern "C" __global__ void read_all(const uint4* words, unsigned long long count, unsigned* never_written) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  unsigned seen = 0;
  for (; i + (UNROLL - 1) * step < count; i += UNROLL * step) {
    uint4 values[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) values[u] = __ldcs(words + i + u * step);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) seen |= values[u].x | values[u].y | values[u].z | values[u].w;
  }
  for (; i < count; i += step) seen |= words[i].x;
  if (seen == 0x5eed5eedu) *never_written = seen;   // the buffer holds zeros
}
