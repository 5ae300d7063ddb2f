"""matmul: c[i, j] = sum over k of a[i, k] b[k, j], for a (m, k), b (k, n) and c (m, n) with their strides of rows.

Grid: a program for every tile of c, BLOCK_M by BLOCK_N. Tiles are taken in groups of GROUP_M rows of tiles, so that
those under way at one time share rows of a and columns of b in the L2 cache.
PRECISION says how products of float32 are made: 0 in full, 1 as three products of TF32, 2 as one.
"""

import triton
import triton.language as tl


@triton.jit
def matmul(
    a,
    b,
    c,
    m,
    n,
    k,
    a_stride,
    b_stride,
    c_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    group = tl.program_id(0) // (GROUP_M * tiles_n)
    rows_of_group = min(tiles_m - group * GROUP_M, GROUP_M)
    place = tl.program_id(0) % (GROUP_M * tiles_n)
    tile_m, tile_n = group * GROUP_M + place % rows_of_group, place // rows_of_group

    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    step = tl.arange(0, BLOCK_K)
    precision: tl.constexpr = "ieee" if PRECISION == 0 else ("tf32x3" if PRECISION == 1 else "tf32")
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, k, BLOCK_K):
        depth = first + step
        a_tile = tl.load(a + row * a_stride + depth[None, :], mask=(row < m) & (depth[None, :] < k), other=0.0)
        b_tile = tl.load(b + depth[:, None] * b_stride + column, mask=(depth[:, None] < k) & (column < n), other=0.0)
        sums = tl.dot(a_tile, b_tile, sums, input_precision=precision)
    tl.store(c + row * c_stride + column, sums, mask=(row < m) & (column < n))
