// A stage of the ring: by which copies each operand gets there from memory, and where its parts lie.
#pragma once
#include "wgmma/copy.cuh"
#include "wgmma/shifted_copy.cuh"

template <bool CONDITION, class Then, class Else>
struct Conditional {
  typedef Then Type;
};
template <class Then, class Else>
struct Conditional<false, Then, Else> {
  typedef Else Type;
};

// In the order of memory, EXTENT lines, contiguous along k or not: by copies of 16 bytes, whatever the rows' length.
template <unsigned TILE, unsigned EXTENT, bool ALONG_K>
struct InOrder : Conditional<(ALONG_K ? K : EXTENT) % 4 == 0, AlignedOperand<TILE, EXTENT, ALONG_K, ALONG_K, true>,
                        ShiftedOperand<TILE, EXTENT, ALONG_K>> {};

// Where the tensor cores read it: straight there, or, where that would be by smaller copies and somebody is there to
// move it on (PRODUCTS == 3: staged_convert.cuh), in the order of memory to another place of the stage.
template <unsigned EXTENT, bool ALONG_K>
struct ToTensorCores {
  static constexpr bool STAGED = PRODUCTS == 3 && !(ALONG_K && K % 4 == 0);
  typedef typename Conditional<STAGED, typename InOrder<TILE_S, EXTENT, ALONG_K>::Type,
                          AlignedOperand<TILE_S, EXTENT, ALONG_K, true, false>>::Type Type;
};

#if SHARED_A
typedef ToTensorCores<M, !TRANS_A> SharedLayout;
typedef InOrder<TILE_R, N, TRANS_B>::Type RegisterOperand;
#else
typedef ToTensorCores<N, TRANS_B> SharedLayout;
typedef InOrder<TILE_R, M, !TRANS_A>::Type RegisterOperand;
#endif
typedef SharedLayout::Type SharedOperand;
constexpr bool STAGED = SharedLayout::STAGED;

// What a stage of the ring holds: of the operand that the tensor cores read the high parts, and the low parts in TF32
// or, SMALL_BF16 == 2, in BF16 behind the BF16 of the whole; the BF16 of the whole by itself, SMALL_BF16 == 1; the
// other operand; what is yet to be moved on.
constexpr unsigned SHARED_BYTES = TILE_S * STEP_K * 4;
constexpr unsigned LOW_AT = SHARED_BYTES;
constexpr unsigned COARSE_AT = LOW_AT + (PRODUCTS == 3 ? SHARED_BYTES : 0);
constexpr unsigned REGISTER_AT = COARSE_AT + (SMALL_BF16 == 1 ? SHARED_BYTES / 2 : 0);
constexpr unsigned STAGED_AT = REGISTER_AT + RegisterOperand::BYTES;
constexpr unsigned STAGE_BYTES = (STAGED_AT + (STAGED ? SharedOperand::BYTES : 0) + 1023) / 1024 * 1024;
