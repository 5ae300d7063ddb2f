// What the bench asks of the device beside the kernel under test: how far is a result from its reference, was anything
// written that must not be, and a read of so much memory that the L2 cache holds nothing else. Every kernel takes any
// grid of one axis and any block of whole warps; answers are added to 64-bit words that the caller has set.
#ifndef REAL
#define REAL float
#endif
typedef unsigned long long word64;

__device__ __forceinline__ size_t first_index() { return static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ __forceinline__ size_t index_step() { return static_cast<size_t>(gridDim.x) * blockDim.x; }

__device__ __forceinline__ bool is_finite(double x) { return fabs(x) <= 1.7976931348623157e308; }

// The error of one component over its bound, never NaN: infinite where a NaN or infinity stands that the reference has not.
__device__ double bound_ratio(double out, double value, double bound) {
  const double infinity = __longlong_as_double(0x7ff0000000000000ll);
  if (!is_finite(value)) return out == value || (out != out && value != value) ? 0.0 : infinity;
  if (!is_finite(out)) return infinity;
  const double error = fabs(out - value);
  if (error == 0.0) return 0.0;
  const double ratio = error / bound;
  return ratio == ratio ? ratio : infinity;
}

// answer[0]: the bits of the worst ratio (ratios are not negative, so their bits order as they do); answer[1]: how many
// ratios are over c; answer[2]: the least index among those.
extern "C" __global__ void compare(const REAL* out, const double* value, const double* magnitude, double factor, double c,
                                   word64 count, word64* answer) {
  double worst = 0.0;
  word64 wrong = 0, first = ~0ull;
  for (size_t i = first_index(); i < count; i += index_step()) {
    const double ratio = bound_ratio(out[i], value[i], magnitude[i] * factor);
    worst = fmax(worst, ratio);
    if (ratio > c) {
      ++wrong;
      if (i < first) first = i;
    }
  }
  for (int offset = 16; offset; offset /= 2) worst = fmax(worst, __shfl_down_sync(0xffffffffu, worst, offset));
  if (threadIdx.x % 32 == 0) atomicMax(answer, static_cast<word64>(__double_as_longlong(worst)));
  if (wrong) {
    atomicAdd(answer + 1, wrong);
    atomicMin(answer + 2, first);
  }
}

// *answer: how many words of a guard band are no longer as they were filled.
extern "C" __global__ void count_damage(const unsigned* words, word64 count, word64* answer) {
  word64 damaged = 0;
  for (size_t i = first_index(); i < count; i += index_step()) damaged += words[i] != 0xffffffffu;
  if (damaged) atomicAdd(answer, damaged);
}

// *answer: a sum over words and their places that changes when any one word does (an odd multiple of a difference below
// 2^64 is not 0 modulo 2^64), and in all likelihood when several do.
extern "C" __global__ void fingerprint(const unsigned* words, word64 count, word64* answer) {
  word64 sum = 0;
  for (size_t i = first_index(); i < count; i += index_step()) sum += words[i] * (2 * i * 0x9e3779b97f4a7c15ull + 1);
  for (int offset = 16; offset; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) atomicAdd(answer, sum);
}

// Reads everything and writes nothing: what is left in the L2 cache is clean, so that the kernel timed next does not pay
// for writing it back, as it would after a memset.
extern "C" __global__ void read_through(const uint4* values, word64 count, unsigned* never_written) {
  unsigned seen = 0;
  for (size_t i = first_index(); i < count; i += index_step()) {
    const uint4 value = __ldcg(values + i);
    seen |= value.x | value.y | value.z | value.w;
  }
  if (seen == 0x5eed5eedu) *never_written = seen;   // the buffer holds zeros
}

// The same numbers in double precision, or their absolute values.
extern "C" __global__ void widen(const REAL* in, double* out, word64 count, int absolute) {
  for (size_t i = first_index(); i < count; i += index_step()) out[i] = absolute ? fabs(double(in[i])) : double(in[i]);
}
