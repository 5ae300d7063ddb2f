// CUDA C++ for a host compiler: the words that kernel sources use, so that they build unmodified.
//
// Included before a kernel's source; HOST_ENTRIES(HOST_ENTRY(kernel)) follows it. The runtime behind it (block.cpp) runs the
// CUDA threads of a block on one OS thread, each until a barrier or a warp exchange, where the next one goes on.
// `__shared__` is static storage: one block is in flight at a time.  Not covered: PTX, tensor cores.
// Half types are in cuda_bf16.h and cuda_fp16.h beside it, for sources that include those.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "host_half.h"
#include "host_math.h"
#include "host_texture.h"

// Function and variable qualifiers. Defined after the system's headers, some of which use these very names.
#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

// Vector types, with the alignment that CUDA gives them: vector loads may rely on it.
#define HOST_VECTORS(T, name, bytes)                                                                    \
  struct __align__(2 * bytes) name##2 { T x, y; };                                                      \
  struct name##3 { T x, y, z; };                                                                        \
  struct __align__(bytes < 4 ? 4 * bytes : 16) name##4 { T x, y, z, w; };                               \
  template <> struct host_texel<name##2> { typedef T item; };                                           \
  template <> struct host_texel<name##4> { typedef T item; };                                           \
  static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                     \
  static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                             \
  static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
HOST_VECTORS(float, float, 4)
HOST_VECTORS(double, double, 8)
HOST_VECTORS(int, int, 4)
HOST_VECTORS(unsigned, uint, 4)
HOST_VECTORS(signed char, char, 1)
HOST_VECTORS(unsigned char, uchar, 1)
HOST_VECTORS(short, short, 2)
HOST_VECTORS(unsigned short, ushort, 2)
#undef HOST_VECTORS

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// What the runtime offers. `line` is the caller's: threads of one barrier must wait at the same one.
struct HostThread {
  uint3 index;
  unsigned rank;  // x first, then y, then z; the warp is rank / 32
};
extern "C" {
extern HostThread* host_thread;  // the one that runs now
extern bool host_none_waited;    // in this block so far
extern uint3 blockIdx;
extern dim3 blockDim, gridDim;
extern char host_dynamic_shared[];
void host_block_barrier(int line);
int host_block_or(int predicate, int line);
unsigned long long host_warp_exchange(unsigned mask, unsigned long long bits, int source_lane, int line);
unsigned host_warp_vote(unsigned mask, int predicate, int line);
unsigned host_active_lanes(void);
}
#define threadIdx (host_thread->index)
static constexpr int warpSize = 32;

#define __syncthreads() host_block_barrier(__LINE__)
#define __syncthreads_or(predicate) host_block_or((predicate) != 0, __LINE__)
#define __syncwarp(...) ((void)host_warp_vote(host_mask(__VA_ARGS__), 0, __LINE__))
#define __activemask() host_active_lanes()
#define __threadfence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define __threadfence_block() __atomic_thread_fence(__ATOMIC_SEQ_CST)
static inline unsigned host_mask(unsigned mask = 0xffffffffu) { return mask; }

// Warp votes and shuffles. A value read from a lane that takes no part is a NaN pattern: undefined in CUDA.
#define __ballot_sync(mask, predicate) host_warp_vote(mask, (predicate) != 0, __LINE__)
#define __any_sync(mask, predicate) (host_warp_vote(mask, (predicate) != 0, __LINE__) != 0)
#define __all_sync(mask, predicate) (host_warp_vote(mask, (predicate) == 0, __LINE__) == 0)

static inline int host_lane() { return static_cast<int>(host_thread->rank % 32); }

template <class T>
static inline T host_shuffle(unsigned mask, T value, int source_lane, int line) {
  static_assert(sizeof(T) <= sizeof(unsigned long long), "shuffles move at most 8 bytes");
  unsigned long long bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = host_warp_exchange(mask, bits, source_lane, line);
  memcpy(&value, &bits, sizeof(T));
  return value;
}

