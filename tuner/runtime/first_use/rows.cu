// Some rows of a product beside those that a configuration computed: sums of products and of their sizes by plain
// arithmetic, then each component against verification's bound. Nothing here is shared with the kernels that are tuned.
// `keep_rows` runs before a launch that reads C, `check_rows` behind it on the same stream: a block sums a tile of columns
// over a slice of the terms, the last block of a tile judges it, and the last of all tiles writes the verdict, a word of
// the host's memory.
#include "common/real.cuh"

constexpr int ROWS = 16;                                  // judged, from the first to the last of the matrix
constexpr int COLUMNS = REAL_BYTES == 2 ? 64 : 32;        // of a block: a row of them is a whole line of the cache
constexpr int STEP = REAL_BYTES == 8 ? 32 : 64;           // terms of a step
constexpr int STAGES = REAL_BYTES == 2 ? 4 : 3;           // steps in shared memory
constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int OF_COLUMNS = COLUMNS / 32, OF_TERMS = WARPS / OF_COLUMNS;   // warps beside each other
constexpr int VECTOR = 16 / REAL_BYTES;                   // elements of one copy
constexpr int PITCH_TERMS = STEP + VECTOR, PITCH_COLUMNS = COLUMNS + VECTOR;   // no bank is read twice at once
constexpr int SIZE_A = ROWS * PITCH_TERMS;
constexpr int SIZE_B = COLUMNS * PITCH_TERMS > STEP * PITCH_COLUMNS ? COLUMNS * PITCH_TERMS : STEP * PITCH_COLUMNS;

#if REAL_BYTES == 8
typedef double Acc;
#else
typedef float Acc;
#endif

#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 800
#define COPIES_AHEAD 1   // cp.async
#if REAL_BYTES == 2
#define BY_TENSOR_CORES 1   // products of half types are exact there, and sums are float32
#endif
#endif
#endif

#ifdef COPIES_AHEAD
constexpr int RESIDENT = REAL_BYTES == 8 ? 1 : 2;   // blocks of a multiprocessor that its registers hold without spills
#else
constexpr int RESIDENT = 1;
#endif

struct Sums { Acc value, magnitude; };

struct Counters { unsigned wrong, tiles; };   // zero before and after

// state: 0 while nobody knows, then 1.
struct alignas(8) Verdict { int state; unsigned wrong; int row, column; double got, expected; };

struct Task {
  const REAL* a; const REAL* b; const Out* c; const REAL* bias;
  long long a_row, a_term, b_term, b_column, c_row, c_column;   // elements from one to the next
  long long rows, columns, terms, slice;                        // slice: terms of one block, whole steps
  double alpha, beta, factor, root, unit, least, bounds, underflow;
  double out_unit, out_least, out_overflow;                     // what storing a sum costs
  double sum_overflow;                                          // from where on a sum on its way may be infinite
  long long activation, reads_c;
  Out* kept; Sums* sums; Counters* counters; unsigned* slices_done; Verdict* verdict;
};

__device__ __forceinline__ long long row_of(const Task& t, int i) {
  return t.rows > ROWS ? i * (t.rows - 1) / (ROWS - 1) : (i < t.rows ? i : t.rows - 1);
}

extern "C" __global__ void keep_rows(const Task t) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < ROWS * t.columns) t.kept[i] = t.c[row_of(t, static_cast<int>(i / t.columns)) * t.c_row + i % t.columns * t.c_column];
}

// Copies to shared memory that are under way while earlier steps are multiplied, where the device has them.
__device__ __forceinline__ void copy_vector(REAL* to, const REAL* from) {
#ifdef COPIES_AHEAD
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from));
#else
  store_pack<VECTOR>(to, load_pack<VECTOR>(from));
#endif
}

__device__ __forceinline__ void copy_one(REAL* to, const REAL* from) {
#if defined(COPIES_AHEAD) && REAL_BYTES > 2
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from),
               "n"(REAL_BYTES));
#else
  *to = *from;
#endif
}

__device__ __forceinline__ void end_of_step() {
#ifdef COPIES_AHEAD
  asm volatile("cp.async.commit_group;");
#endif
}

__device__ __forceinline__ void wait_for_step() {   // for the one that began STAGES - 1 steps ago
#ifdef COPIES_AHEAD
  asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
#endif
}

// A block's part of the product. `along_terms`: neighbours in B are terms, not columns.
struct Part {
  long long begin, end, column0;
  bool a_is_aligned, b_is_aligned;
};

