// The split of tensor_sm90.cu: x = high + low, of which high high + low high + high low is taken.
//
// The tensor core ignores the low 13 bits of a TF32 operand. So a raw number is its own high part, cut off, and a low
// part is rounded ahead by a multiplication by 1 + 2^-12 * 4/3, which, unlike adding to its bits, keeps a NaN one.
// SMALL_BF16 is how many of the two small products are in BF16, at twice the speed. In units of 2^-24 |a b| the error
// of a product is at most 16 with 0 of them: 8 for low times low, which is left out, and 8 that the rounded low parts
// lose. With 1 it is at most 70, with 2 at most 132; of millions of random products the worst had 52 and 89. Half of
// the most, c being 2, must be below sqrt(k): from k = 1225 and 4356 on (tensor_sm90_space.py).
// An infinity's low part is NaN, and so is that of a number that rounds up to infinity.
// Expects wgmma.cuh, warpgroup_ptx.cuh, warpgroup_operands.cuh.

constexpr unsigned STEPS_TF32 = STEP_K / 8, STEPS_BF16 = STEP_K / 16;   // products of a step along k

__device__ __forceinline__ float cut_to_tf32(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); }
__device__ __forceinline__ float round_to_tf32(float x) {
  return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
}
__device__ __forceinline__ unsigned rounded_ahead(float low) { return __float_as_uint(low * (1.0f + 0x1.55p-12f)); }

__device__ __forceinline__ unsigned low_of(float x) { return rounded_ahead(x - cut_to_tf32(x)); }

// The converter's side: the low parts (and BF16) of the shared operand's tile, written beside it. Eight threads share
// a line of k, a chunk each. BF16 lie as k = 0 4 1 5 2 6 3 7 of each eight, which is how warps hold the other operand's
// fragments; two neighbouring threads exchange halves for it, and one writes what the other does not.
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
    write_four(address, __byte_perm(low0, high0, 0x5410), __byte_perm(low0, high0, 0x7632),
                __byte_perm(low1, high1, 0x5410), __byte_perm(low1, high1, 0x7632));
  }

  __device__ __forceinline__ void convert(unsigned stage) const {
#pragma unroll
    for (unsigned first = 0; first < ROUNDS; first += BATCH) {
      float4 x[BATCH];
#pragma unroll
      for (unsigned i = 0; i < BATCH; ++i) x[i] = read_four(stage + raw + (first + i) * (LINES * 128));
#pragma unroll
      for (unsigned i = 0; i < BATCH; ++i) {
        const unsigned at = stage + raw + (first + i) * (LINES * 128);
        if constexpr (SMALL_BF16 == 2) {
          const float4 high = {round_to_tf32(x[i].x), round_to_tf32(x[i].y), round_to_tf32(x[i].z),
                               round_to_tf32(x[i].w)};
          write_four(at, __float_as_uint(high.x), __float_as_uint(high.y), __float_as_uint(high.z),
                      __float_as_uint(high.w));
          const unsigned low[2] = {pack_bf16(x[i].x - high.x, x[i].y - high.y),
                                   pack_bf16(x[i].z - high.z, x[i].w - high.w)};
          const unsigned whole[2] = {pack_bf16(x[i].x, x[i].y), pack_bf16(x[i].z, x[i].w)};
          store_interleaved(stage + coarse + (first + i) * (LINES * 128), low, whole);
        } else {
          write_four(at + LOW_AT, low_of(x[i].x), low_of(x[i].y), low_of(x[i].z), low_of(x[i].w));
        }
      }
      if constexpr (SMALL_BF16 == 1) {
#pragma unroll
        for (unsigned i = 0; i < BATCH; i += 2) {   // even threads write the line of i, odd ones that of i + 1
          const unsigned this_line[2] = {pack_bf16(x[i].x, x[i].y), pack_bf16(x[i].z, x[i].w)};
          const unsigned next_line[2] = {pack_bf16(x[i + 1].x, x[i + 1].y), pack_bf16(x[i + 1].z, x[i + 1].w)};
          store_interleaved(stage + coarse + (first + i) * (LINES * 64), this_line, next_line);
        }
      }
    }
  }
};

