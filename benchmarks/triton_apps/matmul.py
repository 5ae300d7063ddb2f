"""A half-precision product in tiles that go in groups, as in Triton's tutorial."""

import torch
import triton
import triton.language as tl

BLOCKS = ((128, 256, 64), (64, 256, 32), (128, 128, 32), (128, 64, 32), (64, 128, 32), (128, 32, 32), (64, 32, 32))


@triton.autotune(
    configs=[
        triton.Config({"BM": m, "BN": n, "BK": k, "GROUP_M": 8}, num_warps=w, num_stages=s)
        for (m, n, k), w, s in zip(BLOCKS, (8, 4, 4, 4, 4, 4, 2), (3, 4, 4, 4, 4, 4, 5), strict=True)
    ],
    key=["M", "N", "K"],
)
@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    of_group = GROUP_M * tl.cdiv(N, BN)
    first = pid // of_group * GROUP_M
    size = min(tl.cdiv(M, BM) - first, GROUP_M)
    rm = ((first + pid % of_group % size) * BM + tl.arange(0, BM)) % M
    rn = (pid % of_group // size * BN + tl.arange(0, BN)) % N
    rk = tl.arange(0, BK)
    a_ptrs = a_ptr + rm[:, None] * stride_am + rk[None, :] * stride_ak
    b_ptrs = b_ptr + rk[:, None] * stride_bk + rn[None, :] * stride_bn
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=rk[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_ptrs, mask=rk[:, None] < K - k * BK, other=0.0)
        total = tl.dot(a, b, total)
        a_ptrs += BK * stride_ak
        b_ptrs += BK * stride_bk
    cm = (first + pid % of_group % size) * BM + tl.arange(0, BM)
    cn = pid % of_group // size * BN + tl.arange(0, BN)
    c_ptrs = c_ptr + cm[:, None] * stride_cm + cn[None, :] * stride_cn
    tl.store(c_ptrs, total.to(tl.float16), mask=(cm[:, None] < M) & (cn[None, :] < N))


def main():
    for m, n, k in ((2048, 1536, 4096), (1024, 3072, 512)):
        a, b = (torch.randn(s, device="cuda", dtype=torch.float16) / 8 for s in ((m, k), (k, n)))
        c = torch.empty(m, n, device="cuda", dtype=torch.float16)
        matmul[lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)](  # noqa: B023
            a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride()
        )


if __name__ == "__main__":
    main()
