// Some rows of a product beside those that a configuration computed: sums of products and of their sizes by plain
// arithmetic, then each component against verification's bound. Nothing here is shared with the kernels that are tuned.
// `keep_rows` runs before a launch that reads C, `sum_rows` and `judge_rows` behind it on the same stream; the verdict is a
// word of the host's memory that the last block of `judge_rows` writes.
#include "common/real.cuh"

constexpr int ROWS = 16;      // judged, from the first to the last of the matrix
constexpr int COLUMNS = 32;   // of a block
constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int VECTOR = 16 / REAL_BYTES;                      // elements of one load
constexpr int LOADS = 2;                                     // of a thread and step
constexpr int STEP = LOADS * THREADS * VECTOR / COLUMNS;     // terms of a step: 64 in float, 128 in half types, 32 in double
constexpr int OF_A = ROWS * STEP / THREADS;

#if REAL_BYTES == 8
typedef double Acc;
#else
typedef float Acc;
#endif

// Half types are multiplied by tensor cores where these take them; their products are exact, and sums are float32.
#if REAL_BYTES == 2 && defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 800
#define BY_TENSOR_CORES 1
#endif
#endif

struct Sums { double value, magnitude; };

struct Counters { unsigned wrong, blocks; };   // zero before and after

// state: 0 while nobody knows, then 1.
struct Verdict { int state; unsigned wrong; int row, column; double got, expected; };

struct Task {
  const REAL* a; const REAL* b; const Out* c; const REAL* bias;
  long long a_row, a_term, b_term, b_column, c_row, c_column;   // elements from one to the next
  long long rows, columns, terms, slice;                        // slice: terms of one block, whole steps
  double alpha, beta, factor, root, unit, least, bounds, underflow;
  double out_unit, out_least, out_overflow;                     // what storing a sum costs
  double sum_overflow;                                          // from where on a sum on its way may be infinite
  long long activation, reads_c;
  Out* kept; Sums* sums; Counters* counters; Verdict* verdict;
};

__device__ __forceinline__ long long row_of(const Task& t, int i) {
  return t.rows > ROWS ? i * (t.rows - 1) / (ROWS - 1) : (i < t.rows ? i : t.rows - 1);
}

extern "C" __global__ void keep_rows(const Task t) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < ROWS * t.columns) t.kept[i] = t.c[row_of(t, static_cast<int>(i / t.columns)) * t.c_row + i % t.columns * t.c_column];
}

#ifdef BY_TENSOR_CORES
constexpr int PITCH_A = STEP + 8, PITCH_TERMS = STEP + 8, PITCH_COLUMNS = COLUMNS + 8;
constexpr int SIZE_A = ROWS * PITCH_A;
constexpr int SIZE_B = COLUMNS * PITCH_TERMS > STEP * PITCH_COLUMNS ? COLUMNS * PITCH_TERMS : STEP * PITCH_COLUMNS;
typedef unsigned short Held;

