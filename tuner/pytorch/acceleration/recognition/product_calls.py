"""Products of matrices by the names that PyTorch has for them, as calls of our operators.

Arguments have PyTorch's names, so that a call by name is bound as PyTorch binds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from tilewright.tuner.pytorch.acceleration.recognition.call import Call
from tilewright.tuner.pytorch.operators.products import GEMM, LINEAR
from tilewright.tuner.pytorch.precision import ALLOWED


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call | None:  # noqa: A002
    """The call of a linear layer; None where the weight is no matrix."""
    return Call(LINEAR, (input, weight, bias, "none", ALLOWED)) if weight.dim() == 2 else None


def matmul(input: Tensor, other: Tensor) -> Call | None:  # noqa: A002
    """The call for matrices, alone, one beside many, or as many on either side; several batch dimensions become one."""
    a, b = input, other
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or min(a.dim(), b.dim()) < 2:
        return None
    if a.dim() > 2 < b.dim() and a.shape[:-2] != b.shape[:-2]:
        return None
    batch, shape = max(a.shape[:-2], b.shape[:-2], key=len), None
    if b.dim() == 2 < a.dim():
        a, shape = a.flatten(0, -2), (*a.shape[:-1], b.shape[1])
    elif len(batch) > 1:
        shape = (*batch, a.shape[-2], b.shape[-1])
        a, b = (one if one.dim() == 2 else one.flatten(0, -3) for one in (a, b))
    return Call(GEMM, (a, b, 1.0, ALLOWED), shape)


def product(dimensions: int) -> Callable[..., Call | None]:
    """A maker of calls for `mm` or `bmm`, which take exactly so many dimensions."""

    def product(input: Tensor, mat2: Tensor) -> Call | None:  # noqa: A002
        return matmul(input, mat2) if input.dim() == mat2.dim() == dimensions else None

    return product


def sum_with_product(dimensions: int) -> Callable[..., Call | None]:
    """A maker for `addmm` or `baddbmm`: one launch if it is a layer like `nn.Linear`, else a product and a sum."""

    def add(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Call | None:  # noqa: A002
        if not mat1.dim() == mat2.dim() == dimensions or 0 in {alpha, beta}:
            return None
        if dimensions == 2 and input.dim() == 1 and alpha == beta == 1 and mat2.mT.is_contiguous():
            return linear(mat1, mat2.mT, input)
        return Call(GEMM, (mat1, mat2, float(alpha), ALLOWED), added=(input, float(beta)))

    return add


def einsum(equation: str, *operands: Any) -> Call | None:
    """The einsum of two tensors as a matrix product, batched or not; None where the equation is none."""
    terms, arrow, result = equation.replace(" ", "").partition("->")
    names = terms.split(",")
    a, b = operands
    if not arrow or "." in equation or any(len(set(one)) != len(one) for one in (*names, result)):
        return None
    left, right = names
    batch, k = ([one for one in left if one in right and (one in result) is kept] for kept in (True, False))
    m, n = ([one for one in own if one not in other] for own, other in ((left, right), (right, left)))
    if not k or sorted([*batch, *m, *n]) != sorted(result):
        return None
    sizes = dict(zip(left, a.shape, strict=True)) | dict(zip(right, b.shape, strict=True))

    def matrix(tensor: Tensor, name: str, rows: list[str], columns: list[str]) -> Tensor:
        shape = [math.prod(sizes[one] for one in part) for part in (batch, rows, columns)]
        return tensor.permute([name.index(one) for one in (*batch, *rows, *columns)]).view(
            shape if batch else shape[1:]
        )

    found = [*batch, *m, *n]
    shape, order = tuple(sizes[one] for one in found), tuple(found.index(one) for one in result)
    arguments = matrix(a, left, m, k), matrix(b, right, k, n), 1.0, ALLOWED
    return Call(GEMM, arguments, shape, None if order == tuple(range(len(order))) else order)
