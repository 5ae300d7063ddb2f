"""linear_quantized as an operator: a layer whose weights are whole numbers of 8 or 4 bits."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tilewright.kernels.linear_quantized.quantise import LARGEST
from tilewright.kernels.linear_quantized.reference import GROUP, MIDDLE
from tilewright.tuner.pytorch.operator import Operator, check
from tilewright.tuner.pytorch.operators.products import as_rows
from tilewright.tuner.pytorch.tuned_call import Posed


def int8_of(weight: Tensor) -> tuple[Tensor, Tensor]:
    """W and S as `quantise` has them for int8 and groups of 128, but computed in float32 where the weights are."""
    groups = weight.detach().float().unflatten(-1, (-1, GROUP))
    scales = (groups.abs().amax(-1) / LARGEST["int8"]).to(weight.dtype)
    step = scales.float().masked_fill(scales == 0, 1)
    whole = (groups / step[..., None]).round_().clamp_(-LARGEST["int8"], LARGEST["int8"])
    return whole.to(torch.int8).flatten(-2), scales


def dequantised(w: Tensor, s: Tensor, weights: str) -> Tensor:
    """The weights (n, k) that W and S stand for, in the dtype of S."""
    if weights != "int8":
        w = torch.stack([w & 15, w >> 4], -1).flatten(-2)
    scales, zero = s.unbind(-1) if weights == "int4_zeros" else (s, 0 if weights == "int8" else MIDDLE)
    zero = zero[..., None] if isinstance(zero, Tensor) else zero
    return ((w.to(s.dtype).unflatten(-1, (scales.shape[-1], -1)) - zero) * scales[..., None]).flatten(-2)


def _result(x: Tensor, w: Tensor, s: Tensor, weights: str) -> Tensor:
    check(weights in LARGEST, "linear_quantized", lambda: f"weights are {', '.join(LARGEST)}, not {weights!r}")
    fits = w.dim() == 2 and x.dim() >= 1 and x.shape[-1] == w.shape[1] * (1 if weights == "int8" else 2)
    check(
        fits, "linear_quantized", lambda: f"X {tuple(x.shape)} and W {tuple(w.shape)} of {weights} do not go together"
    )
    kinds = torch.int8 if weights == "int8" else torch.uint8, x.dtype
    check((w.dtype, s.dtype) == kinds, "linear_quantized", lambda: f"W and S are {w.dtype}, {s.dtype}, not {kinds}")
    return x.new_empty((*x.shape[:-1], w.shape[0]))


def _posed(y: Tensor, x: Tensor, w: Tensor, s: Tensor, weights: str) -> Posed:
    n, k = len(w), x.shape[-1]
    group = "row" if s.shape[1] == 1 and k != GROUP else str(GROUP)
    axes = {"m": math.prod(x.shape[:-1]), "n": n, "k": k}
    return Posed(axes | {"weights": weights, "group": group}, (as_rows(x), w, s, as_rows(y)))


def _pytorch(x: Tensor, w: Tensor, s: Tensor, weights: str) -> Tensor:
    return torch.nn.functional.linear(x, dequantised(w, s, weights)).contiguous()


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - autograd names it
    _, w, s, ctx.weights = inputs
    ctx.save_for_backward(w, s)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    """The gradient of X alone: whole numbers have no gradient, and nobody trains scales."""
    w, s = ctx.saved_tensors
    return gradient @ dequantised(w, s, ctx.weights), None, None, None


LINEAR_QUANTIZED = Operator(
    name="linear_quantized",
    schema='(Tensor x, Tensor w, Tensor s, str weights="int8") -> Tensor',
    kernel="linear_quantized",
    result=_result,
    pose=_posed,
    pytorch=_pytorch,
    setup=_setup,
    backward=_backward,
    autocast=("linear", "lower"),
)


def linear_quantized(x: Tensor, w: Tensor, s: Tensor, *, weights: str = "int8") -> Tensor:
    """X dequantised(W)ᵀ for few rows of X: W and S are those of the launcher's `quantise`, with its `weights`."""
    return LINEAR_QUANTIZED(x, w, s, weights)
