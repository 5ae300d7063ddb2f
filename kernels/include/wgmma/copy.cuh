// How an operand is loaded whose rows in memory are multiples of 16 bytes, or else by smaller copies: its tiles of
// STEP_K k, copied into the ring by the 128 threads of a warpgroup, in the widest copies that rows in memory divide
// into (4, 8 or 16 bytes). What lies outside the matrix is copied as zero.
//   lines of k in shared memory (K_MAJOR): 128 bytes each, 16-byte chunks swizzled, as the tensor cores read them
//     (chunk ^ line % 8) or, PAIRED, as warps read two neighbouring lines at a time (chunk ^ line / 2 % 8)
//   else one line for each k, PITCH elements apart, which spreads a warp's 8-byte reads over all banks
// An operand that is contiguous along k in memory becomes lines of k. One that is not becomes either; for lines of k it
// is transposed on the way by element-wide copies, 8 along the line and 4 along k in a warp: free of bank conflicts,
// and 32 bytes of memory are read together.
#pragma once
#include "ptx/cp_async.cuh"
#include "wgmma/parameters.cuh"

// Elements that the starts of all rows of all matrices are multiples of, up to 16 bytes.
template <unsigned LEADING, size_t STRIDE>
__device__ constexpr unsigned copied_together() {
  return tw::gcd(LEADING, tw::gcd(unsigned{STRIDE % 4}, 4u));
}

constexpr long long FARTHEST = 1 << 23;   // bytes, of an instruction's distance

template <unsigned TILE, unsigned EXTENT, unsigned LEADING, size_t STRIDE, bool ALONG_K, bool LINES_OF_K, bool PAIRED>
struct AlignedOperand {
  static constexpr bool K_MAJOR = LINES_OF_K, SHIFTED = false, SHIFTS_ARE_EVEN = true;
  static_assert(K_MAJOR || !ALONG_K, "lines of k stay lines of k");
  static constexpr bool TRANSPOSED = ALONG_K != K_MAJOR;
  static constexpr unsigned WIDTH = TRANSPOSED ? 1 : tw::gcd(copied_together<LEADING, STRIDE>(), ALONG_K ? K : EXTENT);
  static constexpr unsigned PITCH = TILE + 8;
  static constexpr unsigned BYTES = K_MAJOR ? TILE * STEP_K * 4 : STEP_K * PITCH * 4;
  static constexpr unsigned COPIES = TILE * STEP_K / WIDTH / LOADERS;
  // Lines of k, or of one k, that the threads cover at a time, and how many threads share one.
  static constexpr unsigned VECTORS = (K_MAJOR ? STEP_K : TILE) / WIDTH;
  static constexpr unsigned SHARERS = VECTORS < LOADERS ? VECTORS : LOADERS;
  static constexpr unsigned LINES = LOADERS / SHARERS;

  const float* source;     // the thread's first element of the next tile
  unsigned target;         // its place in a buffer
  unsigned x, k;           // its index along the tile's side and along k, within the tile
  unsigned x0, k0;         // where the next tile starts

  __device__ __forceinline__ static unsigned shift(unsigned) { return 0; }   // shifted_copy.cuh has others
  __device__ __forceinline__ static unsigned swizzle(unsigned line) { return (PAIRED ? line / 2 : line) % 8 * 16; }

  __device__ __forceinline__ explicit AlignedOperand(unsigned thread) {
    if constexpr (TRANSPOSED) {
      x = thread % 8;
      k = thread / 32 * 4 + thread % 32 / 8;
    } else if constexpr (K_MAJOR) {
      x = thread / SHARERS;
      k = thread % SHARERS * WIDTH;
    } else {
      x = thread % SHARERS * WIDTH;
      k = thread / SHARERS;
    }
    target = K_MAJOR ? x * (STEP_K * 4) + ((k / 4 * 16) ^ swizzle(x)) + k % 4 * 4 : (k * PITCH + x) * 4;
  }