__device__ __forceinline__ void multiply(float* c, const unsigned* a, unsigned b0, unsigned b1) {
#ifdef REAL_IS_BFLOAT16
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
constexpr int PITCH_B = COLUMNS + 1;
constexpr int SIZE_A = STEP * ROWS, SIZE_B = STEP * PITCH_B;
typedef Acc Held;
#endif

struct alignas(16) Vector { REAL at[VECTOR]; };

// What a thread carries from memory to shared memory in one step.
struct Carried { Vector b[LOADS]; REAL a[OF_A]; };

__device__ __forceinline__ void place_a(const Task& t, int i, int& row, int& term) {
  const int e = threadIdx.x + THREADS * i;
  row = t.a_term == 1 ? e / STEP : e % ROWS;
  term = t.a_term == 1 ? e % STEP : e / ROWS;
}

__device__ __forceinline__ void place_b(bool along_terms, int i, int& term, int& column) {
  const int e = threadIdx.x + THREADS * i;
  term = along_terms ? e % (STEP / VECTOR) * VECTOR : e / (COLUMNS / VECTOR);
  column = along_terms ? e / (STEP / VECTOR) : e % (COLUMNS / VECTOR) * VECTOR;
}

__device__ void load(const Task& t, Carried& carried, long long first, long long end, long long column0, bool along_terms,
                     bool is_aligned) {
  const REAL zero = REAL(0.0f);
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
    int term, column;
    place_b(along_terms, i, term, column);
    const long long k = first + term, j = column0 + column;
    const bool is_whole = is_aligned && (along_terms ? k + VECTOR <= end && j < t.columns : k < end && j + VECTOR <= t.columns);
    const REAL* from = t.b + k * t.b_term + j * t.b_column;
    if (is_whole) {
      carried.b[i] = *reinterpret_cast<const Vector*>(from);
    } else {
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) {
        const long long ke = along_terms ? k + e : k, je = along_terms ? j : j + e;
        carried.b[i].at[e] = ke < end && je < t.columns ? from[e * (along_terms ? t.b_term : t.b_column)] : zero;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < OF_A; ++i) {
    int row, term;
    place_a(t, i, row, term);
    carried.a[i] = first + term < end ? t.a[row_of(t, row) * t.a_row + (first + term) * t.a_term] : zero;
  }
}

__device__ void store(const Task& t, const Carried& carried, Held* a, Held* b, bool along_terms) {
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
    int term, column;
    place_b(along_terms, i, term, column);
#ifdef BY_TENSOR_CORES
    *reinterpret_cast<Vector*>(b + (along_terms ? column * PITCH_TERMS + term : term * PITCH_COLUMNS + column)) = carried.b[i];
#else
#pragma unroll
    for (int e = 0; e < VECTOR; ++e)
      b[(term + (along_terms ? e : 0)) * PITCH_B + column + (along_terms ? 0 : e)] = Acc(Sum(carried.b[i].at[e]));
#endif
  }
#pragma unroll
  for (int i = 0; i < OF_A; ++i) {
    int row, term;
    place_a(t, i, row, term);
#ifdef BY_TENSOR_CORES
    *reinterpret_cast<REAL*>(a + row * PITCH_A + term) = carried.a[i];
#else
    a[term * ROWS + row] = Acc(Sum(carried.a[i]));
#endif
  }
}

// A thread's share of the sums: of each, where it stands among ROWS x COLUMNS.
constexpr int SHARE = 16;
struct Share { Acc value[SHARE], magnitude[SHARE]; };

#ifdef BY_TENSOR_CORES
__device__ __forceinline__ int place_of(int i) {
  const int lane = threadIdx.x % 32, tile = i / 4, e = i % 4;
  return (lane / 4 + (e / 2) * 8) * COLUMNS + tile * 8 + lane % 4 * 2 + e % 2;
}

__device__ __forceinline__ void add_step(Share& share, const Held* a, const Held* b, bool along_terms, int) {
  const int lane = threadIdx.x % 32, g = lane / 4, pair = lane % 4 * 2;
  for (int k = threadIdx.x / 32 * 16; k < STEP; k += WARPS * 16) {
    unsigned of_a[4], size_a[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      of_a[e] = *reinterpret_cast<const unsigned*>(a + (g + e % 2 * 8) * PITCH_A + k + pair + e / 2 * 8);
      size_a[e] = of_a[e] & 0x7fff7fffu;
    }
#pragma unroll
    for (int tile = 0; tile < COLUMNS / 8; ++tile) {
      unsigned of_b[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int term = k + pair + e * 8, column = tile * 8 + g;
        of_b[e] = along_terms ? *reinterpret_cast<const unsigned*>(b + column * PITCH_TERMS + term)
                              : b[term * PITCH_COLUMNS + column] | unsigned(b[(term + 1) * PITCH_COLUMNS + column]) << 16;
      }
      multiply(share.value + 4 * tile, of_a, of_b[0], of_b[1]);
      multiply(share.magnitude + 4 * tile, size_a, of_b[0] & 0x7fff7fffu, of_b[1] & 0x7fff7fffu);
    }
  }
}
#else
__device__ __forceinline__ int place_of(int i) {
  const int lane = threadIdx.x % 32;
  return (lane / 8 + i / 4 * 4) * COLUMNS + lane % 8 + i % 4 * 8;
}

__device__ __forceinline__ Acc size_of(Acc x) { return x < Acc(0) ? -x : x; }

