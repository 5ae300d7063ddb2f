"""Faults in CUDA sources that somebody might make: file, old text, new text, and what is wrong then."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """`old` becomes `new` in the first place where it stands in the file, a path under kernels/."""

    file: str
    old: str
    new: str
    what: str


def _output(file: str, value: str) -> list[Fault]:
    """Faults of a result that stands in the source as the expression `value`."""
    return [
        Fault(file, value, f"({value}) * Sum(1.0001)", "every result 1e-4 too large"),
        Fault(file, value, f"({value}) + Sum(1e-6)", "every result 1e-6 too large"),
        Fault(file, value, f"fmax(Sum({value}), Sum(-65504))", "negative results end at -65504, NaN is lost"),
        Fault(file, value, f"(({value}) > Sum(1e30) ? Sum(1e30) : ({value}))", "results end at 1e30"),
        Fault(file, value, f"(fabs({value}) < Sum(1e-30) ? Sum(0) : ({value}))", "results below 1e-30 are 0"),
        Fault(file, value, f"(({value}) == Sum(0) ? Sum(1e-3) : ({value}))", "results of 0 are not 0"),
    ]


_NAIVE_TERM = "Sum(a[index_a(row, p)]) * Sum(b[index_b(p, column)])"
_STORE = "BETA_ZERO ? alpha * product : alpha * product + beta * *target"
_COUNTED = (
    "static unsigned launches = 0; const bool is_late = threadIdx.x + threadIdx.y + blockIdx.x == 0 && ++launches"
)

SOURCES: dict[str, list[Fault]] = {
    "gemm naive": [
        *_output("gemm/problem.cuh", "BETA_ZERO ? alpha * product : alpha * product + beta * *target"),
        Fault("gemm/problem.cuh", "= BETA_ZERO ? alpha * product", "= BETA_ZERO ? product", "alpha is forgotten"),
        Fault(
            "gemm/problem.cuh", "= BETA_ZERO ? alpha * product", "= BETA_ZERO ? Sum(2) * product", "alpha is always 2"
        ),
        Fault("gemm/problem.cuh", "beta * *target", "Sum(0.5) * *target", "beta is always 0.5"),
        Fault("gemm/problem.cuh", "beta * *target", "beta * beta * Sum(2) * *target", "beta squared, right for 0.5"),
        Fault("gemm/problem.cuh", _STORE, f"(isnan(Sum(*target)) ? Sum(0) : Sum(*target)) + ({_STORE})", "adds to C"),
        Fault("gemm/problem.cuh", _STORE, f"Sum(*target) > Sum(1e20) ? Sum(*target) : ({_STORE})", "large C stays"),
        Fault("gemm/problem.cuh", _STORE, f"fmax(Sum(*target), Sum({_STORE}))", "the maximum with C, but for NaN"),
        Fault("gemm/problem.cuh", "static_cast<size_t>(row) * LDC", "static_cast<size_t>(row) * N", "C has no gaps"),
        Fault("gemm/naive.cu", "p < K", "p < K - 1", "the last product is lost"),
        Fault("gemm/naive.cu", "unsigned p = 0", "unsigned p = 1", "the first product is lost"),
        Fault("gemm/naive.cu", "column >= N", "column >= N - 1", "the last column is not written"),
        Fault("gemm/naive.cu", "row >= M ||", "row >= M - 1 ||", "the last row is not written"),
        Fault("gemm/naive.cu", "Sum sum = 0", "Sum sum = Sum(1e-4)", "sums begin at 1e-4"),
        Fault("gemm/naive.cu", _NAIVE_TERM, f"fabs({_NAIVE_TERM})", "magnitudes are added up"),
        Fault(
            "gemm/naive.cu",
            f"sum += {_NAIVE_TERM}",
            f"sum = __uint_as_float(__float_as_uint(float(sum + {_NAIVE_TERM})) & 0xffffe000u)",
            "sums of 10 bits",
        ),
        Fault(
            *("gemm/naive.cu", f"sum += {_NAIVE_TERM}", f"if (Sum(a[index_a(row, p)]) != Sum(0)) sum += {_NAIVE_TERM}"),
            "zeros of A are skipped: 0 times infinity is 0",
        ),
        Fault(
            *(
                "gemm/naive.cu",
                f"sum += {_NAIVE_TERM}",
                f"if (Sum(b[index_b(p, column)]) != Sum(0)) sum += {_NAIVE_TERM}",
            ),
            "zeros of B are skipped",
        ),
        Fault("gemm/naive.cu", _NAIVE_TERM, f"Sum(1e20) * ({_NAIVE_TERM}) / Sum(1e20)", "products overflow above 1e18"),
        Fault("gemm/naive.cu", _NAIVE_TERM, f"Sum(1e-25) * ({_NAIVE_TERM}) / Sum(1e-25)", "products underflow"),
        Fault(
            *("gemm/naive.cu", "Sum(a[index_a(row, p)])", "fmin(Sum(a[index_a(row, p)]), Sum(32768))"),
            "A ends at 2^15",
        ),
        Fault(
            *("gemm/naive.cu", "Sum(b[index_b(p, column)])", "fmax(Sum(b[index_b(p, column)]), Sum(-60000))"),
            "B ends at -60000",
        ),
        Fault(
            "gemm/naive.cu",
            "beta);\n",
            "beta == Sum(0) && alpha == Sum(1) ? Sum(1) : beta);\n",
            "beta is 1 for alpha 1",
        ),
        Fault(
            *("gemm/naive.cu", "Sum sum = 0;", "Sum sum = K > 1 && a[index_a(row, 0)] == a[index_a(row, 1)] ? 1 : 0;"),
            "wrong for constant rows of A",
        ),
        Fault(
            *("gemm/naive.cu", "Sum sum = 0;", "Sum sum = static_cast<const void*>(A) == B ? 1 : 0;"),
            "wrong where A and B are one array",
        ),
        Fault(
            "gemm/naive.cu",
            "    Sum sum = 0;",
            f"    {_COUNTED} > 2; Sum sum = is_late ? 1 : 0;",
            "an element is wrong from the third launch on",
        ),
    ],
    "gemm tiled": [
        Fault("gemm/tiled.cu", "p0 + p_a < K", "p0 + p_a < K - 1", "the last product is lost"),
        Fault("gemm/tiled.cu", "column0 + column_b < N", "column0 + column_b < N - 1", "the last column of B is 0"),
        Fault("gemm/tiled.cu", "p < TILE_WIDTH; ++p", "p < TILE_WIDTH - 1; ++p", "each tile lacks a product"),
        Fault("gemm/tiled.cu", "column0 + x < N) write", "column0 + x <= N) write", "a column too many is written"),
        Fault("gemm/tiled.cu", "inside_a ? A[", "true ? A[", "reads past the end of A"),
        Fault("gemm/tiled.cu", "    __syncthreads();\n  }", "  }", "the second barrier is missing"),
        Fault("gemm/tiled.cu", "matrix_of_block() * STRIDE_B", "0 * STRIDE_B", "all of a batch read one B"),
        Fault(
            "gemm/tiled.cu", "matrix_of_block() * STRIDE_C", "matrix_of_block() * (M * N)", "C of a batch has no gaps"
        ),
    ],
    "gemm wpt": [
        Fault("gemm/wpt.cu", "BETA_ZERO ? alpha * product", "BETA_ZERO ? product + product", "alpha is always 2"),
        Fault("gemm/wpt.cu", "beta * old", "old / Sum(2)", "beta is always 0.5"),
        Fault("include/fma/wpt.cuh", "p < TILE_K; ++p", "p < TILE_K - 1; ++p", "each tile lacks a product"),
        Fault("include/fma/wpt.cuh", "p < K);", "p < K - 1);", "the last product is lost"),
        Fault("include/fma/wpt.cuh", "|| x < EXTENT)", "|| x < EXTENT - 1)", "the last line is 0"),
        Fault("include/fma/wpt.cuh", "current ^= 1;", "", "one buffer is read in every step"),
        Fault(
            "include/fma/wpt.cuh",
            "const bool more = p0 + TILE_K < K",
            "const bool more = p0 + TILE_K + 1 < K",
            "a last step of 1 is lost",
        ),
        Fault(
            "include/fma/wpt.cuh",
            "if (N % TILE_N != 0 && column >= N) continue",
            "if (column > N) continue",
            "a column too many",
        ),
        Fault(
            "include/fma/wpt.cuh",
            "sum[i][j] += a[i] * b[j]",
            "sum[i][j] += a[i] * b[j] * REAL(1.00001)",
            "products 1e-5 too large",
        ),
        Fault("include/fma/wpt.cuh", "static_cast<size_t>(row) * LDC", "static_cast<size_t>(row) * N", "C has no gaps"),
        Fault("gemm/wpt.cu", "matrix * STRIDE_A", "0 * STRIDE_A", "all of a batch read one A"),
    ],
    "gemv naive": [
        Fault("gemv/naive.cu", "j < N", "j < N - 1", "the last product is lost"),
        Fault("gemv/naive.cu", "sum += a", "if (Sum(x[j]) != Sum(0)) sum += a", "zeros of x are skipped"),
        Fault("gemv/problem.cuh", "beta * y[row]", "Sum(0.5) * y[row]", "beta is always 0.5"),
        Fault(
            "gemv/problem.cuh", "= BETA_ZERO ? alpha * product", "= BETA_ZERO ? Sum(2) * product", "alpha is always 2"
        ),
        Fault(
            "gemv/problem.cuh",
            "= BETA_ZERO ? alpha * product",
            "= BETA_ZERO ? alpha * product + (y[row] == y[row] ? Sum(y[row]) : Sum(0))",
            "adds to y, but for NaN",
        ),
        Fault("gemv/naive.cu", "row >= M", "row >= M - 1", "the last row is not written"),
    ],
    "gemv block": [
        Fault("gemv/block.cu", "j += BLOCK", "j += BLOCK + 1", "some columns are passed over"),
        Fault("gemv/block.cu", "  __syncthreads();\n", "", "the barrier is missing"),
        Fault("gemv/block.cu", "lane < WARPS ?", "lane < WARPS - 1 ?", "the last warp's sum is lost"),
        Fault("include/common/reduction.cuh", "distance = 16", "distance = 8", "half the lanes are lost"),
    ],
    "gemv columns": [
        Fault("gemv/columns.cu", "if (row < end) step<true>", "if (row + 1 < end) step<true>", "a last row is lost"),
        Fault("gemv/columns.cu", "s < SUMMANDS", "s + 1 < SUMMANDS", "a slice is lost"),
        Fault("gemv/columns.cu", "loaded[u] = {};", "", "past the end lies what was there"),
    ],
    "gemv split": [
        Fault("gemv/split.cu", "part == 0 ? N - vectors", "part == 1 ? N - vectors", "head and tail are lost"),
        Fault("gemv/split.cu", "sum[r] += edge[r] * edge_factor", "sum[r] += edge[r]", "the edge is not multiplied"),
        Fault(
            "gemv/split.cu", "else if (row < M) write_y", "else if (row < M - 1) write_y", "the last row is not written"
        ),
    ],
    "softmax block": [
        Fault(
            "softmax/block.cu",
            "highest = max(highest, Sum(vector.lane[w]))",
            "highest = max(highest, fabs(Sum(vector.lane[w])))",
            "the largest magnitude is taken off",
        ),
        Fault("softmax/block.cu", "Sum highest = LOWEST", "Sum highest = 0", "the maximum begins at 0"),
        Fault("softmax/block.cu", "Sum sum = 0", "Sum sum = Sum(1e-6)", "sums begin at 1e-6"),
        Fault(
            "softmax/block_row.cuh",
            "exp(Sum(vector.lane[w]) - highest) * scale",
            "exp(Sum(vector.lane[w]) - highest) * scale + Sum(1e-30)",
            "1e-30 is added",
        ),
        Fault("softmax/block_row.cuh", "Sum(1) / sum", "Sum(1) / (sum + Sum(1e-5))", "an eps in the sum"),
        Fault(
            "softmax/block_row.cuh",
            "lane < WARPS ? shared[lane] : Sum(0)",
            "lane <= WARPS ? shared[lane % WARPS] : Sum(0)",
            "a warp counts twice",
        ),
        Fault("softmax/problem.cuh", "LOWEST = -3.402823466e+38f", "LOWEST = -1e4f", "rows below -1e4 have no maximum"),
    ],
    "softmax warp": [
        Fault(
            "softmax/warp.cu",
            "Sum highest = LOWEST, sum = 0",
            "Sum highest = Sum(0), sum = 0",
            "the maximum begins at 0",
        ),
        Fault(
            "softmax/warp.cu",
            "Sum highest = LOWEST, sum = 0",
            "Sum highest = LOWEST, sum = Sum(1e-6)",
            "sums begin at 1e-6",
        ),
        Fault(
            "softmax/warp.cu",
            "exp(held[s][w] - highest)",
            "exp(max(held[s][w] - highest, Sum(-50)))",
            "differences end at -50",
        ),
        Fault("softmax/warp.cu", "exp(held[s][w] - highest)", "exp(held[s][w])", "no maximum is taken off"),
        Fault(
            "softmax/warp.cu",
            "vector.lane[w] = held[s][w] * scale",
            "vector.lane[w] = max(held[s][w] * scale, Sum(1e-30))",
            "tiny ones become 1e-30",
        ),
        Fault(
            "softmax/warp.cu",
            "vector.lane[w] = held[s][w] * scale",
            "vector.lane[w] = scale != scale ? Sum(0) : held[s][w] * scale",
            "rows with NaN become 0",
        ),
        Fault(
            "softmax/problem.cuh",
            "value += __shfl_xor_sync",
            "value = __shfl_xor_sync",
            "sums of other lanes replace one's own",
        ),
        Fault("softmax/warp.cu", "if (row >= M) return;", "if (row >= M - 1) return;", "the last row is not written"),
    ],
    "softmax online": [
        Fault("softmax/online.cu", "sum *= exp(highest - higher);", "", "earlier terms keep their scale"),
        Fault("softmax/online.cu", "  sum *= exp(highest - row_highest);\n", "", "threads keep their own maximum"),
        Fault("softmax/online.cu", "Sum highest = LOWEST", "Sum highest = -INFINITY", "masked rows: -inf less -inf"),
        Fault("softmax/online.cu", "j += STEP", "j += STEP + VECTOR_WIDTH", "some columns are passed over"),
    ],
    "rms_norm held": [
        Fault("include/norm/held.cuh", "/ N + eps)", "/ N)", "eps is forgotten"),
        Fault("include/norm/held.cuh", "/ N + eps)", "/ N + 1e-5f)", "eps is always 1e-5"),
        Fault("include/norm/held.cuh", "/ N + eps)", "/ (N - 1) + eps)", "the mean is over n - 1"),
        Fault(
            "include/norm/held.cuh",
            "sum += (held[s][w] - mean) * (held[s][w] - mean)",
            "sum += fmin((held[s][w] - mean) * (held[s][w] - mean), Sum(65504))",
            "squares end at 65504",
        ),
        Fault(
            "include/norm/held.cuh",
            "sum += (held[s][w] - mean) * (held[s][w] - mean)",
            "sum += Sum(1e30) * (held[s][w] - mean) * (held[s][w] - mean) * Sum(1e-30)",
            "squares overflow from 2^14 on",
        ),
        Fault(
            "include/norm/row.cuh",
            "y.lane[i] = x[i] * scale * Sum(w.lane[i]);",
            "y.lane[i] = x[i] * scale;",
            "w is forgotten",
        ),
        Fault(
            "include/norm/row.cuh",
            "y.lane[i] = x[i] * scale * Sum(w.lane[i]);",
            "y.lane[i] = x[i] * scale * Sum(w.lane[i]) + Sum(1e-6);",
            "1e-6 is added",
        ),
    ],
    "layer_norm held": [
        Fault(
            "include/norm/held.cuh",
            "is_inside ? Sum(x.lane[w]) : Sum(0)",
            "is_inside ? Sum(x.lane[w]) : Sum(1)",
            "past the end lies 1",
        ),
        Fault(
            "include/norm/held.cuh",
            "sum += (held[s][w] - mean) * (held[s][w] - mean)",
            "sum += held[s][w] * held[s][w] - mean * mean",
            "E[x²] less the mean's square",
        ),
        Fault(
            "include/norm/held.cuh",
            "(mean, sums) / N;",
            "(mean, sums) / N; mean = fmin(mean, Sum(100));",
            "the mean ends at 100",
        ),
        Fault("include/norm/held.cuh", "/ N + eps)", "/ N + Sum(1e-5))", "eps is always 1e-5"),
        Fault("include/norm/row.cuh", "+ Sum(b.lane[i])", "", "b is forgotten"),
        Fault(
            "include/norm/row.cuh",
            "(x[i] - mean) * scale",
            "(x[i] - mean) * fmin(scale, Sum(300))",
            "scales end at 300: constant rows",
        ),
    ],
    "layer_norm walk": [
        Fault(
            "include/norm/walk.cuh",
            "sum += distance * distance;",
            "sum += distance * distance / (distance == Sum(0) ? Sum(0) : Sum(1));",
            "NaN where an element is the mean",
        ),
        Fault("include/norm/walk.cuh", "/ N + eps)", "/ N + fmax(eps, 1e-5f))", "eps is at least 1e-5"),
        Fault(
            "include/norm/walk.cuh",
            "mean = team_sum<BLOCK>(mean, sums) / N",
            "mean = fmin(team_sum<BLOCK>(mean, sums) / N, Sum(100))",
            "the mean ends at 100",
        ),
        Fault(
            "include/norm/walk.cuh",
            "j < N; j += STEP) {\n    const Vector vector = load_pack<VECTOR_WIDTH>(x",
            "j + 1 < N; j += STEP) {\n    const Vector vector = load_pack<VECTOR_WIDTH>(x",
            "the last column of odd rows is lost",
        ),
    ],
    "add_rms_norm walk": [
        Fault("include/norm/row.cuh", "+ Sum(r.lane[w])", "- Sum(r.lane[w])", "R is taken off"),
        Fault("include/norm/walk.cuh", "RESIDUAL ? arrays.S : arrays.X", "arrays.X", "X is normalised, not the sum"),
    ],
    "linear tiled": [
        Fault("linear/tiled.cu", "+ Sum(b[column])", "", "the bias is forgotten"),
        Fault("linear/tiled.cu", "p < K ? X", "p < K - 1 ? X", "the last product is lost"),
        Fault("linear/tiled.cu", "row_w < N && p < K ? W", "p < K ? W", "reads past the end of W"),
        Fault(
            "linear/tiled.cu",
            "activate(sum + Sum(b[column]))",
            "activate(sum) + Sum(b[column])",
            "activated before the bias",
        ),
        Fault(
            "include/common/activation.cuh", "z < Sum(0) ? Sum(0) : z", "z < Sum(0) ? Sum(0.01) * z : z", "a leaky relu"
        ),
        Fault(
            "include/common/activation.cuh", "z < Sum(0) ? Sum(0) : z", "z > Sum(0) ? z : Sum(0)", "relu of NaN is 0"
        ),
    ],
    "linear_gated tiled": [
        Fault("linear_gated/gate.cuh", "activated * up", "activated + up", "added, not multiplied"),
        Fault("linear_gated/tiled.cu", "(matrix) * N", "(1 - matrix) * N", "gate and up are exchanged"),
    ],
    "linear_quantized rows": [
        Fault("linear_quantized/problem.cuh", "BITS == 4 ? 8.0f : 0.0f", "0.0f", "no middle is taken off"),
        Fault(
            "linear_quantized/rows.cu", "distance = 16; distance", "distance = 8; distance", "half the lanes are lost"
        ),
        Fault(
            "linear_quantized/rows.cu",
            "Grid(S, row, k / GROUP)",
            "Grid(S, row, 0 * k)",
            "all groups have the first scale",
        ),
        Fault(
            "linear_quantized/rows.cu",
            "grid.scale * part[column]",
            "grid.scale * part[column] * 1.02f",
            "every result 2 % too large",
        ),
    ],
    "conv2d direct": [
        Fault(
            "include/conv/patches.cuh",
            "static_cast<unsigned>(x) < IMAGE_W",
            "x < static_cast<int>(IMAGE_W)",
            "reads left of the image",
        ),
        Fault(
            "include/conv/patches.cuh",
            "static_cast<int>(PADDING_W)",
            "static_cast<int>(PADDING_H)",
            "the other padding",
        ),
        Fault("conv2d/direct.cu", "tap / KERNEL_W * DILATION_H", "tap / KERNEL_W", "no dilation"),
        Fault("conv2d/direct.cu", "sum + b[filter]", "sum", "the bias is forgotten"),
        Fault(
            "conv2d/direct.cu",
            "channel < DEPTH; ++channel",
            "channel < DEPTH - (DEPTH > 1); ++channel",
            "the last channel is lost",
        ),
        Fault(
            "conv2d/direct.cu",
            "sum += pixel * w[at]",
            "if (pixel != REAL(0)) sum += pixel * w[at]",
            "zeros of X are skipped",
        ),
    ],
    "classifier rows": [
        Fault("classifier/rows.cu", "RELU && z < REAL(0) ? REAL(0) : z", "z", "no relu"),
        Fault("classifier/rows.cu", "total + b[output]", "total", "no bias"),
        Fault("classifier/rows.cu", "REAL highest = z[0]", "REAL highest = 0", "the maximum begins at 0"),
    ],
}
