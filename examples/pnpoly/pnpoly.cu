// inside[i] = whether point i lies in the polygon: an odd number of edges cross the ray from the point to the right.
//   points: (n, 2), vertices: (v, 2), float, each x then y; inside: (n), int. The last vertex is joined to the first.
//
// A thread takes tile_size points, block_size_x apart, and meets each edge once for all of them.
//   block (block_size_x); grid (n / (block_size_x * tile_size), rounded up)
// Shimrat, "Algorithm 112: Position of point relative to polygon" (1962); the parameters are those by which van
// Werkhoven, "Kernel Tuner" (2019), tunes his kernel of this name.
#ifndef SHAPE_N
#define SHAPE_N 200000
#define SHAPE_V 600
#endif
#ifndef block_size_x
#define block_size_x 128
#endif
#ifndef tile_size
#define tile_size 2        // points of a thread
#endif
#ifndef between_method
#define between_method 0   // how an edge is found to span the height of the point, see spans
#endif
#ifndef vertices_in_shared
#define vertices_in_shared 1
#endif

__device__ __forceinline__ bool spans(float a, float b, float y) {
  if (between_method == 0) return (a > y) != (b > y);
  if (between_method == 1) return (a > y && b <= y) || (a <= y && b > y);
  return (a - y) * (b - y) < 0.0f;
}

extern "C" __global__ void __launch_bounds__(block_size_x)
point_in_polygon(const float2* __restrict__ points, const float2* __restrict__ vertices, int* __restrict__ inside, int n) {
#if vertices_in_shared
  __shared__ float2 corners[SHAPE_V];
  for (int j = threadIdx.x; j < SHAPE_V; j += block_size_x) corners[j] = vertices[j];
  __syncthreads();
#else
  const float2* corners = vertices;
#endif
  const int first = blockIdx.x * block_size_x * tile_size + threadIdx.x;
  float2 mine[tile_size];
  bool is_in[tile_size] = {};
#pragma unroll
  for (int t = 0; t < tile_size; ++t) mine[t] = points[min(first + t * block_size_x, n - 1)];
  float2 a = corners[SHAPE_V - 1];
  for (int j = 0; j < SHAPE_V; ++j) {
    const float2 b = corners[j];
#pragma unroll
    for (int t = 0; t < tile_size; ++t) {
      const float2 p = mine[t];
      if (spans(a.y, b.y, p.y) && p.x < (b.x - a.x) * (p.y - a.y) / (b.y - a.y) + a.x) is_in[t] = !is_in[t];
    }
    a = b;
  }
#pragma unroll
  for (int t = 0; t < tile_size; ++t)
    if (first + t * block_size_x < n) inside[first + t * block_size_x] = is_in[t];
}
