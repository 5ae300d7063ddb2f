// What the bench asks of the device beside the kernel under test: how far is a result from its reference, was anything
// written that must not be, and a read of so much memory that the L2 cache holds nothing else. Every kernel takes any
// grid of one axis and any block of whole warps; answers are added to 64-bit words that the caller has set.
#include "common/real.cuh"

typedef unsigned long long word64;

__device__ __forceinline__ size_t first_index() { return static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ __forceinline__ size_t index_step() { return static_cast<size_t>(gridDim.x) * blockDim.x; }

__device__ __forceinline__ bool is_finite(double x) { return fabs(x) <= 1.7976931348623157e308; }

// What storing a sum in a half type costs: so much of it, or of the smallest normal number; infinite from `overflow` on.
struct Rounding { double unit_roundoff, smallest_normal, overflow; };

// The error of one component over its bound, never NaN: infinite where a NaN or infinity stands that the reference has
// not, and no sum within c bounds overflows. What the rounding may have cost is no error.
__device__ double bound_ratio(double out, double value, double bound, double c, Rounding rounding) {
  const double infinity = __longlong_as_double(0x7ff0000000000000ll);
  if (!is_finite(value)) return out == value || (out != out && value != value) ? 0.0 : infinity;
  if (!is_finite(out)) return out * value > 0.0 && fabs(value) + c * bound >= rounding.overflow ? 0.0 : infinity;
  const double rounded = rounding.unit_roundoff * fmax(fabs(value), rounding.smallest_normal);
  const double error = fabs(out - value) - rounded;
  if (error <= 0.0) return 0.0;
  const double ratio = error / bound;
  return ratio == ratio ? ratio : infinity;
}

// Where component i of a tensor lies: matrices of `rows` x `columns`, `stride` elements apart, their rows `pitch`.
__device__ __forceinline__ size_t place_of(size_t i, word64 rows, word64 columns, word64 stride, word64 pitch) {
  if (rows == 1) return i / columns * stride + i % columns;
  const size_t row = i / columns;
  return row / rows * stride + row % rows * pitch + i % columns;
}

// answer[0]: the bits of the worst ratio (ratios are not negative, so their bits order as they do); answer[1]: how many
// ratios are over c; answer[2]: the least index among those. All three tensors lie alike.
extern "C" __global__ void compare(const REAL* out, const double* value, const double* magnitude, double factor,
                                   double underflow, double c, double unit_roundoff, double smallest_normal,
                                   double overflow, word64 count, word64 rows, word64 columns, word64 stride, word64 pitch,
                                   word64* answer) {
  const Rounding rounding = {unit_roundoff, smallest_normal, overflow};
  double worst = 0.0;
  word64 wrong = 0, first = ~0ull;
  for (size_t i = first_index(); i < count; i += index_step()) {
    const size_t at = place_of(i, rows, columns, stride, pitch);
    const double bound = (magnitude[at] + underflow) * factor;
    const double ratio = bound_ratio(Sum(out[at]), value[at], bound, c, rounding);
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

// The same of integers, `bytes` each: any that differs is wrong, and infinitely so.
extern "C" __global__ void compare_exactly(const unsigned char* out, const unsigned char* value, word64 bytes,
                                           word64 count, word64 rows, word64 columns, word64 stride, word64 pitch,
                                           word64* answer) {
  for (size_t i = first_index(); i < count; i += index_step()) {
    const size_t at = place_of(i, rows, columns, stride, pitch) * bytes;
    bool differs = false;
    for (unsigned k = 0; k < bytes; ++k) differs |= out[at + k] != value[at + k];
    if (differs) {
      atomicMax(answer, 0x7ff0000000000000ull);
      atomicAdd(answer + 1, 1ull);
      atomicMin(answer + 2, static_cast<word64>(i));
    }
  }
}

// Integers that are all wrong, in every bit: no integer is NaN, which would say that nobody has written it.
extern "C" __global__ void poison(unsigned char* out, const unsigned char* value, word64 bytes, word64 count, word64 rows,
                                  word64 columns, word64 stride, word64 pitch) {
  for (size_t i = first_index(); i < count; i += index_step()) {
    const size_t at = place_of(i, rows, columns, stride, pitch) * bytes;
    for (unsigned k = 0; k < bytes; ++k) out[at + k] = static_cast<unsigned char>(~value[at + k]);
  }
}

// *answer: how many words of a guard band are no longer as they were filled.
extern "C" __global__ void count_damage(const unsigned* words, word64 count, word64* answer) {
  word64 damaged = 0;
  for (size_t i = first_index(); i < count; i += index_step()) damaged += words[i] != 0xffffffffu;
  if (damaged) atomicAdd(answer, damaged);
}

// *answer: how many elements, `bytes` each, between the rows of a tensor are no longer as they were filled. Its elements
// are those at a * outer_stride + b * stride + c with a < outer, b < count and c < columns; each stride spans what is
// inside it.
extern "C" __global__ void count_gap_damage(const unsigned char* memory, word64 bytes, word64 elements, word64 outer,
                                            word64 outer_stride, word64 count, word64 stride, word64 columns,
                                            word64* answer) {
  word64 damaged = 0;
  for (size_t i = first_index(); i < elements; i += index_step()) {
    const size_t within = i % outer_stride;
    if (i / outer_stride < outer && within / stride < count && within % stride < columns) continue;
    bool is_written = false;
    for (unsigned k = 0; k < bytes; ++k) is_written |= memory[i * bytes + k] != 0xff;
    damaged += is_written;
  }
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
  for (size_t i = first_index(); i < count; i += index_step()) out[i] = absolute ? fabs(double(Sum(in[i]))) : double(Sum(in[i]));
}
