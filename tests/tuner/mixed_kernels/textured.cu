// Reads of textures of every kind: linear memory, pitched memory, arrays; by index, nearest, filtered; inside and outside.
// grid ((w + 15) / 16, (h + 15) / 16), block (16, 16).
#ifndef BUG
#define BUG 0
#endif

extern "C" __global__ void textured(cudaTextureObject_t table, cudaTextureObject_t image, cudaTextureObject_t colours,
                                    cudaTextureObject_t tiled, cudaTextureObject_t volume, int* picked, float* near,
                                    float* turned, float* mixed) {
  const int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
  if (x >= SHAPE_W || y >= SHAPE_H) return;
  const int i = y * SHAPE_W + x;
  picked[i] = tex1Dfetch<int>(table, i - 5) + tex2D<uchar4>(colours, x - 2.5f, y + 0.5f).z;
#if BUG == 2
  near[i] = tex2D<float2>(image, x + 0.5f, y + 0.5f).x;
#else
  near[i] = tex2D<float>(image, x + 0.5f, y - 2.5f);
#endif
  turned[i] = tex2D<float>(tiled, (x + 0.5f) / SHAPE_W - 1.25f, (y + 0.5f) / SHAPE_H + 2.25f);
  for (int z = 0; z < SHAPE_D; ++z)
    mixed[z * SHAPE_H * SHAPE_W + i] =
        tex3D<float>(volume, x + 0.7f + (BUG == 1), y + 0.375f, z + 0.125f);
}
