"""layer_norm: y[i, :] = (x[i, :] - mean[i]) * scale[i] * w + b, for x and y (m, n), row-major, w and b (n).

scale[i] is 1 / sqrt(variance of x[i, :] + epsilon); it and mean[i] are written for the backward pass.
Grid: a program for every row. The mean is computed first, then squared deviations from it are summed: a mean that is
large beside the spread costs no digits. Where BLOCK covers a row it is read once.
"""

import triton
import triton.language as tl


@triton.jit
def layer_norm(x, w, b, y, mean, scale, n, epsilon, BLOCK: tl.constexpr, SHAPE_N: tl.constexpr):
    row = tl.program_id(0)
    start = row.to(tl.int64) * n
    column = tl.arange(0, BLOCK)
    if BLOCK >= SHAPE_N:
        inside = column < n
        values = tl.load(x + start + column, mask=inside, other=0.0)
        middle = tl.sum(values, axis=0) / n
        left = tl.where(inside, values - middle, 0.0)
        factor = 1.0 / tl.sqrt(tl.sum(left * left, axis=0) / n + epsilon)
        weight = tl.load(w + column, mask=inside)
        shift = tl.load(b + column, mask=inside)
        tl.store(y + start + column, left * factor * weight + shift, mask=inside)
    else:
        sums = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, SHAPE_N, BLOCK):
            sums += tl.load(x + start + first + column, mask=first + column < n, other=0.0)
        middle = tl.sum(sums, axis=0) / n
        squares = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, SHAPE_N, BLOCK):
            inside = first + column < n
            left = tl.where(inside, tl.load(x + start + first + column, mask=inside, other=0.0) - middle, 0.0)
            squares += left * left
        factor = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / n + epsilon)
        for first in range(0, SHAPE_N, BLOCK):
            inside = first + column < n
            values = tl.load(x + start + first + column, mask=inside)
            weight = tl.load(w + first + column, mask=inside)
            shift = tl.load(b + first + column, mask=inside)
            tl.store(y + start + first + column, (values - middle) * factor * weight + shift, mask=inside)
    tl.store(mean + row, middle)
    tl.store(scale + row, factor)
