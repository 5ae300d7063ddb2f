// Parts of matrices from shared memory, as mma.sync takes them (PTX ISA, "ldmatrix"; compute capability 7.5): four
// matrices of 8 x 8 elements of 16 bits. Lane 8 q + r names where line r of matrix q is, 16 bytes of it.
#pragma once

// Lane 4 g + t gets of each matrix elements 2 t and 2 t + 1 of line g.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&x)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address) : "memory");
}

// Lane 4 g + t gets of each matrix element g of lines 2 t and 2 t + 1.
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&x)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address) : "memory");
}