// The consumers' side: 64 lines of the other operand by 32 k, split over the registers of a warpgroup.
struct Fragment {
  unsigned high[STEPS_TF32][4];
  unsigned low[PRODUCTS == 1 ? 1 : SMALL_BF16 ? STEPS_BF16 : STEPS_TF32][4];
  unsigned coarse[SMALL_BF16 == 2 ? STEPS_BF16 : 1][4];   // BF16 of the whole

  __device__ __forceinline__ void split(const float (&x)[STEPS_TF32][4]) {
#pragma unroll
    for (unsigned step = 0; step < STEPS_TF32; ++step) {
      float rest[4];
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        const float rounded = PRODUCTS == 1 ? x[step][i] : round_to_tf32(x[step][i]);
        high[step][i] = __float_as_uint(rounded);
        rest[i] = x[step][i] - rounded;
        if constexpr (PRODUCTS == 3 && SMALL_BF16 == 0) low[step][i] = rounded_ahead(rest[i]);
      }
      if constexpr (SMALL_BF16 > 0) {
#pragma unroll
        for (unsigned line = 0; line < 2; ++line) {
          low[step / 2][step % 2 * 2 + line] = pack_bf16(rest[line], rest[line + 2]);
          if constexpr (SMALL_BF16 == 2) {
            coarse[step / 2][step % 2 * 2 + line] = pack_bf16(x[step][line], x[step][line + 2]);
          }
        }
      }
    }
  }

  // All of it computed here: ptxas would move parts in between the products and then wait for each (its message C7519).
  __device__ __forceinline__ void pin() {
#pragma unroll
    for (unsigned step = 0; step < STEPS_TF32; ++step) {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        ::pin(high[step][i]);
        if constexpr (PRODUCTS == 3 && SMALL_BF16 == 0) ::pin(low[step][i]);
        if constexpr (SMALL_BF16 > 0) {
          if (step < STEPS_BF16) ::pin(low[step][i]);
          if (SMALL_BF16 == 2 && step < STEPS_BF16) ::pin(coarse[step][i]);
        }
      }
    }
  }
};

// sum = the products of a step along k, the small ones first, while the sum is small: what the tensor core cuts off in
// adding is then small too. With PRODUCTS == 1 they are added to the sum.
__device__ __forceinline__ void multiply(float (&sum)[SUMS], const Fragment& fragment, unsigned stage) {
  const unsigned long long high = tile_at(stage), low = tile_at(stage + LOW_AT);
  if constexpr (PRODUCTS == 3) {
    if constexpr (SMALL_BF16 == 2) {
      multiply_bf16<true>(sum, fragment.low[0], low);
      multiply_bf16<false>(sum, fragment.low[1], low + 2);
      multiply_bf16<false>(sum, fragment.coarse[0], low + 4);
      multiply_bf16<false>(sum, fragment.coarse[1], low + 6);
    } else if constexpr (SMALL_BF16 == 1) {
      const unsigned long long coarse = tile_at<true>(stage + COARSE_AT);
      multiply_bf16<true>(sum, fragment.low[0], coarse);
      multiply_bf16<false>(sum, fragment.low[1], coarse + 2);
#pragma unroll
      for (unsigned step = 0; step < STEPS_TF32; ++step) multiply_tf32<false>(sum, fragment.high[step], low + 2 * step);
    } else {
      multiply_tf32<true>(sum, fragment.low[0], high);
      multiply_tf32<false>(sum, fragment.high[0], low);
#pragma unroll
      for (unsigned step = 1; step < STEPS_TF32; ++step) {
        multiply_tf32<false>(sum, fragment.low[step], high + 2 * step);
        multiply_tf32<false>(sum, fragment.high[step], low + 2 * step);
      }
    }
  }
#pragma unroll
  for (unsigned step = 0; step < STEPS_TF32; ++step) multiply_tf32<false>(sum, fragment.high[step], high + 2 * step);
}
