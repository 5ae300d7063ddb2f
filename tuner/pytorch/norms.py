"""Normalisations of rows as operators: rms_norm, layer_norm, and both of a sum that is a result too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewright.tuner.pytorch.operator import Operator, check
from tilewright.tuner.pytorch.plans import Posed

EPS = 1e-5
"""PyTorch's default of layer_norm."""


def _empty(name: str, x: Tensor, *vectors: Tensor) -> Tensor:
    """What the result goes into; raises RuntimeError where the arguments do not go together."""
    check(x.dim() >= 1, name, lambda: "x has no dimension to normalise")
    shapes = ", ".join(str(tuple(one.shape)) for one in vectors)
    fit = all(one.dim() == 1 and one.shape[0] == x.shape[-1] for one in vectors)
    check(fit, name, lambda: f"x is {tuple(x.shape)}, and weight and bias {shapes}")
    alike = all(one.dtype == x.dtype for one in vectors)
    check(alike, name, lambda: f"x is {x.dtype}, and weight and bias {[one.dtype for one in vectors]}")
    return x.new_empty(x.shape)


def _sums(name: str, x: Tensor, r: Tensor, *vectors: Tensor) -> tuple[Tensor, Tensor]:
    check(x.shape == r.shape, name, lambda: f"x is {tuple(x.shape)}, and the residual {tuple(r.shape)}")
    check(x.dtype == r.dtype, name, lambda: f"x is {x.dtype}, and the residual {r.dtype}")
    return _empty(name, x, *vectors), x.new_empty(x.shape)


