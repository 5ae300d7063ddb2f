"""softmax_rows: y[i, :] = exp(x[i, :] - max x[i, :]) / its sum, for x and y (m, n), row-major.

Grid: a program for every ROWS rows. Where BLOCK covers a row it stays in registers and is read once; else the largest
and the sum are kept up to date block by block (Milakov and Gimelshein, 2018), and a second pass writes.
"""

import triton
import triton.language as tl


@triton.jit
def softmax_rows(x, y, m, n, BLOCK: tl.constexpr, ROWS: tl.constexpr, SHAPE_N: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    start = row.to(tl.int64) * n
    if BLOCK >= SHAPE_N:
        inside = (row < m) & (column < n)
        values = tl.load(x + start + column, mask=inside, other=-float("inf"))
        shares = tl.exp(values - tl.max(values, axis=1, keep_dims=True))
        tl.store(y + start + column, shares / tl.sum(shares, axis=1, keep_dims=True), mask=inside)
    else:
        largest = tl.full((ROWS, 1), -float("inf"), tl.float32)
        total = tl.zeros((ROWS, 1), tl.float32)
        for first in range(0, SHAPE_N, BLOCK):
            inside = (row < m) & (first + column < n)
            values = tl.load(x + start + first + column, mask=inside, other=-float("inf"))
            now = tl.maximum(largest, tl.max(values, axis=1, keep_dims=True))
            total = total * tl.exp(largest - now) + tl.sum(tl.exp(values - now), axis=1, keep_dims=True)
            largest = now
        for first in range(0, SHAPE_N, BLOCK):
            inside = (row < m) & (first + column < n)
            values = tl.load(x + start + first + column, mask=inside, other=-float("inf"))
            tl.store(y + start + first + column, tl.exp(values - largest) / total, mask=inside)
