// The converter (convert.cuh) of an operand that was loaded in the order of memory: it moves the high parts to where
// the tensor cores read them, with the low parts, number by number. A warp reads and writes 32 k of a line; or, of an
// operand that is not contiguous along k, 4 k of 8 lines. Both ways, both sides are nearly free of bank conflicts.
#pragma once
#include "wgmma/convert.cuh"

template <class Operand>
struct StagedConverter {
  static constexpr bool ALONG_K = Operand::K_MAJOR;
  static constexpr unsigned BATCH = 4;   // loads under way at a time
  unsigned from, to, coarse;   // where its first number is, and where its parts and its BF16 go

  __device__ __forceinline__ explicit StagedConverter(unsigned thread) {
    const unsigned warp = thread / 32, lane = thread % 32;
    const unsigned line = ALONG_K ? warp : lane % 8, k = ALONG_K ? lane : warp * 4 + lane / 8;
    if constexpr (ALONG_K) from = (Operand::line_start(line) + Operand::shift(line) + k) * 4;
    else from = (k * Operand::PITCH + line + Operand::shift(k)) * 4;
    from += STAGED_AT;
    to = line * 128 + ((k / 4 ^ line % 8) * 16) + k % 4 * 4;
    const unsigned place = k % 4 * 4 + k / 4 % 2 * 2;   // of its BF16 among eight: k = 0 4 1 5 2 6 3 7
    coarse = SMALL_BF16 == 2 ? LOW_AT + line * 128 + ((k / 8 ^ line % 8) * 16) + place
                             : COARSE_AT + line * 64 + ((k / 8 ^ line / 2 % 4) * 16) + place;
  }

  // The thread's numbers lie 4 lines apart, or by turns 16 k and 8 lines: how far that is from the first.
  __device__ static constexpr unsigned behind(unsigned i) {
    if (ALONG_K) return (i / 4 * (16 * Operand::PITCH + 4) + i % 4 * 4 * Operand::PITCH + i % 4 / 2 * 4) * 4;
    return (i % 2 * 16 * Operand::PITCH + i / 2 * 8) * 4;
  }
  __device__ static constexpr unsigned lines(unsigned i) { return ALONG_K ? i * 4 : i / 2 * 8; }

  template <unsigned I, class Pass>
  __device__ __forceinline__ void put(Pass& pass, unsigned stage, float x) const {
    constexpr unsigned LINES = lines(I);
    const unsigned at = stage + (to ^ I % 2 * 64);
    const TwoParts parts = split_shared(pass, x);
    st_shared<LINES * 128>(at, parts.high);
    if constexpr (SMALL_BF16 == 2) {
      const unsigned coarse_at = coarse ^ I % 2 * (ALONG_K ? 64 : 32);
      st_shared_b16<LINES * 128>(stage + coarse_at, cvt_rn_bf16(parts.whole));
      st_shared_b16<LINES * 128>(stage + (coarse_at ^ 64), cvt_rn_bf16(parts.low));   // four chunks further on
    } else {
      st_shared<LOW_AT + LINES * 128>(at, parts.low);
      if constexpr (SMALL_BF16 == 1) st_shared_b16<LINES * 64>(stage + (coarse ^ I % 2 * 32), cvt_rn_bf16(parts.whole));
    }
  }

  // COUNT numbers from the I-th on, by halves until BATCH are left: distances must be constants.
  template <unsigned I, unsigned COUNT, class Pass>
  __device__ __forceinline__ void convert_some(Pass& pass, unsigned stage) const {
    if constexpr (COUNT > BATCH) {
      convert_some<I, COUNT / 2>(pass, stage);
      convert_some<I + COUNT / 2, COUNT / 2>(pass, stage);
    } else {
      float x[4];
      ld_shared<behind(I)>(x[0], stage + from);
      ld_shared<behind(I + 1)>(x[1], stage + from);
      ld_shared<behind(I + 2)>(x[2], stage + from);
      ld_shared<behind(I + 3)>(x[3], stage + from);
      put<I>(pass, stage, x[0]);
      put<I + 1>(pass, stage, x[1]);
      put<I + 2>(pass, stage, x[2]);
      put<I + 3>(pass, stage, x[3]);
    }
  }
  template <class Pass>
  __device__ __forceinline__ void convert(Pass& pass, unsigned stage) const {
    convert_some<0, TILE_S * STEP_K / LOADERS>(pass, stage);
  }
};
typedef Conditional<STAGED, StagedConverter<SharedOperand>, Converter>::Type UsedConverter;
