"""Matrix products as operators: gemm with batches, gemm into a matrix that is there, linear with activation, gemv.

In every declaration the arguments are those of its schema, in order. Backward products are the same operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilewright.tuner.pytorch.kept import zeros
from tilewright.tuner.pytorch.operator import Operator, check
from tilewright.tuner.pytorch.precision import ALLOWED, products_in_tf32, resolved
from tilewright.tuner.pytorch.tuned_call import NoKernelError, Posed

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": torch.nn.functional.gelu,
}
"""Activations by the names of the kernels' option; PyTorch's gelu is the exact form too."""


COPIED_ELEMENTS = 1 << 20
"""The most elements of X that are copied first if its rows have gaps, which the kernel cannot read.

PyTorch's own operator computes with a larger one, which cuBLAS reads as it lies.
"""


def before_activation(activation: str, gradient: Tensor, y: Tensor | None, z: Callable[[], Tensor]) -> Tensor:
    """The gradient before an activation from the one behind it, by the result y, or for gelu by the argument z."""
    aten = torch.ops.aten
    if activation == "none":
        return gradient
    if activation == "gelu":
        return aten.gelu_backward.default(gradient, z())
    if activation == "relu":
        return aten.threshold_backward.default(gradient, y, 0)
    slope = {"sigmoid": aten.sigmoid_backward.default, "tanh": aten.tanh_backward.default}[activation]
    return slope(gradient, y)


def options(accuracy: str, tensor: Tensor, activation: str = "none") -> dict[str, str]:
    """The options that are not at their defaults: not every dtype has them."""
    given = {"accuracy": (resolved(accuracy, tensor), "fp32"), "activation": (activation, "none")}
    return {name: value for name, (value, default) in given.items() if value != default}


def _gemm_result(a: Tensor, b: Tensor, _alpha: float, _accuracy: str) -> Tensor:
    fits = a.dim() in {2, 3} and b.dim() in {2, 3}
    check(fits, "gemm", lambda: f"a and b are matrices or batches of them, not {tuple(a.shape)} and {tuple(b.shape)}")
    check(
        a.shape[-1] == b.shape[-2],
        "gemm",
        lambda: f"a {tuple(a.shape)} has not as many columns as b {tuple(b.shape)} has rows",
    )
    check(a.dtype == b.dtype, "gemm", lambda: f"a is {a.dtype} and b is {b.dtype}")
    if a.dim() == 3 and b.dim() == 3:
        check(a.shape[0] == b.shape[0], "gemm", lambda: f"the batches differ: {a.shape[0]} and {b.shape[0]}")
    batch = (a if a.dim() == 3 else b).shape[:-2]
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]))


def _gemm_axes(a: Tensor, c: Tensor, accuracy: str) -> dict[str, Any]:
    axes = {"m": c.shape[-2], "n": c.shape[-1], "k": a.shape[-1]}
    return axes | ({"batch": c.shape[0]} if c.dim() == 3 else {}) | options(accuracy, a)


def _gemm_posed(c: Tensor, a: Tensor, b: Tensor, alpha: float, accuracy: str) -> Posed:
    return Posed(_gemm_axes(a, c, accuracy), (a, b, c), {"alpha": not_zero(alpha)})


def not_zero(alpha: float) -> float:
    """The factor; raises NoKernelError for 0: libraries then skip the product, and NaN and infinity have no effect."""
    if alpha == 0:
        raise NoKernelError("a product times 0 is PyTorch's")
    return alpha


def _gemm_pytorch(a: Tensor, b: Tensor, alpha: float, _accuracy: str) -> Tensor:
    """The product times the factor, which comes before the rounding to the dtype, as in the kernels."""
    if alpha == 1:
        return torch.matmul(a, b)
    if a.dim() == b.dim() == 2:
        return torch.addmm(a.new_zeros(()), a, b, beta=0, alpha=alpha)
    batch = (a if a.dim() == 3 else b).shape[0]
    left, right = (one.expand(batch, *one.shape[-2:]) for one in (a, b))
    return torch.baddbmm(a.new_zeros(()), left, right, beta=0, alpha=alpha)


def _gemm_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - autograd names it
    a, b, ctx.alpha, ctx.accuracy = inputs
    ctx.save_for_backward(a, b)


def _gemm_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    gradient = gradient.contiguous()  # that of a sum is one number, expanded
    of_a = of_b = None
    if ctx.needs_input_grad[0]:
        of_a = GEMM.op(gradient, b.mH, ctx.alpha, ctx.accuracy)
        of_a = of_a.sum(0) if a.dim() < of_a.dim() else of_a
    if ctx.needs_input_grad[1] and b.dim() < gradient.dim():  # shared by the batch: one long product
        of_b = GEMM.op(a.flatten(0, 1).mH, gradient.flatten(0, 1), ctx.alpha, ctx.accuracy)
    elif ctx.needs_input_grad[1]:
        of_b = GEMM.op(a.mH, gradient, ctx.alpha, ctx.accuracy)
    return of_a, of_b, None, None


GEMM = Operator(
    name="gemm",
    schema='(Tensor a, Tensor b, float alpha=1.0, str accuracy="fp32") -> Tensor',
    kernel="gemm",
    result=_gemm_result,
    pose=_gemm_posed,
    pytorch=_gemm_pytorch,
    in_tf32=products_in_tf32,
    setup=_gemm_setup,
    backward=_gemm_backward,
    autocast=("matmul", "lower"),
)


def _into_result(c: Tensor, a: Tensor, b: Tensor, alpha: float, _beta: float, accuracy: str) -> Tensor:
    expected = _gemm_result(a, b, alpha, accuracy).shape
    check(c.shape == expected, "gemm_", lambda: f"c is {tuple(c.shape)}, and the product {tuple(expected)}")
    check(c.dtype == a.dtype, "gemm_", lambda: f"c is {c.dtype} and a is {a.dtype}")
    return c


def _into_posed(_output: Tensor, c: Tensor, a: Tensor, b: Tensor, alpha: float, beta: float, accuracy: str) -> Posed:
    numbers = {"alpha": not_zero(alpha)} | ({} if beta == 0 else {"beta": beta})
    return Posed(_gemm_axes(a, c, accuracy) | {"beta_zero": beta == 0}, (a, b, c), numbers)


def _into_pytorch(c: Tensor, a: Tensor, b: Tensor, alpha: float, beta: float, _accuracy: str) -> None:
    if c.dim() == 2:
        c.addmm_(a, b, beta=beta, alpha=alpha)
    else:
        c.baddbmm_(a.expand(len(c), *a.shape[-2:]), b.expand(len(c), *b.shape[-2:]), beta=beta, alpha=alpha)


GEMM_INTO = Operator(
    name="gemm_",
    schema='(Tensor(a!) c, Tensor a, Tensor b, float alpha=1.0, float beta=0.0, str accuracy="fp32") -> ()',
    kernel="gemm",
    result=_into_result,
    pose=_into_posed,
    pytorch=_into_pytorch,
    in_tf32=products_in_tf32,
)


def _linear_result(x: Tensor, w: Tensor, b: Tensor | None, activation: str, _accuracy: str) -> Tensor:
    check(w.dim() == 2 and x.dim() >= 1, "linear", lambda: f"W {tuple(w.shape)} is no matrix (outputs, inputs)")
    check(
        x.shape[-1] == w.shape[1],
        "linear",
        lambda: f"X {tuple(x.shape)} has not as many columns as W {tuple(w.shape)}",
    )
    if b is not None:
        check(b.shape == (w.shape[0],), "linear", lambda: f"b is {tuple(b.shape)}, and W {tuple(w.shape)}")
    check(activation in ACTIVATIONS, "linear", lambda: f"the activations are {', '.join(ACTIVATIONS)}")
    check(x.dtype == w.dtype, "linear", lambda: f"X is {x.dtype} and W is {w.dtype}")
    return x.new_empty((*x.shape[:-1], w.shape[0]))


def _linear_posed(y: Tensor, x: Tensor, w: Tensor, b: Tensor | None, activation: str, accuracy: str) -> Posed:
    n, k = w.shape
    axes = {"m": math.prod(x.shape[:-1]), "n": n, "k": k}
    bias = zeros(w, n) if b is None else b
    kept = frozenset({2}) if b is None else frozenset[int]()
    rows = as_rows(x)
    if not rows.is_contiguous() and rows.numel() <= COPIED_ELEMENTS:
        rows = rows.contiguous()
    return Posed(axes | options(accuracy, x, activation), (rows, w, bias, as_rows(y)), kept=kept)


def _linear_pytorch(x: Tensor, w: Tensor, b: Tensor | None, activation: str, _accuracy: str) -> Tensor:
    return ACTIVATIONS[activation](torch.nn.functional.linear(x, w, b)).contiguous()


def as_rows(x: Tensor) -> Tensor:
    """The matrix whose rows are the vectors of the last dimension, also if these are empty."""
    return x.flatten(0, -2) if x.dim() > 1 else x[None]


def _linear_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, b, ctx.activation, ctx.accuracy = inputs
    ctx.save_for_backward(x, w, b, None if ctx.activation in {"none", "gelu"} else output)


def _linear_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    x, w, b, y = ctx.saved_tensors
    gradient = before_activation(ctx.activation, gradient, y, lambda: LINEAR.op(x, w, b, "none", ctx.accuracy))
    rows = as_rows(gradient.contiguous())
    of_x = of_w = of_b = None
    if ctx.needs_input_grad[0]:
        of_x = GEMM.op(rows, w.conj(), 1.0, ctx.accuracy).reshape(x.shape)
    if ctx.needs_input_grad[1]:
        of_w = GEMM.op(rows.mT, as_rows(x).conj(), 1.0, ctx.accuracy)
    if b is not None and ctx.needs_input_grad[2]:
        of_b = rows.sum(0)
    return of_x, of_w, of_b, None, None


LINEAR = Operator(
    name="linear",
    schema='(Tensor x, Tensor w, Tensor? b=None, str activation="none", str accuracy="fp32") -> Tensor',
    kernel="linear",
    result=_linear_result,
    pose=_linear_posed,
    pytorch=_linear_pytorch,
    in_tf32=products_in_tf32,
    setup=_linear_setup,
    backward=_linear_backward,
    autocast=("linear", "lower"),
)


def _gemv_result(a: Tensor, x: Tensor, _alpha: float) -> Tensor:
    check(a.dim() == 2 and x.dim() == 1, "gemv", lambda: f"{tuple(a.shape)} and {tuple(x.shape)} are no matrix, vector")
    check(a.shape[1] == x.shape[0], "gemv", lambda: f"a {tuple(a.shape)} has not as many columns as x has elements")
    check(a.dtype == x.dtype, "gemv", lambda: f"a is {a.dtype} and x is {x.dtype}")
    return a.new_empty(a.shape[0])


def _gemv_posed(y: Tensor, a: Tensor, x: Tensor, alpha: float) -> Posed:
    return Posed({"m": a.shape[0], "n": a.shape[1]}, (a, x, y), {"alpha": not_zero(alpha)})


def _gemv_pytorch(a: Tensor, x: Tensor, alpha: float) -> Tensor:
    return torch.mv(a, x) if alpha == 1 else torch.addmv(a.new_zeros(a.shape[0]), a, x, beta=0, alpha=alpha)


def _gemv_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - autograd names it
    a, x, ctx.alpha = inputs
    ctx.save_for_backward(a, x)


def _gemv_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    a, x = ctx.saved_tensors
    gradient = gradient.contiguous()
    of_a = torch.outer(gradient, x.conj()) * ctx.alpha if ctx.needs_input_grad[0] else None
    of_x = GEMV.op(a.mH, gradient, ctx.alpha) if ctx.needs_input_grad[1] else None
    return of_a, of_x, None


GEMV = Operator(
    name="gemv",
    schema="(Tensor a, Tensor x, float alpha=1.0) -> Tensor",
    kernel="gemv",
    result=_gemv_result,
    pose=_gemv_posed,
    pytorch=_gemv_pytorch,
    setup=_gemv_setup,
    backward=_gemv_backward,
    autocast=("mv", "lower"),
)


def gemm(input: Tensor, mat2: Tensor, *, alpha: float = 1.0, accuracy: str = ALLOWED) -> Tensor:  # noqa: A002 - PyTorch's name
    """`torch.matmul` times alpha; a matrix beside a batch is shared by its products.

    `accuracy`: fp32, tf32 or fp32-fma; by default TF32 where `torch.set_float32_matmul_precision` allows it.
    """
    if input.dim() == mat2.dim() == 2:
        return GEMM(input, mat2, float(alpha), accuracy)
    if input.dim() and mat2.dim() == 1:
        return gemm(input, mat2[:, None], alpha=alpha, accuracy=accuracy)[..., 0]
    if input.dim() == 1 and mat2.dim():
        return gemm(input[None], mat2, alpha=alpha, accuracy=accuracy)[..., 0, :]
    batches = input.shape[:-2], mat2.shape[:-2]
    if max(map(len, batches)) > 1 or (all(batches) and batches[0] != batches[1]):
        batch = torch.broadcast_shapes(*batches)
        left, right = (one.expand(*batch, *one.shape[-2:]).flatten(0, -3) for one in (input, mat2))
        return GEMM(left, right, float(alpha), accuracy).unflatten(0, batch)
    return GEMM(input, mat2, float(alpha), accuracy)


def gemm_(c: Tensor, a: Tensor, b: Tensor, *, alpha: float = 1.0, beta: float = 0.0, accuracy: str = ALLOWED) -> Tensor:
    """C, which becomes alpha a b + beta C, as by `C.addmm_(a, b)`; gradients and autocast are as there."""
    GEMM_INTO(c, a, b, float(alpha), float(beta), accuracy)
    return c


def linear(
    input: Tensor,  # noqa: A002 - PyTorch's name
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    accuracy: str = ALLOWED,
) -> Tensor:
    """act(x Wᵀ + b) in one launch: `torch.nn.functional.linear` and none, relu, sigmoid, tanh or (exact) gelu."""
    return LINEAR(input, weight, bias, activation, accuracy)


def gemv(input: Tensor, vec: Tensor, *, alpha: float = 1.0) -> Tensor:  # noqa: A002 - PyTorch's name
    """The product of `torch.mv` times alpha."""
    return GEMV(input, vec, float(alpha))