def _posed(eps: float, inputs: tuple[Tensor, ...], vectors: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> Posed:
    n = inputs[0].shape[-1]
    rows = [one.reshape(-1, n) for one in inputs]
    arrays = (*rows, *(one.contiguous() for one in vectors), *(one.view(-1, n) for one in outputs))
    return Posed({"m": rows[0].shape[0], "n": n}, arrays, {"eps": eps})


def _gradients(
    gradient: Tensor, s: Tensor, w: Tensor, eps: float, *, is_centred: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Those with respect to what is normalised, the weight and the bias; in float32 or what is wider.

    With d = s (less its mean), r = 1 / sqrt(mean of d² + eps), u = d r and g = the gradient times w, that of s is
    r (g - u mean(g u)), less the mean of it where the mean is taken off.
    """
    wide = torch.promote_types(s.dtype, torch.float32)
    gradient, d = gradient.to(wide), s.to(wide)
    if is_centred:
        d = d - d.mean(-1, keepdim=True)
    root = torch.rsqrt(d.square().mean(-1, keepdim=True) + eps)
    unit, g = d * root, gradient * w.to(wide)
    of_s = g - unit * (g * unit).mean(-1, keepdim=True)
    if is_centred:
        of_s = of_s - g.mean(-1, keepdim=True)
    rows = list(range(s.dim() - 1))
    of_w, of_b = gradient * unit, gradient
    summed = (of_w.sum(rows), of_b.sum(rows)) if rows else (of_w, of_b)
    return (of_s * root).to(s.dtype), summed[0].to(w.dtype), summed[1].to(w.dtype)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001 - autograd names it
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _setup_sum(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(output[1], *tensors[2:])


def _rms_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    x, w = ctx.saved_tensors
    of_x, of_w, _ = _gradients(gradient, x, w, ctx.eps, is_centred=False)
    return of_x, of_w, None


def _layer_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    x, w, _ = ctx.saved_tensors
    return *_gradients(gradient, x, w, ctx.eps, is_centred=True), None


def _add_rms_backward(ctx: Any, gradient: Tensor, of_sum: Tensor) -> tuple[Any, ...]:
    s, w = ctx.saved_tensors
    of_s, of_w, _ = _gradients(gradient, s, w, ctx.eps, is_centred=False)
    return of_s + of_sum, of_s + of_sum, of_w, None


def _add_layer_backward(ctx: Any, gradient: Tensor, of_sum: Tensor) -> tuple[Any, ...]:
    s, w, _ = ctx.saved_tensors
    of_s, of_w, of_b = _gradients(gradient, s, w, ctx.eps, is_centred=True)
    return of_s + of_sum, of_s + of_sum, of_w, of_b, None


def _rms(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return torch.nn.functional.rms_norm(x, w.shape, w, eps).contiguous()


def _layer(x: Tensor, w: Tensor, b: Tensor, eps: float) -> Tensor:
    return torch.nn.functional.layer_norm(x, w.shape, w, b, eps).contiguous()


def _add_rms(x: Tensor, r: Tensor, w: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    s = (x + r).contiguous()
    return _rms(s, w, eps), s


def _add_layer(x: Tensor, r: Tensor, w: Tensor, b: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    s = (x + r).contiguous()
    return _layer(s, w, b, eps), s


RMS_NORM = Operator(
    name="rms_norm",
    schema=f"(Tensor x, Tensor w, float eps={EPS}) -> Tensor",
    kernel="rms_norm",
    result=lambda x, w, _eps: _empty("rms_norm", x, w),
    pose=lambda y, x, w, eps: _posed(eps, (x,), (w,), (y,)),
    pytorch=_rms,
    setup=_setup,
    backward=_rms_backward,
    autocast="float32",
)

LAYER_NORM = Operator(
    name="layer_norm",
    schema=f"(Tensor x, Tensor w, Tensor b, float eps={EPS}) -> Tensor",
    kernel="layer_norm",
    result=lambda x, w, b, _eps: _empty("layer_norm", x, w, b),
    pose=lambda y, x, w, b, eps: _posed(eps, (x,), (w, b), (y,)),
    pytorch=_layer,
    setup=_setup,
    backward=_layer_backward,
    autocast="float32",
)

ADD_RMS_NORM = Operator(
    name="add_rms_norm",
    schema=f"(Tensor x, Tensor r, Tensor w, float eps={EPS}) -> (Tensor, Tensor)",
    kernel="add_rms_norm",
    result=lambda x, r, w, _eps: _sums("add_rms_norm", x, r, w),
    pose=lambda outputs, x, r, w, eps: _posed(eps, (x, r), (w,), outputs),
    pytorch=_add_rms,
    setup=_setup_sum,
    backward=_add_rms_backward,
    autocast="float32",
)

ADD_LAYER_NORM = Operator(
    name="add_layer_norm",
    schema=f"(Tensor x, Tensor r, Tensor w, Tensor b, float eps={EPS}) -> (Tensor, Tensor)",
    kernel="add_layer_norm",
    result=lambda x, r, w, b, _eps: _sums("add_layer_norm", x, r, w, b),
    pose=lambda outputs, x, r, w, b, eps: _posed(eps, (x, r), (w, b), outputs),
    pytorch=_add_layer,
    setup=_setup_sum,
    backward=_add_layer_backward,
    autocast="float32",
)


def rms_norm(x: Tensor, w: Tensor, eps: float = EPS) -> Tensor:
    """`torch.nn.functional.rms_norm`: x / sqrt(mean of x² + eps) w over the last dimension."""
    return RMS_NORM(x, w, float(eps))


def layer_norm(x: Tensor, w: Tensor, b: Tensor, eps: float = EPS) -> Tensor:
    """`torch.nn.functional.layer_norm` of the last dimension."""
    return LAYER_NORM(x, w, b, float(eps))


def add_rms_norm(x: Tensor, r: Tensor, w: Tensor, eps: float = EPS) -> tuple[Tensor, Tensor]:
    """`rms_norm` of x + r, and x + r, the new residual, in one launch."""
    y, s = ADD_RMS_NORM(x, r, w, float(eps))
    return y, s


def add_layer_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor, eps: float = EPS) -> tuple[Tensor, Tensor]:
    """`layer_norm` of x + r, and x + r, the new residual, in one launch."""
    y, s = ADD_LAYER_NORM(x, r, w, b, float(eps))
    return y, s
