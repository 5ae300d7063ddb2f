"""A root-mean-square norm whose rows are read in blocks, with a residual that is added in place."""

import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"BLOCK": b}, num_warps=w) for b in (1024, 2048, 4096) for w in (4, 8)],
    key=["columns"],
    restore_value=["residual"],
)
@triton.jit
def rms_norm(x, residual, weight, out, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < columns
        value = tl.load(x + row + place, mask=inside, other=0.0).to(tl.float32)
        value += tl.load(residual + row + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(residual + row + place, value.to(residual.dtype.element_ty), mask=inside)
        squares += value * value
    scale = tl.rsqrt(tl.sum(squares) / columns + eps)
    for start in range(0, columns, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < columns
        value = tl.load(residual + row + place, mask=inside, other=0.0).to(tl.float32)
        factor = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + row + place, (value * scale * factor).to(out.dtype.element_ty), mask=inside)


def main():
    for rows, columns in ((8192, 4096), (2048, 8192)):
        x, residual = (torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        weight, out = torch.rand(columns, device="cuda", dtype=torch.bfloat16), torch.empty_like(x)
        rms_norm[(rows,)](x, residual, weight, out, columns, 1e-6)


if __name__ == "__main__":
    main()