__device__ __forceinline__ Part part_of(const Task& t, bool along_terms) {
  Part part;
  part.begin = blockIdx.y * t.slice;
  part.end = part.begin + t.slice < t.terms ? part.begin + t.slice : t.terms;
  part.column0 = static_cast<long long>(blockIdx.x) * COLUMNS;
  const long long apart = along_terms ? t.b_column : t.b_term;
  part.b_is_aligned = (along_terms || t.b_column == 1) && apart % VECTOR == 0 && reinterpret_cast<unsigned long long>(t.b) % 16 == 0;
  part.a_is_aligned = t.a_term == 1 && t.a_row % VECTOR == 0 && reinterpret_cast<unsigned long long>(t.a) % 16 == 0;
  return part;
}

template <bool ALONG_TERMS>
__device__ __forceinline__ void copy_step(const Task& t, const Part& part, long long first, REAL* a, REAL* b) {
  const REAL zero = REAL(0.0f);
#pragma unroll
  for (int i = 0; i < COLUMNS * STEP / VECTOR / THREADS; ++i) {
    const int e = threadIdx.x + THREADS * i;
    const int term = ALONG_TERMS ? e % (STEP / VECTOR) * VECTOR : e / (COLUMNS / VECTOR);
    const int column = ALONG_TERMS ? e / (STEP / VECTOR) : e % (COLUMNS / VECTOR) * VECTOR;
    const long long k = first + term, j = part.column0 + column;
    const REAL* from = t.b + k * t.b_term + j * t.b_column;
    REAL* to = b + (ALONG_TERMS ? column * PITCH_TERMS + term : term * PITCH_COLUMNS + column);
    const bool is_whole = ALONG_TERMS ? k + VECTOR <= part.end && j < t.columns : k < part.end && j + VECTOR <= t.columns;
    if (is_whole && part.b_is_aligned) {
      copy_vector(to, from);
      continue;
    }
    for (int n = 0; n < VECTOR; ++n) {
      const bool is_inside = (ALONG_TERMS ? k + n : k) < part.end && (ALONG_TERMS ? j : j + n) < t.columns;
      if (is_inside) copy_one(to + n, from + n * (ALONG_TERMS ? t.b_term : t.b_column));
      else to[n] = zero;
    }
  }
  if (part.a_is_aligned && first + STEP <= part.end) {
    for (int e = threadIdx.x; e < ROWS * STEP / VECTOR; e += THREADS) {
      const int row = e / (STEP / VECTOR), term = e % (STEP / VECTOR) * VECTOR;
      copy_vector(a + row * PITCH_TERMS + term, t.a + row_of(t, row) * t.a_row + first + term);
    }
    return;
  }
  for (int e = threadIdx.x; e < ROWS * STEP; e += THREADS) {
    const int row = e / STEP, term = e % STEP;
    REAL* to = a + row * PITCH_TERMS + term;
    if (first + term < part.end) copy_one(to, t.a + row_of(t, row) * t.a_row + (first + term) * t.a_term);
    else *to = zero;
  }
}

// A thread's share of the sums: of each, where it stands among ROWS x COLUMNS.
constexpr int SHARE = 16;
struct Share { Acc value[SHARE], magnitude[SHARE]; };