__device__ __forceinline__ void add_step(Share& share, const Held* a, const Held* b, bool, int each) {
  const int lane = threadIdx.x % 32;
  for (int k = threadIdx.x / 32; k < STEP; k += WARPS) {
    Acc of_b[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) of_b[j] = b[k * PITCH_B + lane % 8 + 8 * j];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= each) break;
      const Acc of_a = a[k * ROWS + lane / 8 + 4 * i], size_a = size_of(of_a);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        share.value[4 * i + j] += of_a * of_b[j];
        share.magnitude[4 * i + j] += size_a * size_of(of_b[j]);
      }
    }
  }
}
#endif

// Grid: tiles of columns, and slices of the sum.
extern "C" __global__ void __launch_bounds__(THREADS) sum_rows(const Task t) {
  alignas(16) __shared__ Held a[SIZE_A];
  alignas(16) __shared__ Held b[SIZE_B];
  __shared__ Sums total[ROWS * COLUMNS];
  const long long column0 = static_cast<long long>(blockIdx.x) * COLUMNS;
  const long long begin = blockIdx.y * t.slice, end = begin + t.slice < t.terms ? begin + t.slice : t.terms;
  const bool along_terms = t.b_term == 1;
  const long long apart = along_terms ? t.b_column : t.b_term;
  const bool is_aligned = (along_terms || t.b_column == 1) && apart % VECTOR == 0 &&
                          reinterpret_cast<unsigned long long>(t.b) % 16 == 0;
  const int each = static_cast<int>(((t.rows < ROWS ? t.rows : ROWS) + 3) / 4);
  Share share;
#pragma unroll
  for (int i = 0; i < SHARE; ++i) share.value[i] = share.magnitude[i] = Acc(0);
  for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) total[i].value = total[i].magnitude = 0.0;
  Carried carried;
  load(t, carried, begin, end, column0, along_terms, is_aligned);
  for (long long k = begin; k < end; k += STEP) {
    __syncthreads();
    store(t, carried, a, b, along_terms);
    __syncthreads();
    if (k + STEP < end) load(t, carried, k + STEP, end, column0, along_terms, is_aligned);
    add_step(share, a, b, along_terms, each);
  }
  for (int warp = 0; warp < WARPS; ++warp) {
    __syncthreads();
    if (threadIdx.x / 32 == warp) {
#pragma unroll
      for (int i = 0; i < SHARE; ++i) {
        total[place_of(i)].value += share.value[i];
        total[place_of(i)].magnitude += share.magnitude[i];
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {
    const long long column = column0 + i % COLUMNS;
    if (column < t.columns) t.sums[(blockIdx.y * ROWS + i / COLUMNS) * t.columns + column] = total[i];
  }
}

__device__ __forceinline__ bool is_finite(double x) { return fabs(x) <= 1.7976931348623157e308; }
__device__ __forceinline__ double sigmoid(double z) { return 1.0 / (1.0 + exp(-z)); }
__device__ __forceinline__ double normal_below(double z) { return 0.5 * erfc(-0.70710678118654752 * z); }
__device__ __forceinline__ double nearest(double low, double high) { return fmax(fmax(low, -high), 0.0); }
__device__ __forceinline__ double slope_of_sigmoid(double distance) {
  const double shrunk = exp(-distance);
  return shrunk / ((1.0 + shrunk) * (1.0 + shrunk));
}

// Activations in the order of kernels/linear/reference.py, which says why their errors are bounded so.
__device__ void activate(const Task& t, double& z, double& magnitude) {
  if (t.activation == 0) return;
  if (t.activation == 4) magnitude += 2.0 / t.root * fabs(z);
  const double z0 = z, reach = 8.0 * t.root * t.unit * magnitude, low = z - reach, high = z + reach;
  double steepest = 1.0, roundoffs = 0.0;
  if (t.activation == 1) {
    steepest = high > 0.0 ? 1.0 : 0.0;
    z = fmax(z, 0.0);
  } else if (t.activation == 2) {
    steepest = slope_of_sigmoid(nearest(low, high)), roundoffs = 6.0;
    z = sigmoid(z);
  } else if (t.activation == 3) {
    steepest = 4.0 * slope_of_sigmoid(nearest(2.0 * low, 2.0 * high)), roundoffs = 4.0;
    z = tanh(z);
  } else if (t.activation == 4) {
    const double at = fmin(high, 1.4142135623730951);
    steepest = normal_below(at) + fabs(at) * exp(-0.5 * at * at) * 0.3989422804014327, roundoffs = 11.0;
    z = z * normal_below(z);
  } else {
    const double at = fmin(high, 2.399357280515468), s = sigmoid(at);
    steepest = s + fabs(at) * s * (1.0 - s), roundoffs = 6.0;
    z = z * sigmoid(z);
  }
  magnitude *= steepest;
  if (t.activation != 1) magnitude += roundoffs / t.root * fabs(z) + t.least / (t.root * t.unit);
  if (t.activation == 4) magnitude += 2.0 / t.root * fabs(z0);
}

// The sums of a component once more in double, where those in float have overflowed, up to an input that is not finite.
__device__ void sum_again(const Task& t, long long row, long long column, double& value, double& magnitude) {
  value = magnitude = 0.0;
  for (long long k = 0; k < t.terms; ++k) {
    const double product = double(Sum(t.a[row * t.a_row + k * t.a_term])) * double(Sum(t.b[k * t.b_term + column * t.b_column]));
    value += product;
    magnitude += fabs(product);
    if (!is_finite(product)) return;
  }
}

// What partial sums may be, in any order: as large as all positive terms, as low as all negative ones.
struct Reach {
  double high, low;
  __device__ void add(double value, double magnitude) {
    high = fmax(high, 0.5 * (magnitude + value));
    low = fmax(low, 0.5 * (magnitude - value));
  }
};

// What is not finite in the sums of sizes stands for inputs that are not: they are not judged here. A sum that is finite
// may be infinite on its way where its positive or negative terms alone are, and is NaN where both are.
__device__ bool is_right(const Task& t, double out, double value, double magnitude, const Reach& reach) {
  if (!is_finite(magnitude)) return true;
  const bool may_be_high = reach.high >= t.sum_overflow, may_be_low = reach.low >= t.sum_overflow;
  const double bound = t.bounds * (magnitude + t.underflow) * t.factor;
  if (is_finite(out) && t.activation != 0 && (may_be_high || may_be_low)) return true;
  if (is_finite(out)) return fabs(out - value) - t.out_unit * fmax(fabs(value), t.out_least) <= bound;
  if (out == out && out * value > 0.0 && fabs(value) + bound >= t.out_overflow) return true;
  if (out == out) return out > 0.0 ? may_be_high : may_be_low;
  return may_be_low && (may_be_high || t.activation >= 4);   // gelu and silu of minus infinity are NaN
}

extern "C" __global__ void judge_rows(const Task t, const unsigned slices) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int r = static_cast<int>(i / t.columns);
  if (i < ROWS * t.columns && r < t.rows) {
    const long long row = row_of(t, r), column = i % t.columns;
    double value = 0.0, magnitude = 0.0;
    for (unsigned s = 0; s < slices; ++s) {
      const Sums& one = t.sums[s * ROWS * t.columns + i];
      value += one.value;
      magnitude += one.magnitude;
    }
    if (REAL_BYTES < 8 && !is_finite(magnitude)) sum_again(t, row, column, value, magnitude);
    Reach reach{0.0, 0.0};
    reach.add(t.alpha < 0.0 ? -value : value, magnitude);   // before alpha, which some apply to the sum
    value *= t.alpha;
    magnitude *= fabs(t.alpha);
    if (t.reads_c) {
      const double before = Sum(t.kept[i]);
      value += t.beta * before;
      magnitude += fabs(t.beta * before);
    }
    if (t.bias) {
      const double added = Sum(t.bias[column]);
      value += added;
      magnitude += fabs(added);
    }
    reach.add(value, magnitude);
    if (is_finite(magnitude)) activate(t, value, magnitude);
    const double out = Sum(t.c[row * t.c_row + column * t.c_column]);
    if (!is_right(t, out, value, magnitude, reach) && atomicAdd(&t.counters->wrong, 1u) == 0) {
      t.verdict->row = static_cast<int>(row);
      t.verdict->column = static_cast<int>(column);
      t.verdict->got = out;
      t.verdict->expected = value;
    }
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(&t.counters->blocks, 1u) == gridDim.x - 1) {
    t.verdict->wrong = atomicExch(&t.counters->wrong, 0u);
    atomicExch(&t.counters->blocks, 0u);
    __threadfence_system();
    *static_cast<volatile int*>(&t.verdict->state) = 1;
  }
}