// Lanes are grouped in segments of `width`, a power of two; outside its segment a lane gets its own value.
static inline int host_segment(int width) { return host_lane() & ~(width - 1); }
static inline int host_source_index(int lane, int width = 32) { return host_segment(width) | (lane & (width - 1)); }
static inline int host_source_down(unsigned delta, int width = 32) {
  const int lane = host_lane() + static_cast<int>(delta);
  return lane < host_segment(width) + width ? lane : host_lane();
}
static inline int host_source_up(unsigned delta, int width = 32) {
  const int lane = host_lane() - static_cast<int>(delta);
  return lane >= host_segment(width) ? lane : host_lane();
}
static inline int host_source_xor(int bits, int width = 32) {
  const int lane = host_lane() ^ bits;
  return lane < host_segment(width) + width ? lane : host_lane();
}
#define __shfl_sync(mask, value, ...) host_shuffle(mask, value, host_source_index(__VA_ARGS__), __LINE__)
#define __shfl_down_sync(mask, value, ...) host_shuffle(mask, value, host_source_down(__VA_ARGS__), __LINE__)
#define __shfl_up_sync(mask, value, ...) host_shuffle(mask, value, host_source_up(__VA_ARGS__), __LINE__)
#define __shfl_xor_sync(mask, value, ...) host_shuffle(mask, value, host_source_xor(__VA_ARGS__), __LINE__)