  __device__ __forceinline__ void start(const float* matrix, unsigned first_x, unsigned first_k) {
    x0 = first_x;
    k0 = first_k;
    const size_t line = x0 + x, depth = k0 + k;
    source = matrix + (ALONG_K ? line * LEADING + depth : depth * LEADING + line);
  }

  // How far the thread's I-th copy is from its first along each axis.
  __device__ static constexpr unsigned x_step(unsigned i) {
    return TRANSPOSED ? i / 2 * 8 : K_MAJOR ? i * LINES : i % (VECTORS / SHARERS) * (SHARERS * WIDTH);
  }
  __device__ static constexpr unsigned k_step(unsigned i) {
    return TRANSPOSED ? i % 2 * 16 : K_MAJOR ? 0 : i / (VECTORS / SHARERS) * LINES;
  }

  // Steps along both axes are multiples of what the thread's own place is below, so that swizzles combine by xor.
  __device__ __forceinline__ unsigned swizzled(unsigned along_x, unsigned along_k) const {
    return K_MAJOR ? target ^ swizzle(along_x) ^ along_k / 4 * 16 : target;
  }
  __device__ static constexpr unsigned into(unsigned along_x, unsigned along_k) {
    return K_MAJOR ? along_x * (STEP_K * 4) : (along_k * PITCH + along_x) * 4;
  }
  __device__ static constexpr long long from(unsigned along_x, unsigned along_k) {   // in bytes
    return 4 * (ALONG_K ? static_cast<long long>(along_x) * LEADING + along_k
                        : static_cast<long long>(along_k) * LEADING + along_x);
  }

  // A tile that lies inside: distances are inside the instructions, as far as they go, and so must be constants. COUNT
  // copies from the I-th on, by halves, because compilers limit how deep templates may nest.
  template <unsigned I, unsigned COUNT>
  __device__ __forceinline__ void copy_inside(unsigned buffer) const {
    if constexpr (COUNT > 1) {
      copy_inside<I, COUNT / 2>(buffer);
      copy_inside<I + COUNT / 2, COUNT - COUNT / 2>(buffer);
    } else {
      constexpr unsigned ALONG_X = x_step(I), ALONG = k_step(I);
      constexpr long long FROM = from(ALONG_X, ALONG), NEAR = FROM < FARTHEST ? FROM : 0;
      const char* const origin = reinterpret_cast<const char*>(source) + (FROM - NEAR);
      cp_async<4 * WIDTH, into(ALONG_X, ALONG), NEAR>(buffer + swizzled(ALONG_X, ALONG), origin);
    }
  }

  // A tile at an edge: rare, so few registers matter more.
  __device__ __forceinline__ void copy_edge(unsigned buffer) const {
#pragma unroll 4
    for (unsigned i = 0; i < COPIES; ++i) {
      const unsigned along_x = x_step(i), along_k = k_step(i);
      const char* const origin = reinterpret_cast<const char*>(source) + from(along_x, along_k);
      cp_async_zfill<4 * WIDTH, 0>(buffer + swizzled(along_x, along_k) + into(along_x, along_k), origin,
                                       x0 + x + along_x < EXTENT && k0 + k + along_k < K);
    }
  }

  // Starts the copies of a tile and goes on to the next along k. A last step may lie beyond k as a whole.
  __device__ __forceinline__ void copy(unsigned buffer) {
    constexpr bool K_DIVIDES = K % (STEP_K * STEPS_AT_ONCE) == 0;
    if ((EXTENT % (TILE * CLUSTER) == 0 || x0 + TILE <= EXTENT) && (K_DIVIDES || k0 + STEP_K <= K)) {
      copy_inside<0, COPIES>(buffer);
    } else {
      copy_edge(buffer);
    }
    source += ALONG_K ? STEP_K : static_cast<size_t>(STEP_K) * LEADING;
    k0 += STEP_K;
  }
};