#ifdef BY_TENSOR_CORES
__device__ __forceinline__ void multiply(float* c, const unsigned* a, unsigned b0, unsigned b1) {
#ifdef REAL_IS_BFLOAT16
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <bool ALONG_TERMS>
__device__ __forceinline__ int place_of(int i) {
  const int lane = threadIdx.x % 32, tile = i / 4, e = i % 4;
  return (lane / 4 + e / 2 * 8) * COLUMNS + threadIdx.x / 32 % OF_COLUMNS * 32 + tile * 8 + lane % 4 * 2 + e % 2;
}

template <bool ALONG_TERMS>
__device__ __forceinline__ void add_step(Share& share, const REAL* of_rows, const REAL* of_columns, int) {
  const unsigned short* a = reinterpret_cast<const unsigned short*>(of_rows);
  const unsigned short* b = reinterpret_cast<const unsigned short*>(of_columns);
  const int lane = threadIdx.x % 32, g = lane / 4, pair = lane % 4 * 2, column0 = threadIdx.x / 32 % OF_COLUMNS * 32;
#pragma unroll
  for (int k = threadIdx.x / 32 / OF_COLUMNS * 16; k < STEP; k += OF_TERMS * 16) {
    unsigned of_a[4], size_a[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      of_a[e] = *reinterpret_cast<const unsigned*>(a + (g + e % 2 * 8) * PITCH_TERMS + k + pair + e / 2 * 8);
      size_a[e] = of_a[e] & 0x7fff7fffu;
    }
#pragma unroll
    for (int tile = 0; tile < SHARE / 4; ++tile) {
      unsigned of_b[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int term = k + pair + e * 8, column = column0 + tile * 8 + g;
        of_b[e] = ALONG_TERMS ? *reinterpret_cast<const unsigned*>(b + column * PITCH_TERMS + term)
                              : b[term * PITCH_COLUMNS + column] | unsigned(b[(term + 1) * PITCH_COLUMNS + column]) << 16;
      }
      multiply(share.value + 4 * tile, of_a, of_b[0], of_b[1]);
      multiply(share.magnitude + 4 * tile, size_a, of_b[0] & 0x7fff7fffu, of_b[1] & 0x7fff7fffu);
    }
  }
}
#else
template <bool ALONG_TERMS>
__device__ __forceinline__ int place_of(int i) {
  const int lane = threadIdx.x % 32, column0 = threadIdx.x / 32 % OF_COLUMNS * 32;
  return (lane / 8 + i / 4 * 4) * COLUMNS + column0 + (ALONG_TERMS ? lane % 8 + i % 4 * 8 : lane % 8 * 4 + i % 4);
}

__device__ __forceinline__ Acc size_of(Acc x) { return x < Acc(0) ? -x : x; }

// Four terms at a time. `each`: rows of a thread that there are.
template <bool ALONG_TERMS>
__device__ __forceinline__ void add_step(Share& share, const REAL* a, const REAL* b, int each) {
  constexpr int TERMS = STEP / OF_TERMS;   // of a warp
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column0 = warp % OF_COLUMNS * 32;
#pragma unroll 1
  for (int k = warp / OF_COLUMNS * TERMS; k < (warp / OF_COLUMNS + 1) * TERMS; k += 4) {
    Pack<4> of_b[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      of_b[j] = load_pack<4>(ALONG_TERMS ? b + (column0 + lane % 8 + 8 * j) * PITCH_TERMS + k
                                         : b + (k + j) * PITCH_COLUMNS + column0 + lane % 8 * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= each) break;
      const Pack<4> of_a = load_pack<4>(a + (lane / 8 + 4 * i) * PITCH_TERMS + k);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const Acc x = Acc(Sum(of_a.lane[e])), size_x = size_of(x);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const Acc y = Acc(Sum(ALONG_TERMS ? of_b[j].lane[e] : of_b[e].lane[j]));
          share.value[4 * i + j] += x * y;
          share.magnitude[4 * i + j] += size_x * size_of(y);
        }
      }
    }
  }
}
#endif

constexpr int OF_THREAD = ROWS * COLUMNS / THREADS;   // components that a thread adds up and judges

// What the warps that share columns have, added up: component threadIdx.x + THREADS * i of the tile in `sum[i]`.
template <bool ALONG_TERMS>
__device__ __forceinline__ void add_up(const Acc* share, Acc* shared, Acc* sum) {
  Acc* own = shared + threadIdx.x / 32 / OF_COLUMNS * ROWS * COLUMNS;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < SHARE; ++i) own[place_of<ALONG_TERMS>(i)] = share[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < OF_THREAD; ++i) {
    sum[i] = Acc(0);
#pragma unroll
    for (int part = 0; part < OF_TERMS; ++part) sum[i] += shared[part * ROWS * COLUMNS + threadIdx.x + THREADS * i];
  }
}

constexpr int STAGE = SIZE_A + SIZE_B, HELD = STAGES * STAGE * REAL_BYTES / 16;
static_assert(HELD * 16 >= OF_TERMS * ROWS * COLUMNS * static_cast<int>(sizeof(Acc)), "sums have room where the steps were");