// A float's bits, and back.
static inline unsigned __float_as_uint(float x) {
  unsigned bits;
  memcpy(&bits, &x, 4);
  return bits;
}
static inline float __uint_as_float(unsigned bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// Of the eight bytes of both words those four that the selector's digits name.
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const unsigned long long bytes = (unsigned long long)high << 32 | low;
  unsigned picked = 0;
  for (int i = 0; i < 4; ++i) picked |= (unsigned)(bytes >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  return picked;
}

// Loads and stores with a cache hint: plain ones here.
template <class T> static inline T __ldg(const T* p) { return *p; }
template <class T> static inline T __ldca(const T* p) { return *p; }
template <class T> static inline T __ldcg(const T* p) { return *p; }
template <class T> static inline T __ldcs(const T* p) { return *p; }
template <class T> static inline T __ldlu(const T* p) { return *p; }
template <class T> static inline void __stcg(T* p, T value) { *p = value; }
template <class T> static inline void __stcs(T* p, T value) { *p = value; }
template <class T> static inline void __stwb(T* p, T value) { *p = value; }
template <class T> static inline void __stwt(T* p, T value) { *p = value; }

// Atomics: relaxed, as in CUDA.
#define HOST_FETCH(name, T, builtin) \
  static inline T name(T* p, T value) { return builtin(p, value, __ATOMIC_RELAXED); }
HOST_FETCH(atomicAdd, int, __atomic_fetch_add)
HOST_FETCH(atomicAdd, unsigned, __atomic_fetch_add)
HOST_FETCH(atomicAdd, unsigned long long, __atomic_fetch_add)
HOST_FETCH(atomicOr, unsigned, __atomic_fetch_or)
HOST_FETCH(atomicExch, int, __atomic_exchange_n)
HOST_FETCH(atomicExch, unsigned, __atomic_exchange_n)
#undef HOST_FETCH
#define HOST_UPDATE(name, T, result)                                                                         \
  static inline T name(T* p, T value) {                                                                      \
    T old, replacement;                                                                                      \
    __atomic_load(p, &old, __ATOMIC_RELAXED);                                                                \
    do replacement = (result);                                                                               \
    while (!__atomic_compare_exchange(p, &old, &replacement, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));    \
    return old;                                                                                              \
  }
HOST_UPDATE(atomicAdd, float, old + value)
HOST_UPDATE(atomicAdd, double, old + value)
HOST_UPDATE(atomicMax, int, old > value ? old : value)
HOST_UPDATE(atomicMax, unsigned, old > value ? old : value)
HOST_UPDATE(atomicMin, int, old < value ? old : value)
HOST_UPDATE(atomicInc, unsigned, old >= value ? 0 : old + 1)
#undef HOST_UPDATE
static inline int atomicCAS(int* p, int expected, int value) {
  __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}

// Arithmetic that C lacks. exp, fma and so on are in host_math.h.
#define HOST_MIN_MAX(T)                                            \
  static inline T min(T a, T b) { return b < a ? b : a; }          \
  static inline T max(T a, T b) { return a < b ? b : a; }
HOST_MIN_MAX(int)
HOST_MIN_MAX(unsigned)
HOST_MIN_MAX(long long)
HOST_MIN_MAX(unsigned long long)
#undef HOST_MIN_MAX
static inline float min(float a, float b) { return fminf(a, b); }  // of a NaN and a number, CUDA returns the number
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline float host_rsqrt(float x) { return 1.0f / sqrtf(x); }
static inline double host_rsqrt(double x) { return 1.0 / sqrt(x); }
#define rsqrtf(x) host_rsqrt(static_cast<float>(x))  // newer C libraries declare functions of these names
#define rsqrt(x) host_rsqrt(x)
static inline void host_sincospi(float x, float* s, float* c) {
  *s = static_cast<float>(sin(M_PI * static_cast<double>(x))), *c = static_cast<float>(cos(M_PI * static_cast<double>(x)));
}
static inline void host_sincospi(double x, double* s, double* c) { *s = sin(M_PI * x), *c = cos(M_PI * x); }
#define sincospi(x, s, c) host_sincospi(x, s, c)
#define sincospif(x, s, c) host_sincospi(static_cast<float>(x), s, c)
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __saturatef(float a) { return fminf(fmaxf(a, 0.0f), 1.0f); }
#define __expf(x) expf(x)  // glibc has functions of these names too
#define __logf(x) logf(x)
#define __powf(x, y) powf(x, y)
static inline int __float_as_int(float x) { int bits; memcpy(&bits, &x, sizeof bits); return bits; }
static inline float __int_as_float(int bits) { float x; memcpy(&x, &bits, sizeof x); return x; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }

// HOST_ENTRIES(HOST_ENTRY(kernel), ...): by what the runner calls the kernels of a variant, in the order of its launches,
// without knowing their parameters. `run_threads` runs `host_thread`, which is *at, and those behind it for as long as
// none waits: here, where the compiler sees the kernel's body, such a thread takes 1 ns instead of 5.
// values[i] points to the i-th argument; the signature has a letter for each: p pointer, t texture, f float, d double, i integer.
struct HostEntry {
  void (*run_threads)(void** values, HostThread* const* at, HostThread* const* end);
  const char* signature;
};
extern "C" const HostEntry host_entries[];
extern "C" const int host_entry_count;
template <int... I> struct host_indices {};
template <int N, int... I> struct host_count : host_count<N - 1, N - 1, I...> {};
template <int... I> struct host_count<0, I...> { typedef host_indices<I...> type; };
template <class T> struct host_letter;
template <class T> struct host_letter<T*> { static constexpr char value = 'p'; };
template <> struct host_letter<cudaTextureObject_t> { static constexpr char value = 't'; };
template <> struct host_letter<float> { static constexpr char value = 'f'; };
template <> struct host_letter<double> { static constexpr char value = 'd'; };
#define HOST_INTEGER(T) template <> struct host_letter<T> { static constexpr char value = 'i'; };
HOST_INTEGER(bool) HOST_INTEGER(char) HOST_INTEGER(signed char) HOST_INTEGER(unsigned char) HOST_INTEGER(short)
HOST_INTEGER(unsigned short) HOST_INTEGER(int) HOST_INTEGER(unsigned) HOST_INTEGER(long) HOST_INTEGER(unsigned long)
HOST_INTEGER(long long) HOST_INTEGER(unsigned long long)
#undef HOST_INTEGER
template <class... A> struct host_call {
  static constexpr char signature[] = {host_letter<A>::value..., '\0'};
  template <int... I> static void run(void (*kernel)(A...), void** values, host_indices<I...>) {
    kernel(*static_cast<A*>(values[I])...);
  }
  static void run(void (*kernel)(A...), void** values) {
    run(kernel, values, typename host_count<sizeof...(A)>::type());
  }
};
template <class... A> static host_call<A...> host_call_of(void (*)(A...)) { return {}; }
template <auto kernel> static void host_run_threads(void** values, HostThread* const* at, HostThread* const* end) {
  do decltype(host_call_of(kernel))::run(kernel, values);
  while (host_none_waited && ++at < end && (host_thread = *at));
}
#define HOST_ENTRY(...) /* a template's arguments have commas */ \
  {host_run_threads<&__VA_ARGS__>, decltype(host_call_of(&__VA_ARGS__))::signature}
#define HOST_ENTRIES(...)                      \
  const HostEntry host_entries[] = {__VA_ARGS__}; \
  const int host_entry_count = sizeof host_entries / sizeof host_entries[0];

// HOST_CONSTANTS(HOST_CONSTANT(name), ..., HOST_NO_CONSTANT): the `__constant__` arrays that are filled before a launch.
struct HostConstant {
  const char* name;
  void* address;
  size_t bytes;
};
extern "C" const HostConstant host_constants[];
#define HOST_CONSTANT(name) {#name, (void*)&name, sizeof name}
#define HOST_NO_CONSTANT {nullptr, nullptr, 0}
#define HOST_CONSTANTS(...) const HostConstant host_constants[] = {__VA_ARGS__};
