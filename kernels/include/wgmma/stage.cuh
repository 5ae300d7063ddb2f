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

// How a matrix lies in memory: EXTENT lines, contiguous along k or not, LEADING elements from a row to the next and
// STRIDE from a matrix of the batch to the next.
template <unsigned EXTENT_, unsigned LEADING_, size_t STRIDE_, bool ALONG_K_>
struct InMemory {
  static constexpr unsigned EXTENT = EXTENT_, LEADING = LEADING_;
  static constexpr size_t STRIDE = STRIDE_;
  static constexpr bool ALONG_K = ALONG_K_;
  static constexpr bool DIVIDES = tw::gcd(copied_together<LEADING, STRIDE>(), ALONG_K ? K : EXTENT) == 4;   // into 16 bytes
  static constexpr bool SHIFTED = !DIVIDES && STRIDE % 4 == 0;   // copied in 16 bytes all the same
};
typedef InMemory<M, LDA, BATCH == 1 ? 0 : STRIDE_A, !TRANS_A> MemoryA;
typedef InMemory<N, LDB, BATCH == 1 ? 0 : STRIDE_B, TRANS_B> MemoryB;

template <unsigned TILE, class Memory, bool LINES_OF_K, bool PAIRED>
struct Aligned {
  typedef AlignedOperand<TILE, Memory::EXTENT, Memory::LEADING, Memory::STRIDE, Memory::ALONG_K, LINES_OF_K, PAIRED> Type;
};
template <unsigned TILE, class Memory>
struct Shifted {
  typedef ShiftedOperand<TILE, Memory::EXTENT, Memory::LEADING, Memory::ALONG_K> Type;
};

// In the order of memory: by copies of 16 bytes, whatever the rows' length, unless matrices start anywhere.
template <unsigned TILE, class Memory>
struct InOrder
    : Conditional<Memory::SHIFTED, Shifted<TILE, Memory>, Aligned<TILE, Memory, Memory::ALONG_K, true>>::Type {};

// Where the tensor cores read it: straight there, or, where wider copies in the order of memory are possible and somebody
// is there to move it on (PRODUCTS == 3: staged_convert.cuh), to another place of the stage.
template <class Memory>
struct ToTensorCores {
  static constexpr bool STAGED = PRODUCTS == 3 && (!Memory::ALONG_K || Memory::SHIFTED);
  typedef typename Conditional<STAGED, InOrder<TILE_S, Memory>, Aligned<TILE_S, Memory, true, false>>::Type::Type Type;
};

#if SHARED_A
typedef ToTensorCores<MemoryA> SharedLayout;
typedef InOrder<TILE_R, MemoryB>::Type RegisterOperand;
#else
typedef ToTensorCores<MemoryB> SharedLayout;
typedef InOrder<TILE_R, MemoryA>::Type RegisterOperand;
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