template <bool ALONG_TERMS>
__device__ __forceinline__ void sum_slice(const Task& t, REAL* held) {
  const Part part = part_of(t, ALONG_TERMS);
  const int each = static_cast<int>(((t.rows < ROWS ? t.rows : ROWS) + 3) / 4);
  const int steps = static_cast<int>((part.end - part.begin + STEP - 1) / STEP);
  Share share;
#pragma unroll
  for (int i = 0; i < SHARE; ++i) share.value[i] = share.magnitude[i] = Acc(0);
  for (int s = 0; s < STAGES - 1; ++s) {
    REAL* stage = held + s * STAGE;
    if (s < steps) copy_step<ALONG_TERMS>(t, part, part.begin + s * STEP, stage, stage + SIZE_A);
    end_of_step();
  }
  for (int s = 0; s < steps; ++s) {
    wait_for_step();
    __syncthreads();
    const int ahead = s + STAGES - 1;
    REAL* next = held + ahead % STAGES * STAGE;
    if (ahead < steps) copy_step<ALONG_TERMS>(t, part, part.begin + static_cast<long long>(ahead) * STEP, next, next + SIZE_A);
    end_of_step();
    const REAL* stage = held + s % STAGES * STAGE;
    add_step<ALONG_TERMS>(share, stage, stage + SIZE_A, each);
  }
  Sums sums[OF_THREAD];
  Acc sum[OF_THREAD];
  add_up<ALONG_TERMS>(share.value, reinterpret_cast<Acc*>(held), sum);
  for (int i = 0; i < OF_THREAD; ++i) sums[i].value = sum[i];
  add_up<ALONG_TERMS>(share.magnitude, reinterpret_cast<Acc*>(held), sum);
  for (int i = 0; i < OF_THREAD; ++i) sums[i].magnitude = sum[i];
  for (int i = 0; i < OF_THREAD; ++i) {
    const int e = threadIdx.x + THREADS * i;
    const long long column = part.column0 + e % COLUMNS;
    if (column < t.columns) t.sums[(blockIdx.y * ROWS + e / COLUMNS) * t.columns + column] = sums[i];
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

// One component, by its sums and what the launch wrote.
__device__ void judge(const Task& t, int r, long long column, double value, double magnitude, double out) {
  const long long row = row_of(t, r);
  if (REAL_BYTES < 8 && !is_finite(magnitude)) sum_again(t, row, column, value, magnitude);
  Reach reach{0.0, 0.0};
  reach.add(t.alpha < 0.0 ? -value : value, magnitude);   // before alpha, which some apply to the sum
  value *= t.alpha;
  magnitude *= fabs(t.alpha);
  if (t.reads_c) {
    const double before = Sum(t.kept[r * t.columns + column]);
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
  if (!is_right(t, out, value, magnitude, reach) && atomicAdd(&t.counters->wrong, 1u) == 0) {
    t.verdict->row = static_cast<int>(row);
    t.verdict->column = static_cast<int>(column);
    t.verdict->got = out;
    t.verdict->expected = value;
    __threadfence_system();
  }
}

// A thread has what it needs of all its components loaded, at once, before it judges one.
struct Judged { double value[ROWS * COLUMNS], magnitude[ROWS * COLUMNS], out[ROWS * COLUMNS]; };

static_assert(HELD * 16 >= static_cast<int>(sizeof(Judged)), "components have room where the steps were");

__device__ __forceinline__ void judge_tile(const Task& t, Judged& tile, long long column0, int slices) {
  double value[OF_THREAD], magnitude[OF_THREAD];
  long long place[OF_THREAD];   // -1 beyond the edges
#pragma unroll
  for (int i = 0; i < OF_THREAD; ++i) {
    const int e = threadIdx.x + THREADS * i, r = e / COLUMNS;
    const long long column = column0 + e % COLUMNS;
    value[i] = magnitude[i] = 0.0;
    place[i] = column < t.columns && r < t.rows ? r * t.columns + column : -1;
    if (place[i] >= 0) tile.out[e] = Sum(t.c[row_of(t, r) * t.c_row + column * t.c_column]);
  }
#pragma unroll 2
  for (int s = 0; s < slices; ++s) {
#pragma unroll
    for (int i = 0; i < OF_THREAD; ++i) {
      if (place[i] < 0) continue;
      const volatile Sums& one = t.sums[s * ROWS * t.columns + place[i]];   // not from L1: neighbouring tiles share its lines
      value[i] += one.value;
      magnitude[i] += one.magnitude;
    }
  }
#pragma unroll
  for (int i = 0; i < OF_THREAD; ++i) {
    tile.value[threadIdx.x + THREADS * i] = value[i];
    tile.magnitude[threadIdx.x + THREADS * i] = magnitude[i];
  }
#pragma unroll 1
  for (int e = threadIdx.x; e < ROWS * COLUMNS; e += THREADS) {
    const long long column = column0 + e % COLUMNS;
    if (column < t.columns && e / COLUMNS < t.rows)
      judge(t, e / COLUMNS, column, tile.value[e], tile.magnitude[e], tile.out[e]);
  }
}

// Grid: tiles of columns, and slices of the sum.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) check_rows(const Task t) {
  alignas(16) __shared__ uint4 held[HELD];
  __shared__ bool is_last;
  REAL* steps = reinterpret_cast<REAL*>(held);
  if (t.b_term == 1) sum_slice<true>(t, steps);
  else sum_slice<false>(t, steps);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(&t.slices_done[blockIdx.x], 1u) == gridDim.y - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  Judged& tile = *reinterpret_cast<Judged*>(held);
  judge_tile(t, tile, static_cast<long long>(blockIdx.x) * COLUMNS, static_cast<int>(gridDim.y));
  __syncthreads();
  if (threadIdx.x != 0) return;
  t.slices_done[blockIdx.x] = 0;
  __threadfence();
  if (atomicAdd(&t.counters->tiles, 1u) == gridDim.x - 1) {
    const unsigned long long wrong = atomicExch(&t.counters->wrong, 0u);
    atomicExch(&t.counters->tiles, 0u);
    *reinterpret_cast<volatile unsigned long long*>(t.verdict) = wrong << 32 | 1u;   // `state` and `wrong` in one store
  }
}
