// Four 8 x 8 matrices of 16 bits to shared memory by a warp (PTX ISA, "stmatrix"; compute capability 9.0): lanes 8 i to
// 8 i + 7 name the lines of matrix i, 16 bytes each; lane 4 g + t holds elements 2 t and 2 t + 1 of line g of all four.
#pragma once

__device__ __forceinline__ void stmatrix_x4(unsigned line, const unsigned (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(line), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
}
