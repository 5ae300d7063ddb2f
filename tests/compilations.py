"""Compilations that succeed, fail and do not end."""

from __future__ import annotations

from dataclasses import replace

from tilewright.tuner.compile.compilation import Compilation

SOURCE = """
extern "C" __global__ void scale(REAL* x) {
  __shared__ REAL tile[TILE];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = FACTOR * tile[TILE - 1 - threadIdx.x];
}
"""


def work(tile: int) -> Compilation:
    """The compilation of one configuration."""
    return Compilation(SOURCE, (("FACTOR", "3"), ("REAL", "float"), ("TILE", str(tile))), "sm_90", "scale")


WORK = work(256)
BROKEN = replace(WORK, source=SOURCE.replace("REAL* x", "REAL* y"))


def endless():
    """262,144 statements in one basic block: many seconds of optimizing."""
    source = """
    extern "C" __global__ void scale(unsigned* x) {
      unsigned v[4096];
      #pragma unroll
      for (int j = 0; j < 4096; ++j) v[j] = x[j];
      #pragma unroll
      for (int i = 0; i < 64; ++i)
        #pragma unroll
        for (int j = 0; j < 4096; ++j) v[j] = v[j] * v[(j * 7 + i) % 4096] + (v[(j + i) % 4096] >> 3);
      #pragma unroll
      for (int j = 0; j < 4096; ++j) x[j] = v[j];
    }"""
    return replace(WORK, source=source)
