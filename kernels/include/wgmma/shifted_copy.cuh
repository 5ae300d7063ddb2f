// As copy.cuh, for an operand whose rows in memory are no multiples of 16 bytes: copies of 16 bytes all the
// same. A line is copied from the multiple of 16 bytes at or before its start, so that it lies in shared memory up to
// three elements further on; whoever reads it adds `shift` of the line. Tiles start at multiples of four lines and of
// four k, so that the shift depends on the line's number within the tile alone.
//   lines of one k: PITCH elements apart
//   lines of k: 36 elements; sixteen of them 4 more, and the second eight lie those 4 further on, which spreads a
//     warp's reads of two neighbouring lines at a time over the banks
// Before a line there are neighbours' numbers, which are not read; past its end there are zeros.
#pragma once
#include "wgmma/copy.cuh"

template <unsigned TILE, unsigned EXTENT, unsigned LEADING, bool ALONG_K>
struct ShiftedOperand {
  static constexpr bool K_MAJOR = ALONG_K, SHIFTED = true;
  static constexpr bool SHIFTS_ARE_EVEN = LEADING % 2 == 0;
  static constexpr unsigned PITCH = ALONG_K ? STEP_K + 4 : TILE + 8;
  static constexpr unsigned SIXTEEN = 16 * PITCH + 4;   // elements of sixteen lines of k
  static constexpr unsigned BYTES = 4 * (ALONG_K ? TILE / 16 * SIXTEEN : STEP_K * PITCH);
  // A line is VECTORS and one more; SHARERS threads take a line, the last of them the one more too.
  static constexpr unsigned VECTORS = (ALONG_K ? STEP_K : TILE) / 4, SHARERS = VECTORS < 32 ? VECTORS : 32;
  static constexpr unsigned LINES = LOADERS / SHARERS, ROUNDS = (ALONG_K ? TILE : STEP_K) / LINES;
  static_assert(LOADERS % SHARERS == 0 && (!ALONG_K || LINES == 16), "a thread's lines all have one shift");

  const float* source;   // what the thread copies first of the next tile
  unsigned target;       // its place in a buffer
  unsigned line, place;  // its line and its place in it, within the tile
  unsigned x0, k0;       // where the next tile starts

  // How many elements further on a line starts than its place says.
  __device__ __forceinline__ static unsigned shift(unsigned line) { return line * (LEADING % 4) % 4; }

  // Where an element lies in a buffer, in elements.
  __device__ __forceinline__ static unsigned line_start(unsigned line) {
    return line / 16 * SIXTEEN + line % 16 * PITCH + line / 8 % 2 * 4;
  }

  __device__ __forceinline__ explicit ShiftedOperand(unsigned thread) {
    line = thread / SHARERS;
    place = thread % SHARERS * 4;
    target = ((ALONG_K ? line_start(line) : line * PITCH) + place) * 4;
  }

  __device__ __forceinline__ void start(const float* matrix, unsigned first_x, unsigned first_k) {
    x0 = first_x;
    k0 = first_k;
    const size_t row = (ALONG_K ? x0 : k0) + line, column = (ALONG_K ? k0 : x0) + place;
    source = matrix + (row * LEADING + column - shift(line));
  }

  // The bytes that are there of a copy `along_line` behind the thread's first, `lines` further on.
  __device__ __forceinline__ unsigned bytes_there(unsigned lines, unsigned along_line) const {
    const bool is_inside = (ALONG_K ? x0 : k0) + line + lines < (ALONG_K ? EXTENT : K);
    const unsigned start = (ALONG_K ? k0 : x0) + place + along_line;
    const long long elements = is_inside ? static_cast<long long>(ALONG_K ? K : EXTENT) - start + shift(line) : 0;
    return elements <= 0 ? 0 : elements >= 4 ? 16 : 4 * static_cast<unsigned>(elements);
  }

  // The thread's copies of a round's line, and the last sharer's one more.
  static constexpr unsigned IN_LINE = VECTORS / SHARERS;
  __device__ static constexpr unsigned into(unsigned round) { return round * (ALONG_K ? SIXTEEN : LINES * PITCH) * 4; }
  __device__ static constexpr long long from(unsigned round) { return 4ll * round * LINES * LEADING; }   // in bytes

  // A tile that lies inside: distances are inside the instructions, as far as they go, and so must be constants. COUNT
  // copies from the I-th on, EACH in a round, the first of which is FIRST vectors behind the thread's place.
  template <unsigned I, unsigned COUNT, unsigned EACH, unsigned FIRST>
  __device__ __forceinline__ void copy_inside(unsigned buffer) const {
    if constexpr (COUNT > 1) {
      copy_inside<I, COUNT / 2, EACH, FIRST>(buffer);
      copy_inside<I + COUNT / 2, COUNT - COUNT / 2, EACH, FIRST>(buffer);
    } else {
      constexpr unsigned ROUND = I / EACH, ALONG = (FIRST + I % EACH * SHARERS) * 16;
      constexpr long long FROM = from(ROUND), NEAR = FROM < FARTHEST ? FROM : 0;
      const char* const origin = reinterpret_cast<const char*>(source) + (FROM - NEAR);
      cp_async<16, into(ROUND) + ALONG, NEAR + ALONG>(buffer + target, origin);
    }
  }

  // A tile at an edge: rare, so few registers matter more.
  __device__ __forceinline__ void copy_edge(unsigned buffer) const {
    const bool has_one_more = place == (SHARERS - 1) * 4;
#pragma unroll 1
    for (unsigned round = 0; round < ROUNDS; ++round) {
#pragma unroll
      for (unsigned i = 0; i <= IN_LINE; ++i) {
        if (i == IN_LINE && !has_one_more) continue;
        const unsigned along_line = (i < IN_LINE ? i * SHARERS : VECTORS - SHARERS + 1) * 4;
        const float* const origin = source + (from(round) / 4 + along_line);
        const unsigned bytes = bytes_there(round * LINES, along_line);
        cp_async_zfill_16(buffer + target + into(round) + along_line * 4, origin, bytes);
      }
    }
  }

  // Starts the copies of a tile and goes on to the next along k.
  __device__ __forceinline__ void copy(unsigned buffer) {
    if (x0 + TILE + 4 <= EXTENT && k0 + STEP_K + 4 <= K) {
      copy_inside<0, ROUNDS * IN_LINE, IN_LINE, 0>(buffer);
      if (place == (SHARERS - 1) * 4) copy_inside<0, ROUNDS, 1, VECTORS - SHARERS + 1>(buffer);
    } else {
      copy_edge(buffer);
    }
    source += ALONG_K ? STEP_K : static_cast<size_t>(STEP_K) * LEADING;
    k0 += STEP_K;
  }
};
