// Textures on the host: tex1Dfetch, tex1D, tex2D and tex3D of texture objects, as the CUDA C++ Programming Guide defines
// them ("Texture Fetching"). A linear filter's weights are rounded to 8 bits behind the point; the guide does not say whether
// a GPU rounds them or cuts them off. Not covered: mipmaps, layers, cube maps, tex2Dgather, reads of integers as floats.
#pragma once
#include <math.h>
#include <string.h>

struct HostTexture {
  const char* name;
  const char* data;
  int rank;            // 0: linear memory
  long long sizes[3];  // texels along x, y, z
  char kind;           // of a component: f float, i and u integer
  int item_bytes, channels;
  bool is_filtered, is_normalized;
  char address;        // the first letter of wrap, clamp, mirror, border
};
typedef const HostTexture* cudaTextureObject_t;

// A texel's components, by the type that it is read as.
template <class T> struct host_texel { typedef T item; };

template <class T> constexpr char host_kind() {
  return static_cast<T>(0.5f) != T(0) ? 'f' : static_cast<T>(-1) < T(0) ? 'i' : 'u';
}

// Ends the process with a sentence about the read.
extern "C" [[noreturn]] void host_wrong_texture(cudaTextureObject_t texture, int rank);

template <class T> static inline void host_check_texture(cudaTextureObject_t texture, int rank) {
  typedef typename host_texel<T>::item item;
  const bool is_type = texture->kind == host_kind<item>() && texture->item_bytes == sizeof(item) &&
                       texture->channels == sizeof(T) / sizeof(item);
  if (texture->rank != rank || !is_type) host_wrong_texture(texture, rank);
}

// The index of the texel that counts for this one; -1 where there is none, whose components are 0.
static inline long long host_texel_index(char address, long long i, long long size) {
  if (i >= 0 && i < size) return i;
  if (address == 'c') return i < 0 ? 0 : size - 1;
  if (address == 'b') return -1;
  const long long period = address == 'm' ? 2 * size : size;
  const long long place = (i % period + period) % period;
  return place < size ? place : period - 1 - place;
}

template <class T> static inline T host_texel_at(cudaTextureObject_t texture, const long long* at) {
  T texel;
  memset(&texel, 0, sizeof texel);
  long long place = 0;
  for (int axis = texture->rank - 1; axis >= 0; --axis) {
    const long long i = host_texel_index(texture->address, at[axis], texture->sizes[axis]);
    if (i < 0) return texel;
    place = place * texture->sizes[axis] + i;
  }
  memcpy(&texel, texture->data + place * static_cast<long long>(sizeof texel), sizeof texel);
  return texel;
}

template <class T> static inline T host_sampled(cudaTextureObject_t texture, int rank, const float* coordinates) {
  typedef typename host_texel<T>::item item;
  constexpr int channels = sizeof(T) / sizeof(item);
  host_check_texture<T>(texture, rank);
  long long first[3];
  double weights[3];
  for (int axis = 0; axis < rank; ++axis) {
    double at = coordinates[axis];
    if (texture->is_normalized) at *= static_cast<double>(texture->sizes[axis]);
    at = fmin(fmax(at, -1e12), 1e12) - (texture->is_filtered ? 0.5 : 0.0);
    first[axis] = static_cast<long long>(floor(at));
    weights[axis] = rint((at - floor(at)) * 256) / 256;
  }
  if (!texture->is_filtered) return host_texel_at<T>(texture, first);
  double sums[channels] = {};
  item items[channels];
  for (int corner = 0; corner < 1 << rank; ++corner) {
    long long at[3];
    double weight = 1;
    for (int axis = 0; axis < rank; ++axis) {
      const int step = corner >> axis & 1;
      at[axis] = first[axis] + step;
      weight *= step ? weights[axis] : 1 - weights[axis];
    }
    if (weight == 0) continue;  // an infinite neighbour has no part in it
    const T texel = host_texel_at<T>(texture, at);
    memcpy(items, &texel, sizeof texel);
    for (int i = 0; i < channels; ++i) sums[i] += weight * static_cast<double>(items[i]);
  }
  for (int i = 0; i < channels; ++i) items[i] = static_cast<item>(sums[i]);
  T result;
  memcpy(&result, items, sizeof result);
  return result;
}

// Outside of linear memory a texel is 0.
template <class T> static inline T tex1Dfetch(cudaTextureObject_t texture, int x) {
  host_check_texture<T>(texture, 0);
  T texel;
  memset(&texel, 0, sizeof texel);
  if (x >= 0 && x < texture->sizes[0])
    memcpy(&texel, texture->data + x * static_cast<long long>(sizeof texel), sizeof texel);
  return texel;
}
template <class T> static inline T tex1D(cudaTextureObject_t texture, float x) {
  return host_sampled<T>(texture, 1, &x);
}
template <class T> static inline T tex2D(cudaTextureObject_t texture, float x, float y) {
  const float at[] = {x, y};
  return host_sampled<T>(texture, 2, at);
}
template <class T> static inline T tex3D(cudaTextureObject_t texture, float x, float y, float z) {
  const float at[] = {x, y, z};
  return host_sampled<T>(texture, 3, at);
}
