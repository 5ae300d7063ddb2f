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
from tilewright.tuner.pytorch.plans import Posed

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": torch.nn.functional.gelu,
}
"""By the names of the kernels' option; PyTorch's gelu is the exact form too."""


COPIED_ELEMENTS = 1 << 20
"""Of X with gaps between its rows, which the kernel does not read: so many are copied first, in microseconds on a GPU.

PyTorch's own operator computes with a larger one, which cuBLAS reads as it lies.
"""


def before_activation(activation: str, gradient: Tensor, y: Tensor | None, z: Callable[[], Tensor]) -> Tensor:
    """The gradient before an activation from that behind it: by its result y, of gelu by its argument z."""
    aten = torch.ops.aten
    if activation == "none":
        return gradient
    if activation == "gelu":
        return aten.gelu_backward.default(gradient, z())
    if activation == "relu":
        return aten.threshold_backward.default(gradient, y, 0)
    slope = {"sigmoid": aten.sigmoid_backward.default, "tanh": aten.tanh_backward.default}[activation]
    return slope(gradient, y)


def options(accuracy: str, activation: str = "none") -> dict[str, str]:
    """The options that are not at their defaults: not every dtype has them."""
    given = {"accuracy": (accuracy, "fp32"), "activation": (activation, "none")}
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
    return axes | ({"batch": c.shape[0]} if c.dim() == 3 and c.shape[0] > 1 else {}) | options(accuracy)


def _gemm_posed(c: Tensor, a: Tensor, b: Tensor, alpha: float, accuracy: str) -> Posed:
    return Posed(_gemm_axes(a, c, accuracy), (a, b, c), {} if alpha == 1 else {"alpha": alpha})


def _gemm_pytorch(a: Tensor, b: Tensor, alpha: float, _accuracy: str) -> Tensor:
    c = torch.matmul(a, b)
    return c if alpha == 1 else c.mul_(alpha)


def _gemm_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - autograd names it
    a, b, ctx.alpha, ctx.accuracy = inputs
    ctx.save_for_backward(a, b)


def _gemm_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    gradient = gradient.contiguous()  # that of a sum is one number, expanded
    of_a = of_b = None
    if ctx.needs_input_grad[0]:
        of_a = GEMM.op(gradient, b.mT, ctx.alpha, ctx.accuracy)
        of_a = of_a.sum(0) if a.dim() < of_a.dim() else of_a
    if ctx.needs_input_grad[1] and b.dim() < gradient.dim():  # shared by the batch: one long product
        of_b = GEMM.op(a.flatten(0, 1).mT, gradient.flatten(0, 1), ctx.alpha, ctx.accuracy)
    elif ctx.needs_input_grad[1]:
        of_b = GEMM.op(a.mT, gradient, ctx.alpha, ctx.accuracy)
    return of_a, of_b, None, None


GEMM = Operator(
    name="gemm",
    schema='(Tensor a, Tensor b, float alpha=1.0, str accuracy="fp32") -> Tensor',
    kernel="gemm",
    result=_gemm_result,
    pose=_gemm_posed,
    pytorch=_gemm_pytorch,
    setup=_gemm_setup,
    backward=_gemm_backward,
)


def _into_result(c: Tensor, a: Tensor, b: Tensor, alpha: float, _beta: float, accuracy: str) -> Tensor:
    expected = _gemm_result(a, b, alpha, accuracy).shape
    check(c.shape == expected, "gemm_", lambda: f"c is {tuple(c.shape)}, and the product {tuple(expected)}")
    check(c.dtype == a.dtype, "gemm_", lambda: f"c is {c.dtype} and a is {a.dtype}")
    return c


def _into_posed(_output: Tensor, c: Tensor, a: Tensor, b: Tensor, alpha: float, beta: float, accuracy: str) -> Posed:
    numbers = {name: value for name, value in (("alpha", alpha), ("beta", beta)) if value != 1}
    if beta == 0:
        numbers.pop("beta")
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
    rows = x.reshape(-1, k)
    if not rows.is_contiguous() and rows.numel() <= COPIED_ELEMENTS:
        rows = rows.contiguous()
    return Posed(axes | options(accuracy, activation), (rows, w, bias, y.view(-1, n)), kept=kept)


