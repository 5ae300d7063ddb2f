// y[r, k] = sum over j of x[r, j] exp(-2 pi i j k / n), for each row r.  x, y: (m, n, 2), complex numbers; n a power of two.
//
// Stockham's algorithm: a stage takes RADIX elements, n / RADIX apart, turns them, computes their Fourier transform in
// registers and puts it where the next stage finds it in order; between stages elements go through shared memory. Where
// RADIX to the power of whole stages is not n, the last one takes fewer elements at a time. A larger RADIX needs fewer
// stages and barriers, and more registers. PADDING moves what stages write RADIX or more apart to other banks.
// TABLE 1 reads the turns from memory, where the caches have them; with 0 each is computed.
//   block (n / RADIX, ROWS); grid (m / ROWS), rounded up
//   shared memory, dynamic: a row's real parts, then its imaginary parts, for each of ROWS
// Govindaraju et al., "High Performance Discrete Fourier Transforms on Graphics Processors" (SC 2008).
#include "common/real.cuh"
#ifndef SHAPE_M
#define SHAPE_M 65536   // rows
#define SHAPE_N 1024    // elements of a row, a power of two
#endif
#ifndef RADIX
#define RADIX 8
#endif
#ifndef ROWS
#define ROWS 1          // rows of a block
#endif
#ifndef PADDING
#define PADDING 1       // unused elements of shared memory after every 32
#endif
#ifndef TABLE
#define TABLE 0
#endif

constexpr unsigned M = SHAPE_M, N = SHAPE_N, THREADS = N / RADIX, PITCH = N + N / 32 * PADDING;

struct alignas(2 * REAL_BYTES) Complex {
  REAL re, im;
};
__device__ __forceinline__ Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
__device__ __forceinline__ Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
__device__ __forceinline__ Complex operator*(Complex a, Complex b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

// exp(-2 pi i k / SIZE) times `a`, for k below SIZE / 2 that the compiler knows.
template <unsigned SIZE>
__device__ __forceinline__ Complex turned(Complex a, unsigned k) {
  constexpr REAL COSINES[] = {1, 0.92387953251128675613, 0.70710678118654752440, 0.38268343236508977173};
  const unsigned eighth = k * (16 / SIZE);   // in sixteenths of a turn
  if (eighth == 0) return a;
  if (eighth == 4) return {a.im, -a.re};
  const REAL c = eighth < 4 ? COSINES[eighth] : -COSINES[8 - eighth];
  const REAL s = eighth < 4 ? COSINES[4 - eighth] : COSINES[eighth - 4];
  return a * Complex{c, -s};
}

// The Fourier transform of SIZE elements, 1 to 16, in place.
template <unsigned SIZE>
__device__ __forceinline__ void transform(Complex (&v)[SIZE]) {
  if constexpr (SIZE > 1) {
    Complex even[SIZE / 2], odd[SIZE / 2];
#pragma unroll
    for (unsigned k = 0; k < SIZE / 2; ++k) even[k] = v[2 * k], odd[k] = v[2 * k + 1];
    transform(even);
    transform(odd);
#pragma unroll
    for (unsigned k = 0; k < SIZE / 2; ++k) {
      const Complex other = turned<SIZE>(odd[k], k);
      v[k] = even[k] + other;
      v[k + SIZE / 2] = even[k] - other;
    }
  }
}

// exp(-2 pi i part / whole), where `whole` divides n.
__device__ __forceinline__ Complex root(const Complex* __restrict__ roots, unsigned part, unsigned whole) {
#if TABLE
  return roots[part * (N / whole)];
#else
  Complex result;
  sincospi(REAL(-2) * static_cast<REAL>(part) / static_cast<REAL>(whole), &result.im, &result.re);
  return result;
#endif
}

// One row's elements in shared memory.
struct Row {
  REAL *re, *im;
  static __device__ unsigned place(unsigned i) { return i + i / 32 * PADDING; }
  __device__ Complex get(unsigned i) const { return {re[place(i)], im[place(i)]}; }
  __device__ void put(unsigned i, Complex a) const { re[place(i)] = a.re, im[place(i)] = a.im; }
};

// One stage and those after it. DONE is the product of the radices before it; `get(i)` reads what the stage before left.
template <unsigned DONE, class Get>
__device__ __forceinline__ void stages(const Complex* __restrict__ roots, const Row& row, Complex* __restrict__ y, Get get) {
  constexpr unsigned SIZE = N / DONE < RADIX ? N / DONE : RADIX, GROUPS = RADIX / SIZE;   // elements of a transform; transforms
  Complex v[GROUPS][SIZE];
#pragma unroll
  for (unsigned group = 0; group < GROUPS; ++group) {
    const unsigned j = group * THREADS + threadIdx.x, turn = j % DONE;
#pragma unroll
    for (unsigned k = 0; k < SIZE; ++k) v[group][k] = get(j + k * (N / SIZE));
    if (DONE > 1) {
#pragma unroll
      for (unsigned k = 1; k < SIZE; ++k) v[group][k] = v[group][k] * root(roots, turn * k, DONE * SIZE);
    }
    transform(v[group]);
  }
  constexpr bool IS_LAST = DONE * SIZE == N;
  if (!IS_LAST && DONE > 1) __syncthreads();   // all have read what is there
#pragma unroll
  for (unsigned group = 0; group < GROUPS; ++group) {
    const unsigned j = group * THREADS + threadIdx.x, start = j / DONE * DONE * SIZE + j % DONE;
#pragma unroll
    for (unsigned k = 0; k < SIZE; ++k) {
      if (!IS_LAST) row.put(start + k * DONE, v[group][k]);
      else if (y) y[start + k * DONE] = v[group][k];
    }
  }
  if constexpr (!IS_LAST) {
    __syncthreads();
    stages<DONE * SIZE>(roots, row, y, [row](unsigned i) { return row.get(i); });
  }
}

extern "C" __global__ void __launch_bounds__(THREADS * ROWS)
fft(const Complex* __restrict__ x, const Complex* __restrict__ roots, Complex* __restrict__ y) {
  extern __shared__ __align__(16) REAL parts[];
  const unsigned number = blockIdx.x * ROWS + threadIdx.y;
  const Row row = {parts + threadIdx.y * 2 * PITCH, parts + (threadIdx.y * 2 + 1) * PITCH};
  // A row past the end computes the last one again and writes nothing: it waits with the others.
  const Complex* const from = x + static_cast<size_t>(number < M ? number : M - 1) * N;
  Complex* const to = number < M ? y + static_cast<size_t>(number) * N : nullptr;
  stages<1>(roots, row, to, [from](unsigned i) { return from[i]; });
}
