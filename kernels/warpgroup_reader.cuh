// How a warpgroup reads its numbers of the operand that goes through registers, as wgmma has them: of each eight k the
// lines 2 g and 2 g + 1 of its warp's sixteen at k = t, then at k = t + 4, where t = lane % 4 and g = lane / 4. (PTX
// ISA, "Register Fragments for wgmma", has lines g and g + 8: which lines of the operand these are is free.)
// Expects warpgroup_ptx.cuh, warpgroup_ring.cuh and warpgroup_shifted.cuh.
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
          read_two(x[step][2 * half], x[step][2 * half + 1], at);
        } else {
          read_one(x[step][2 * half], at);
          read_one(x[step][2 * half + 1], at + 4);
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
      read_matrices(x[step], buffer + (source ^ step * 32) + block * (64 * 128));
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
        read_one(x[step][2 * half], buffer + even + behind);
        read_one(x[step][2 * half + 1], buffer + odd + behind);
      }
    }
  }
};
