// CUDA C++ for a host compiler: the words that kernel sources use, so that they build unmodified.
//
// Included before a kernel's source; HOST_ENTRIES(HOST_ENTRY(kernel)) follows it. The runtime behind it (block.cpp) runs the
// CUDA threads of a block on one OS thread, each until a barrier or a warp exchange, where the next one goes on.
// `__shared__` is static storage: one block is in flight at a time.  Not covered: PTX, tensor cores.
// Half types are in cuda_bf16.h and cuda_fp16.h beside it, for sources that include those.
#pragma once
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "host_atomics.h"
#include "host_half.h"
#include "host_integers.h"
#include "host_math.h"
#include "host_rounding.h"
#include "host_special.h"
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
#define __maxnreg__(registers)
#define __grid_constant__
// As NVRTC has them. __CUDA_ARCH__ is not defined, as in nvcc's pass for the host: it would select code with PTX.
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1

// Vector types, with the alignment that CUDA gives them: vector loads may rely on it.
#define HOST_VECTORS(T, name, bytes)                                                                    \
  struct name##1 { T x; };                                                                              \
  struct __align__(2 * bytes) name##2 { T x, y; };                                                      \
  struct name##3 { T x, y, z; };                                                                        \
  struct __align__(bytes < 4 ? 4 * bytes : 16) name##4 { T x, y, z, w; };                               \
  template <> struct host_texel<name##2> { typedef T item; };                                           \
  template <> struct host_texel<name##4> { typedef T item; };                                           \
  static inline name##1 make_##name##1(T x) { return {x}; }                                             \
  static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                     \
  static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                             \
  static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
HOST_VECTORS(float, float, 4)
HOST_VECTORS(double, double, 8)
HOST_VECTORS(int, int, 4)
HOST_VECTORS(unsigned, uint, 4)
HOST_VECTORS(signed char, char, 1)
HOST_VECTORS(unsigned char, uchar, 1)
typedef unsigned char uchar;
HOST_VECTORS(short, short, 2)
HOST_VECTORS(unsigned short, ushort, 2)
HOST_VECTORS(long, long, 8)
HOST_VECTORS(unsigned long, ulong, 8)
HOST_VECTORS(long long, longlong, 8)
HOST_VECTORS(unsigned long long, ulonglong, 8)
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
int host_block_count(int predicate, int line);  // of the threads that hold it
unsigned long long host_warp_exchange(unsigned mask, unsigned long long bits, int source_lane, int line);
unsigned host_warp_vote(unsigned mask, int predicate, int line);
unsigned host_active_lanes(int line);  // that reach it together
}
#define threadIdx (host_thread->index)
static constexpr int warpSize = 32;

#define __syncthreads() host_block_barrier(__LINE__)
#define __syncthreads_count(predicate) host_block_count((predicate) != 0, __LINE__)
#define __syncthreads_or(predicate) (host_block_count((predicate) != 0, __LINE__) != 0)
#define __syncthreads_and(predicate) (host_block_count((predicate) == 0, __LINE__) == 0)
#define __syncwarp(...) ((void)host_warp_vote(host_mask(__VA_ARGS__), 0, __LINE__))
#define __activemask() host_active_lanes(__LINE__)
#define __threadfence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define __threadfence_system() __atomic_thread_fence(__ATOMIC_SEQ_CST)
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

// Of the eight bytes of both words those four that the selector's digits name.
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const unsigned long long bytes = (unsigned long long)high << 32 | low;
  unsigned picked = 0;
  for (int i = 0; i < 4; ++i) picked |= (unsigned)(bytes >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  return picked;
}

// Matches and reductions of the lanes that take part: those of the mask that have not ended.
template <class T> static inline unsigned host_match_any(unsigned mask, T value, int line) {
  const unsigned lanes = host_warp_vote(mask, 1, line);
  unsigned found = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    const T other = host_shuffle(mask, value, lane, line);
    found |= static_cast<unsigned>(!memcmp(&other, &value, sizeof value)) << lane;
  }
  return found;
}
template <class T> static inline unsigned host_match_all(unsigned mask, T value, int* is_one, int line) {
  const unsigned lanes = host_warp_vote(mask, 1, line);
  *is_one = host_match_any(mask, value, line) == lanes;
  return *is_one ? mask : 0;
}
template <class T, class F> static inline T host_reduce(unsigned mask, T value, int line, F combined) {
  const unsigned lanes = host_warp_vote(mask, 1, line);
  T result = 0;
  bool is_first = true;
  for (int lane = 0; lane < 32; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    const T other = host_shuffle(mask, value, lane, line);
    result = is_first ? other : static_cast<T>(combined(result, other));
    is_first = false;
  }
  return result;
}
#define HOST_REDUCE(mask, value, result) \
  host_reduce(mask, value, __LINE__, [](auto x, auto y) { return result; })
