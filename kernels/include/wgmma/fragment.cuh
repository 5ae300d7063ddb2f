// The operand that goes through registers: how a warpgroup reads its numbers, splits them and multiplies them.
//
// A thread reads them as wgmma has them: of each eight k the lines 2 g and 2 g + 1 of its warp's sixteen at k = t, then
// at k = t + 4, where t = lane % 4 and g = lane / 4. (PTX ISA, "Register Fragments for wgmma", has lines g and g + 8:
// which lines of the operand these are is free.)
#pragma once
#include "ptx/convert.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "wgmma/split_tf32.cuh"
#include "wgmma/stage.cuh"

constexpr unsigned STEPS_TF32 = STEP_K / 8, STEPS_BF16 = STEP_K / 16;   // products of a step along k

template <class Operand, bool K_MAJOR = Operand::K_MAJOR, bool SHIFTED = Operand::SHIFTED>
struct FragmentReader;

// Lines of one k: the two lines are neighbours.
template <class Operand, bool SHIFTED>
struct FragmentReader<Operand, false, SHIFTED> {
  unsigned source;
  __device__ __forceinline__ FragmentReader(unsigned first_line, unsigned lane) {
    const unsigned shift = Operand::shift(lane % 4);
    source = (lane % 4 * Operand::PITCH + first_line + lane / 4 * 2 + shift) * 4;
  }
  __device__ __forceinline__ void read(float (&x)[STEP_K / 8][4], unsigned buffer, unsigned block) const {
#pragma unroll
    for (unsigned step = 0; step < STEP_K / 8; ++step) {
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        const unsigned at = buffer + source + (block * 64 + (step * 8 + half * 4) * Operand::PITCH) * 4;
        if constexpr (Operand::SHIFTS_ARE_EVEN) {
          ld_shared_v2(x[step][2 * half], x[step][2 * half + 1], at);
        } else {
          ld_shared(x[step][2 * half], at);
          ld_shared(x[step][2 * half + 1], at + 4);
        }
      }
    }
  }
};

// Lines of k, swizzled: eight threads each name the even lines, then the odd ones, of one chunk and of the next.
template <class Operand>
struct FragmentReader<Operand, true, false> {
  unsigned source;
  __device__ __forceinline__ FragmentReader(unsigned first_line, unsigned lane) {
    source = (first_line + lane % 8 * 2 + lane / 8 % 2) * 128 + ((lane / 16 ^ lane % 8) * 16);
  }
  __device__ __forceinline__ void read(float (&x)[STEP_K / 8][4], unsigned buffer, unsigned block) const {
#pragma unroll
    for (unsigned step = 0; step < STEP_K / 8; ++step) {
      ldmatrix_x4(x[step], buffer + (source ^ step * 32) + block * (64 * 128));
    }
  }
};

// Lines of k, each with its own shift.
template <class Operand>
struct FragmentReader<Operand, true, true> {
  unsigned even, odd;
  __device__ __forceinline__ FragmentReader(unsigned first_line, unsigned lane) {
    const unsigned line = first_line + lane / 4 * 2;
    even = (Operand::line_start(line) + Operand::shift(line) + lane % 4) * 4;
    odd = (Operand::line_start(line + 1) + Operand::shift(line + 1) + lane % 4) * 4;
  }
  __device__ __forceinline__ void read(float (&x)[STEP_K / 8][4], unsigned buffer, unsigned block) const {
#pragma unroll
    for (unsigned step = 0; step < STEP_K / 8; ++step) {
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        const unsigned behind = (block * 4 * Operand::SIXTEEN + step * 8 + half * 4) * 4;
        ld_shared(x[step][2 * half], buffer + even + behind);
        ld_shared(x[step][2 * half + 1], buffer + odd + behind);
      }
    }
  }
};

// 64 lines by 32 k, split over the registers of a warpgroup.
struct Fragment {
  unsigned high[STEPS_TF32][4];
  unsigned low[PRODUCTS == 1 ? 1 : SMALL_BF16 ? STEPS_BF16 : STEPS_TF32][4];
  unsigned coarse[SMALL_BF16 == 2 ? STEPS_BF16 : 1][4];   // BF16 of the whole

