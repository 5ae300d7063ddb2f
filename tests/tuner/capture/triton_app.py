# ruff: noqa: T201, PLR0917 - a program, with kernels as they are written
"""A program with Triton kernels as people write them, for a GPU or Triton's interpreter; prints what it launched."""

from __future__ import annotations

import os
import sys
import time

import torch
import triton
import triton.language as tl

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETS else "cuda"
LEAK = tl.constexpr(0.5)
SCALE_LOG2 = 2.0


def timed(launch, quantiles=None):
    """In the place of the GPU's benchmarker: launches once; the first configuration wins."""
    del quantiles
    launch()
    timed.count += 1
    return [timed.count] * 3


timed.count = 0
BENCH = timed if INTERPRETS else None


@triton.jit
def leaky(x):
    return tl.where(x > 0, x, LEAK * x)


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_K": 32, "GROUP": 4}, num_warps=8, num_stages=4),
        triton.Config({"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP": 8}, num_warps=4, num_stages=3),
    ],
    key=["M", "N", "K"],
    do_bench=BENCH,
)
@triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0})
@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, bias_ptr, M, N, K, stride_am, stride_bn, stride_cm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    EVEN_K: tl.constexpr, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    of_group = GROUP * columns
    first = pid // of_group * GROUP
    size = min(rows - first, GROUP)
    rm = (first + pid % of_group % size) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid % of_group // size * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rm[:, None] * stride_am + rk[None, :]
    b_ptrs = b_ptr + rk[:, None] + rn[None, :] * stride_bn
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_ptrs, mask=rm[:, None] < M, other=0.0)
            b = tl.load(b_ptrs, mask=rn[None, :] < N, other=0.0)
        else:
            a = tl.load(a_ptrs, mask=(rm[:, None] < M) & (rk[None, :] + k < K), other=0.0)
            b = tl.load(b_ptrs, mask=(rn[None, :] < N) & (rk[:, None] + k < K), other=0.0)
        total += tl.dot(a, b)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K
    if HAS_BIAS:
        total += tl.load(bias_ptr + rn, mask=rn < N)[None, :]
    if ACTIVATION == "leaky":
        total = leaky(total)
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], total, mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def softmax(out, x, row_stride, n_cols, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK_SIZE)
    v = tl.load(x + row * row_stride + cols, mask=cols < n_cols, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * row_stride + cols, e / tl.sum(e, axis=0), mask=cols < n_cols)


@triton.autotune(
    configs=[triton.Config({"B": 64, "ATOMIC": flag}, num_warps=w) for flag, w in ((True, 2), (False, 4))],
    key=["n"],
    reset_to_zero=["total"],
    prune_configs_by={"early_config_prune": lambda configs, named, **_: [c for c in configs if c.kwargs["ATOMIC"]]},
    do_bench=BENCH,
)
@triton.jit
def summed(x, places, total, n, factor, B: tl.constexpr, ATOMIC: tl.constexpr):
    tl.static_assert(B <= 64 or ATOMIC, "one program keeps one part")
    offsets = tl.program_id(0) * B + tl.arange(0, B)
    where = tl.load(places + offsets, mask=offsets < n, other=0)
    part = tl.sum(tl.load(x + where, mask=offsets < n, other=0.0) * factor)
    if ATOMIC:
        tl.atomic_add(total, part)
    else:
        tl.store(total, part)


@triton.jit
def masked(x, mask, bias, out, n, stride, ROWS: tl.constexpr, KIND: tl.constexpr, BLOCK_SIZE: tl.constexpr = 64):
    row = tl.program_id(1)
    place = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    chosen = tl.load(mask + place, mask=place < n, other=0)
    value = tl.load(x + row * stride + place, mask=(place < n) & chosen, other=0.0)
    if bias is not None:
        value += tl.load(bias + place, mask=place < n)
    tl.store(out + row * n + place, tl.where(~chosen, -1.0, value).to(KIND), mask=place < n)


@triton.jit
def doubled(out, x, width, LENGTH: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, LENGTH)
    value = tl.load(x + row * width + cols, mask=cols < width, other=0.0)
    tl.store(out + row * width + cols, 2 * value, mask=cols < width)


def multiply(m, n, k):
    a, b = torch.randn(m, k, device=DEVICE), torch.randn(n, k, device=DEVICE).t()
    c = torch.empty(m, n, device=DEVICE)
    matmul[lambda meta: (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)](
        a, b, c, None, m, n, k, a.stride(0), b.stride(1), c.stride(0), ACTIVATION="leaky", HAS_BIAS=False
    )
    torch.testing.assert_close(c, torch.nn.functional.leaky_relu(a @ b, 0.5), atol=5e-2, rtol=2e-2)


def main():
    torch.manual_seed(0)
    for shape in ((64, 48, 80), (32, 96, 64)):
        multiply(*shape)
    x = torch.randn(9, 100, device=DEVICE)
    y = torch.empty_like(x)
    for _ in range(3):
        softmax[(9,)](y, x, x.stride(0), 100, BLOCK_SIZE=triton.next_power_of_2(100), num_warps=8)
    torch.testing.assert_close(y, torch.softmax(x, -1))
    total = torch.zeros(1, device=DEVICE)
    places = torch.randint(0, 300, (1000,), dtype=torch.int32, device=DEVICE)
    wide = torch.randn(300, device=DEVICE)
    summed[lambda meta: (triton.cdiv(1000, meta["B"]),)](wide, places, total, 1000, 2.0)
    torch.testing.assert_close(total[0], 2 * wide[places.long()].sum(), atol=1e-3, rtol=1e-4)
    for rows, n in ((3, 200), (5, 333)):
        x, mask = torch.randn(rows, 2 * n, device=DEVICE)[:, :n], torch.rand(n, device=DEVICE) > 0.5
        y = torch.empty(rows, n, dtype=torch.float16, device=DEVICE)
        masked[lambda meta: (triton.cdiv(n, meta["BLOCK_SIZE"]), rows)](  # noqa: B023
            x, mask, None, y, n, x.stride(0), ROWS=rows, KIND=tl.float16
        )
        torch.testing.assert_close(y.float(), torch.where(mask, x, -1.0), atol=1e-3, rtol=1e-3)
    for width in (32, 64):
        x = torch.randn(3, width, device=DEVICE)
        y = torch.empty_like(x)
        doubled[(3,)](y, x, width, LENGTH=triton.next_power_of_2(width))
        torch.testing.assert_close(y, 2 * x)
    config = matmul.best_config
    print("searches", timed.count, "blocks", config.kwargs["BLOCK_M"], "warps", config.num_warps)


if __name__ == "__main__":
    start = time.perf_counter()
    main()
    print(f"{time.perf_counter() - start:.2f} s", file=sys.stderr)
