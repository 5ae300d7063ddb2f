// The low parts (and BF16) of the operand that tensor cores read from shared memory, written beside it. Eight threads
// share a line of k, a chunk each. BF16 lie as k = 0 4 1 5 2 6 3 7 of each eight, which is how warps hold the other
// operand's fragments; two neighbouring threads exchange halves for it, and one writes what the other does not.
#pragma once
#include "ptx/convert.cuh"
#include "ptx/shared_memory.cuh"
#include "wgmma/split_tf32.cuh"
#include "wgmma/stage.cuh"

struct Converter {
  static constexpr unsigned LINES = LOADERS / 8, ROUNDS = TILE_S / LINES;
  // Loads under way at a time: fewer where each takes more registers afterwards.
  static constexpr unsigned BATCH = ROUNDS % 4 == 0 && SMALL_BF16 == 0 ? 4 : ROUNDS % 2 == 0 ? 2 : 1;
  unsigned raw, coarse;   // where the thread's first chunk is, and where its first chunk of BF16 goes
  bool is_odd;

  __device__ __forceinline__ explicit Converter(unsigned thread) {
    const unsigned line = thread / 8, chunk = thread % 8;
    is_odd = chunk % 2;
    raw = line * 128 + ((chunk ^ line % 8) * 16);
    coarse = SMALL_BF16 == 2 ? LOW_AT + line * 128 + (((chunk / 2 + (is_odd ? 0 : 4)) ^ line % 8) * 16)
                             : COARSE_AT + line * 64 + ((chunk / 2 ^ line / 2 % 4) * 16) + is_odd * (LINES * 64);
  }

  // The even thread writes `even`, four of its own and four of its neighbour's, the odd one `odd`.
  __device__ __forceinline__ void store_interleaved(
      unsigned address, const unsigned (&even)[2], const unsigned (&odd)[2]) const {
    const unsigned r0 = __shfl_xor_sync(0xffffffffu, is_odd ? even[0] : odd[0], 1);
    const unsigned r1 = __shfl_xor_sync(0xffffffffu, is_odd ? even[1] : odd[1], 1);
    const unsigned low0 = is_odd ? r0 : even[0], low1 = is_odd ? r1 : even[1];
    const unsigned high0 = is_odd ? odd[0] : r0, high1 = is_odd ? odd[1] : r1;
    st_shared_v4(address, __byte_perm(low0, high0, 0x5410), __byte_perm(low0, high0, 0x7632),
                __byte_perm(low1, high1, 0x5410), __byte_perm(low1, high1, 0x7632));
  }

  // A second pass is rare, so little code matters more.
  template <class Pass>
  __device__ __forceinline__ void convert(Pass& pass, unsigned stage) const {
    constexpr int TURNS = Pass::IS_FIRST ? ROUNDS / BATCH : 1;
#pragma unroll TURNS
    for (unsigned first = 0; first < ROUNDS; first += BATCH) {
      float4 x[BATCH];
#pragma unroll
      for (unsigned i = 0; i < BATCH; ++i) x[i] = ld_shared_v4(stage + raw + (first + i) * (LINES * 128));
      unsigned whole[BATCH][2];
#pragma unroll
      for (unsigned i = 0; i < BATCH; ++i) {
        const unsigned at = stage + raw + (first + i) * (LINES * 128);
        const TwoParts parts[4] = {split_shared(pass, x[i].x), split_shared(pass, x[i].y), split_shared(pass, x[i].z),
                                   split_shared(pass, x[i].w)};
        if constexpr (!RAW_IS_HIGH || !Pass::IS_FIRST) {
          st_shared_v4(at, __float_as_uint(parts[0].high), __float_as_uint(parts[1].high), __float_as_uint(parts[2].high),
                       __float_as_uint(parts[3].high));
        }
        if constexpr (SMALL_BF16 != 2) {
          st_shared_v4(at + LOW_AT, __float_as_uint(parts[0].low), __float_as_uint(parts[1].low),
                       __float_as_uint(parts[2].low), __float_as_uint(parts[3].low));
        }
        if constexpr (SMALL_BF16 != 0) {
          whole[i][0] = cvt_rn_bf16x2(parts[0].whole, parts[1].whole);
          whole[i][1] = cvt_rn_bf16x2(parts[2].whole, parts[3].whole);
        }
        if constexpr (SMALL_BF16 == 2) {
          const unsigned low[2] = {cvt_rn_bf16x2(parts[0].low, parts[1].low), cvt_rn_bf16x2(parts[2].low, parts[3].low)};
          store_interleaved(stage + coarse + (first + i) * (LINES * 128), low, whole[i]);
        }
      }
      if constexpr (SMALL_BF16 == 1) {
#pragma unroll
        for (unsigned i = 0; i < BATCH; i += 2) {   // even threads write the line of i, odd ones that of i + 1
          store_interleaved(stage + coarse + (first + i) * (LINES * 64), whole[i], whole[i + 1]);
        }
      }
    }
  }
};