#define __match_any_sync(mask, value) host_match_any(mask, value, __LINE__)
#define __match_all_sync(mask, value, is_one) host_match_all(mask, value, is_one, __LINE__)
#define __reduce_add_sync(mask, value) HOST_REDUCE(mask, value, static_cast<unsigned>(x) + static_cast<unsigned>(y))
#define __reduce_min_sync(mask, value) HOST_REDUCE(mask, value, x < y ? x : y)
#define __reduce_max_sync(mask, value) HOST_REDUCE(mask, value, x > y ? x : y)
#define __reduce_and_sync(mask, value) HOST_REDUCE(mask, value, x & y)
#define __reduce_or_sync(mask, value) HOST_REDUCE(mask, value, x | y)
#define __reduce_xor_sync(mask, value) HOST_REDUCE(mask, value, x ^ y)

// Time passes in ns. What ends a kernel ends its process. What has no meaning here is refused where it is called.
HOST_BUILTIN long long clock64() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}
HOST_BUILTIN void __nanosleep(unsigned) {}
HOST_BUILTIN void __trap() { __builtin_trap(); }
HOST_BUILTIN void __brkpt() { __builtin_trap(); }
#if defined(__has_builtin) && !__has_builtin(__builtin_assume)
#define __builtin_assume(condition) ((void)0)
#endif
typedef struct CUstream_st* cudaStream_t;
typedef enum cudaError { cudaSuccess = 0 } cudaError_t;
#define HOST_REFUSED(result, name, parameters, what) \
  extern "C" __attribute__((error("the CPU device has no " #name ": " what))) result name parameters;
#define HOST_NO_SPACES "memory of the host has no address spaces"
HOST_REFUSED(unsigned, __isGlobal, (const void*), HOST_NO_SPACES)
HOST_REFUSED(unsigned, __isShared, (const void*), HOST_NO_SPACES)
HOST_REFUSED(unsigned, __isConstant, (const void*), HOST_NO_SPACES)
HOST_REFUSED(unsigned, __isLocal, (const void*), HOST_NO_SPACES)
HOST_REFUSED(size_t, __cvta_generic_to_shared, (const void*), HOST_NO_SPACES)
HOST_REFUSED(size_t, __cvta_generic_to_global, (const void*), HOST_NO_SPACES)
HOST_REFUSED(void*, __cvta_shared_to_generic, (size_t), HOST_NO_SPACES)
HOST_REFUSED(void, __prof_trigger, (int), "it has no hardware counters")
#undef HOST_REFUSED
extern const int __CUDA_ARCH__ __attribute__((
    unavailable("the CPU device has no compute capability: ask `#ifdef __CUDA_ARCH__` and give an #else")));
#undef HOST_NO_SPACES

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

// Arithmetic that C lacks. exp, fma and so on are in host_math.h.
#define HOST_MIN_MAX(T, A, B)                                                                   \
  static inline T min(A a, B b) { return static_cast<T>(b) < static_cast<T>(a) ? b : a; }       \
  static inline T max(A a, B b) { return static_cast<T>(a) < static_cast<T>(b) ? b : a; }
#define HOST_MIN_MAX_OF(S, U) HOST_MIN_MAX(S, S, S) HOST_MIN_MAX(U, U, U) HOST_MIN_MAX(U, S, U) HOST_MIN_MAX(U, U, S)
HOST_MIN_MAX_OF(int, unsigned)
HOST_MIN_MAX_OF(long, unsigned long)
HOST_MIN_MAX_OF(long long, unsigned long long)
#undef HOST_MIN_MAX_OF
#undef HOST_MIN_MAX
static inline float min(float a, float b) { return fminf(a, b); }  // of a NaN and a number, CUDA returns the number
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(float a, double b) { return fmin(static_cast<double>(a), b); }
static inline double min(double a, float b) { return fmin(a, static_cast<double>(b)); }
static inline double max(float a, double b) { return fmax(static_cast<double>(a), b); }
static inline double max(double a, float b) { return fmax(a, static_cast<double>(b)); }
static inline float host_rsqrt(float x) { return 1.0f / sqrtf(x); }
static inline double host_rsqrt(double x) { return 1.0 / sqrt(x); }
#define rsqrtf(x) host_rsqrt(static_cast<float>(x))  // newer C libraries declare functions of these names
#define rsqrt(x) host_rsqrt(x)
static inline void host_sincospi(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
static inline void host_sincospi(double x, double* s, double* c) { *s = host_sinpi(x), *c = host_cospi(x); }
#define sincospi(x, s, c) host_sincospi(x, s, c)
#define sincospif(x, s, c) host_sincospi(static_cast<float>(x), s, c)
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float a) { return fminf(fmaxf(a, 0.0f), 1.0f); }
#define __expf(x) expf(x)  // glibc has functions of these names too
#define __logf(x) logf(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __sincosf(x, s, c) sincosf(x, s, c)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __exp10f(x) exp10f(x)

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

// The size of an axis that a launch gives: the argument at that place, -1 for none, which `launch` keeps for all threads.
#define HOST_SIZE_AT_LAUNCH host_size_at_launch
extern "C" unsigned host_size_at_launch;
extern "C" const int host_size_place;
#define HOST_SIZE_PLACE(place) const int host_size_place = place;

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