def _linear_pytorch(x: Tensor, w: Tensor, b: Tensor | None, activation: str, _accuracy: str) -> Tensor:
    return ACTIVATIONS[activation](torch.nn.functional.linear(x, w, b)).contiguous()


def _linear_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, b, ctx.activation, ctx.accuracy = inputs
    ctx.save_for_backward(x, w, b, None if ctx.activation in {"none", "gelu"} else output)


def _linear_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    x, w, b, y = ctx.saved_tensors
    gradient = before_activation(ctx.activation, gradient, y, lambda: LINEAR.op(x, w, b, "none", ctx.accuracy))
    rows = gradient.contiguous().view(-1, w.shape[0])
    of_x = of_w = of_b = None
    if ctx.needs_input_grad[0]:
        of_x = GEMM.op(rows, w, 1.0, ctx.accuracy).reshape(x.shape)
    if ctx.needs_input_grad[1]:
        of_w = GEMM.op(rows.mT, x.reshape(-1, w.shape[1]), 1.0, ctx.accuracy)
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
    setup=_linear_setup,
    backward=_linear_backward,
)


def _gemv_result(a: Tensor, x: Tensor, _alpha: float) -> Tensor:
    check(a.dim() == 2 and x.dim() == 1, "gemv", lambda: f"{tuple(a.shape)} and {tuple(x.shape)} are no matrix, vector")
    check(a.shape[1] == x.shape[0], "gemv", lambda: f"a {tuple(a.shape)} has not as many columns as x has elements")
    check(a.dtype == x.dtype, "gemv", lambda: f"a is {a.dtype} and x is {x.dtype}")
    return a.new_empty(a.shape[0])


def _gemv_posed(y: Tensor, a: Tensor, x: Tensor, alpha: float) -> Posed:
    return Posed({"m": a.shape[0], "n": a.shape[1]}, (a, x, y), {} if alpha == 1 else {"alpha": alpha})


def _gemv_pytorch(a: Tensor, x: Tensor, alpha: float) -> Tensor:
    y = torch.mv(a, x)
    return y if alpha == 1 else y.mul_(alpha)


def _gemv_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - autograd names it
    a, x, ctx.alpha = inputs
    ctx.save_for_backward(a, x)


def _gemv_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    a, x = ctx.saved_tensors
    gradient = gradient.contiguous()
    of_a = torch.outer(gradient, x) * ctx.alpha if ctx.needs_input_grad[0] else None
    of_x = GEMV.op(a.mT, gradient, ctx.alpha) if ctx.needs_input_grad[1] else None
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
)


def gemm(a: Tensor, b: Tensor, *, alpha: float = 1.0, accuracy: str = "fp32") -> Tensor:
    """The product alpha a b of matrices or batches of them; a matrix beside a batch is shared by its products."""
    return GEMM(a, b, float(alpha), accuracy)


def gemm_(c: Tensor, a: Tensor, b: Tensor, *, alpha: float = 1.0, beta: float = 0.0, accuracy: str = "fp32") -> Tensor:
    """C, which becomes alpha a b + beta C; without gradients, as `torch.mm(out=)`."""
    GEMM_INTO(c, a, b, float(alpha), float(beta), accuracy)
    return c


def linear(
    x: Tensor, w: Tensor, b: Tensor | None = None, *, activation: str = "none", accuracy: str = "fp32"
) -> Tensor:
    """act(x Wᵀ + b) in one launch: `torch.nn.functional.linear` and none, relu, sigmoid, tanh or (exact) gelu."""
    return LINEAR(x, w, b, activation, accuracy)


def gemv(a: Tensor, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """The product alpha a x of a matrix and a vector."""
    return GEMV(a, x, float(alpha))