  template <class Pass>
  __device__ __forceinline__ void split(Pass& pass, const float (&x)[STEPS_TF32][4]) {
#pragma unroll
    for (unsigned step = 0; step < STEPS_TF32; ++step) {
      TwoParts parts[4];
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        parts[i] = split_register(pass, x[step][i]);
        high[step][i] = __float_as_uint(parts[i].high);
        if constexpr (PRODUCTS == 3 && SMALL_BF16 == 0) low[step][i] = __float_as_uint(parts[i].low);
      }
      if constexpr (SMALL_BF16 > 0) {
#pragma unroll
        for (unsigned line = 0; line < 2; ++line) {
          low[step / 2][step % 2 * 2 + line] = cvt_rn_bf16x2(parts[line].low, parts[line + 2].low);
          if constexpr (SMALL_BF16 == 2) {
            coarse[step / 2][step % 2 * 2 + line] = cvt_rn_bf16x2(parts[line].whole, parts[line + 2].whole);
          }
        }
      }
    }
  }

  // All of it computed here: ptxas would move parts in between the products and then wait for each (its message C7519).
  __device__ __forceinline__ void fence() {
#pragma unroll
    for (unsigned step = 0; step < STEPS_TF32; ++step) {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        fence_operand(high[step][i]);
        if constexpr (PRODUCTS == 3 && SMALL_BF16 == 0) fence_operand(low[step][i]);
        if constexpr (SMALL_BF16 > 0) {
          if (step < STEPS_BF16) fence_operand(low[step][i]);
          if (SMALL_BF16 == 2 && step < STEPS_BF16) fence_operand(coarse[step][i]);
        }
      }
    }
  }
};

// sum = the products of a step along k, the small ones first, while the sum is small: what the tensor core cuts off in
// adding is then small too. With PRODUCTS == 1 they are added to the sum.
__device__ __forceinline__ void multiply(float (&sum)[SUMS], const Fragment& fragment, unsigned stage) {
  const unsigned long long high = matrix_descriptor(stage), low = matrix_descriptor(stage + LOW_AT);
  if constexpr (PRODUCTS == 3) {
    if constexpr (SMALL_BF16 == 2) {
      wgmma_k16_bf16<ScaleOut::Zero>(sum, fragment.low[0], low);
      wgmma_k16_bf16<ScaleOut::One>(sum, fragment.low[1], low + 2);
      wgmma_k16_bf16<ScaleOut::One>(sum, fragment.coarse[0], low + 4);
      wgmma_k16_bf16<ScaleOut::One>(sum, fragment.coarse[1], low + 6);
    } else if constexpr (SMALL_BF16 == 1) {
      const unsigned long long coarse = matrix_descriptor<64>(stage + COARSE_AT);
      wgmma_k16_bf16<ScaleOut::Zero>(sum, fragment.low[0], coarse);
      wgmma_k16_bf16<ScaleOut::One>(sum, fragment.low[1], coarse + 2);
#pragma unroll
      for (unsigned step = 0; step < STEPS_TF32; ++step) {
        wgmma_k8_tf32<ScaleOut::One>(sum, fragment.high[step], low + 2 * step);
      }
    } else {
      wgmma_k8_tf32<ScaleOut::Zero>(sum, fragment.low[0], high);
      wgmma_k8_tf32<ScaleOut::One>(sum, fragment.high[0], low);
#pragma unroll
      for (unsigned step = 1; step < STEPS_TF32; ++step) {
        wgmma_k8_tf32<ScaleOut::One>(sum, fragment.low[step], high + 2 * step);
        wgmma_k8_tf32<ScaleOut::One>(sum, fragment.high[step], low + 2 * step);
      }
    }
  }
#pragma unroll
  for (unsigned step = 0; step < STEPS_TF32; ++step) {
    wgmma_k8_tf32<ScaleOut::One>(sum, fragment.high[step], high + 2 * step);
  }
}
