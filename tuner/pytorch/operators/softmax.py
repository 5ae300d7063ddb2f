"""softmax as an operator."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tilewright.tuner.pytorch.operator import Operator, check
from tilewright.tuner.pytorch.operators.products import as_rows
from tilewright.tuner.pytorch.tuned_call import NoKernelError, Posed


def _result(x: Tensor, dim: int) -> Tensor:
    count = max(x.dim(), 1)
    check(-count <= dim < count, "softmax", lambda: f"x {tuple(x.shape)} has no dimension {dim}")
    return x.new_empty(x.shape)


def _posed(y: Tensor, x: Tensor, dim: int) -> Posed:
    if dim not in {-1, x.dim() - 1} or not x.dim():
        raise NoKernelError(f"the kernel takes the last dimension, not {dim} of {x.dim()}")
    return Posed({"m": math.prod(x.shape[:-1]), "n": x.shape[-1]}, (as_rows(x), as_rows(y)))


def _pytorch(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x, dim).contiguous()


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.dim = inputs
    ctx.dtype = x.dtype
    ctx.save_for_backward(output)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    (y,) = ctx.saved_tensors
    return torch.ops.aten._softmax_backward_data.default(gradient, y, ctx.dim, ctx.dtype), None  # noqa: SLF001 - what PyTorch's own formula calls


SOFTMAX = Operator(
    name="softmax",
    schema="(Tensor x, int dim=-1) -> Tensor",
    kernel="softmax",
    result=_result,
    pose=_posed,
    pytorch=_pytorch,
    setup=_setup,
    backward=_backward,
    autocast=("softmax.int", "float32"),
)


def softmax(input: Tensor, dim: int = -1) -> Tensor:  # noqa: A002 - PyTorch's name
    """The result of `torch.softmax`."""
    return SOFTMAX(input, dim)
