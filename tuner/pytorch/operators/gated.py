"""linear_gated as an operator: the two products of a gated layer and what joins them, in one launch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilewright.tuner.pytorch.operator import Operator, check
from tilewright.tuner.pytorch.operators.products import GEMM, LINEAR, as_rows
from tilewright.tuner.pytorch.tuned_call import Posed

GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
}
"""Activations by the names of the kernel's option; gelu is the exact form."""


def _slope(activation: str, gradient: Tensor, z: Tensor) -> Tensor:
    """The gradient before the activation of z."""
    aten = torch.ops.aten
    if activation == "sigmoid":
        return aten.sigmoid_backward.default(gradient, torch.sigmoid(z))
    if activation == "relu":
        return aten.threshold_backward.default(gradient, z, 0)
    slope = {"silu": aten.silu_backward.default, "gelu": aten.gelu_backward.default}[activation]
    return slope(gradient, z)


def _result(x: Tensor, w: Tensor, activation: str) -> Tensor:
    check(
        w.dim() == 2 and x.dim() >= 1 and x.shape[-1] == w.shape[1] and w.shape[0] % 2 == 0,
        "linear_gated",
        lambda: f"X {tuple(x.shape)} and W {tuple(w.shape)} do not go together; W is (2 outputs, inputs)",
    )
    check(x.dtype == w.dtype, "linear_gated", lambda: f"X is {x.dtype} and W is {w.dtype}")
    check(activation in GATES, "linear_gated", lambda: f"the activations are {', '.join(GATES)}")
    return x.new_empty((*x.shape[:-1], w.shape[0] // 2))


def _posed(y: Tensor, x: Tensor, w: Tensor, activation: str) -> Posed:
    n, k = y.shape[-1], w.shape[1]
    axes = {"m": math.prod(x.shape[:-1]), "n": n, "k": k}
    named = axes | ({} if activation == "silu" else {"activation": activation})
    return Posed(named, (as_rows(x), w, as_rows(y)))


def _pytorch(x: Tensor, w: Tensor, activation: str) -> Tensor:
    gate, up = torch.nn.functional.linear(x, w).chunk(2, -1)
    return (GATES[activation](gate) * up).contiguous()


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - autograd names it
    x, w, ctx.activation = inputs
    ctx.save_for_backward(x, w)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    """The gradients, for which both products are computed again: the result does not tell them."""
    x, w = ctx.saved_tensors
    gate, up = LINEAR.op(x, w, None, "none", "fp32").chunk(2, -1)
    of_gate = _slope(ctx.activation, gradient * up, gate)
    rows = as_rows(torch.cat([of_gate, gradient * GATES[ctx.activation](gate)], -1))
    of_x = of_w = None
    if ctx.needs_input_grad[0]:
        of_x = GEMM.op(rows, w, 1.0, "fp32").reshape(x.shape)
    if ctx.needs_input_grad[1]:
        of_w = GEMM.op(rows.mT, as_rows(x), 1.0, "fp32")
    return of_x, of_w, None


LINEAR_GATED = Operator(
    name="linear_gated",
    schema='(Tensor x, Tensor w, str activation="silu") -> Tensor',
    kernel="linear_gated",
    result=_result,
    pose=_posed,
    pytorch=_pytorch,
    setup=_setup,
    backward=_backward,
    autocast=("linear", "lower"),
)


def linear_gated(x: Tensor, w: Tensor, *, activation: str = "silu") -> Tensor:
    """act(x Gᵀ) * (x Uᵀ) in one launch; w (2 n, k) has the rows of G, then those of U."""
    return LINEAR_GATED(x, w, activation)
