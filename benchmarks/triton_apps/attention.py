"""Attention forward with an online softmax, as flash-attention in Triton is written."""

import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_stages=s, num_warps=w)
        for m, n, s, w in ((128, 32, 3, 4), (64, 64, 3, 4), (128, 64, 2, 8), (64, 32, 4, 4), (128, 128, 2, 8))
    ],
    key=["N_CTX", "HEAD_DIM"],
)
@triton.jit
def attention(
    Q, K, V, Out, sm_scale, stride_z, stride_h, stride_m, H, N_CTX,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    base = (head // H).to(tl.int64) * stride_z + (head % H).to(tl.int64) * stride_h
    rows, columns = block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    lanes = tl.arange(0, HEAD_DIM)
    q = tl.load(Q + base + rows[:, None] * stride_m + lanes[None, :], mask=rows[:, None] < N_CTX, other=0.0)
    most = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    result = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    end = min((block + 1) * BLOCK_M, N_CTX) if CAUSAL else N_CTX
    for start in range(0, end, BLOCK_N):
        place = start + columns
        k = tl.load(K + base + place[None, :] * stride_m + lanes[:, None], mask=place[None, :] < N_CTX, other=0.0)
        scores = tl.dot(q, k) * (sm_scale * 1.44269504)
        scores = tl.where(place[None, :] < N_CTX, scores, -float("inf"))
        if CAUSAL:
            scores = tl.where(rows[:, None] >= place[None, :], scores, -float("inf"))
        new = tl.maximum(most, tl.max(scores, 1))
        p = tl.exp2(scores - new[:, None])
        old = tl.exp2(most - new)
        total = total * old + tl.sum(p, 1)
        v = tl.load(V + base + place[:, None] * stride_m + lanes[None, :], mask=place[:, None] < N_CTX, other=0.0)
        result = tl.dot(p.to(v.dtype), v, result * old[:, None])
        most = new
    result = result / total[:, None]
    out = Out + base + rows[:, None] * stride_m + lanes[None, :]
    tl.store(out, result.to(Out.dtype.element_ty), mask=rows[:, None] < N_CTX)


def main():
    for z, h, n in ((2, 16, 2048), (1, 16, 4096)):
        q, k, v = (torch.randn(z, h, n, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        out = torch.empty_like(q)
        grid = lambda meta: (triton.cdiv(n, meta["BLOCK_M"]), z * h)  # noqa: B023, E731
        attention[grid](
            q, k, v, out, 0.088, q.stride(0), q.stride(1), q.stride(2), h, n, HEAD_DIM=128, CAUSAL=True
        )  # fmt: skip


if __name__ == "__main__":
    main()
