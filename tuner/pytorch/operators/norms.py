"""Normalisations of rows as operators: rms_norm, layer_norm, and both of a sum that is a result too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from tilewright.tuner.pytorch.operator import Operator, check
from tilewright.tuner.pytorch.operators.products import as_rows
from tilewright.tuner.pytorch.tuned_call import Posed

EPS = 1e-5
"""PyTorch's default of layer_norm."""


def _empty(name: str, x: Tensor, *vectors: Tensor | None) -> Tensor:
    """An empty result; raises RuntimeError where the arguments do not go together."""
    check(x.dim() >= 1, name, lambda: "x has no dimension to normalise")
    given = [one for one in vectors if one is not None]
    check(len(given) == len(vectors), name, lambda: "the kernel takes a weight, and a bias where there is one")
    fit = all(one.dim() == 1 and one.shape[0] == x.shape[-1] for one in given)
    check(fit, name, lambda: f"x is {tuple(x.shape)}, and weight and bias {[tuple(one.shape) for one in given]}")
    alike = all(one.dtype == x.dtype for one in given)
    check(alike, name, lambda: f"x is {x.dtype}, and weight and bias {[one.dtype for one in given]}")
    return x.new_empty(x.shape)


def _sums(name: str, x: Tensor, r: Tensor, *vectors: Tensor | None) -> tuple[Tensor, Tensor]:
    check(x.shape == r.shape, name, lambda: f"x is {tuple(x.shape)}, and the residual {tuple(r.shape)}")
    check(x.dtype == r.dtype, name, lambda: f"x is {x.dtype}, and the residual {r.dtype}")
    return _empty(name, x, *vectors), x.new_empty(x.shape)


def _posed(
    eps: float | None, inputs: tuple[Tensor, ...], vectors: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
) -> Posed:
    x = inputs[0]
    arrays = (*map(as_rows, inputs), *(one.contiguous() for one in vectors), *map(as_rows, outputs))
    number = default_eps(x.dtype, x.device.type) if eps is None else eps
    return Posed({"m": math.prod(x.shape[:-1]), "n": x.shape[-1]}, arrays, {"eps": number})


@cache
def default_eps(dtype: torch.dtype, device_type: str) -> float:
    """The eps that the installed PyTorch's `rms_norm` takes where none is given: a dtype's; versions differ in which.

    For a row x that is small beside it, the result is x / sqrt(eps).
    """
    candidates = [float(torch.finfo(one).eps) for one in (dtype, torch.float32, torch.float64)]
    with torch.no_grad():
        x = torch.full((1, 8), 1e-6 if dtype is torch.float16 else 1e-10, dtype=dtype, device=device_type)
        found = (x.double() / torch.nn.functional.rms_norm(x, (8,)).double()).square().mean().item()
    return min(candidates, key=lambda one: abs(math.log(one / found)))


def _shape(x: Tensor, *vectors: Tensor | None) -> Sequence[int]:
    """The shape that is normalised: that of the vectors, or without any the last dimension."""
    return next((one.shape for one in vectors if one is not None), x.shape[-1:])


def _rms(x: Tensor, w: Tensor | None, eps: float | None) -> Tensor:
    return torch.nn.functional.rms_norm(x, _shape(x, w), w, eps).contiguous()


def _layer(x: Tensor, w: Tensor | None, b: Tensor | None, eps: float = 1e-5) -> Tensor:
    return torch.nn.functional.layer_norm(x, _shape(x, w, b), w, b, eps).contiguous()


def _add_rms(x: Tensor, r: Tensor, w: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    s = (x + r).contiguous()
    return _rms(s, w, eps), s


def _add_layer(x: Tensor, r: Tensor, w: Tensor | None, b: Tensor | None, eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    s = (x + r).contiguous()
    return _layer(s, w, b, eps), s


RMS_NORM = Operator(
    name="rms_norm",
    schema="(Tensor x, Tensor? w, float? eps=None) -> Tensor",
    kernel="rms_norm",
    result=lambda x, w, _eps: _empty("rms_norm", x, w),
    pose=lambda y, x, w, eps: _posed(eps, (x,), (w,), (y,)),
    pytorch=_rms,
    autocast=("rms_norm", "float32"),
)

LAYER_NORM = Operator(
    name="layer_norm",
    schema=f"(Tensor x, Tensor? w, Tensor? b, float eps={EPS}) -> Tensor",
    kernel="layer_norm",
    result=lambda x, w, b, _eps: _empty("layer_norm", x, w, b),
    pose=lambda y, x, w, b, eps: _posed(eps, (x,), (w, b), (y,)),
    pytorch=_layer,
    autocast=("layer_norm", "float32"),
)

ADD_RMS_NORM = Operator(
    name="add_rms_norm",
    schema="(Tensor x, Tensor r, Tensor? w, float? eps=None) -> (Tensor, Tensor)",
    kernel="add_rms_norm",
    result=lambda x, r, w, _eps: _sums("add_rms_norm", x, r, w),
    pose=lambda outputs, x, r, w, eps: _posed(eps, (x, r), (w,), outputs),
    pytorch=_add_rms,
    autocast=("rms_norm", "partly"),
)

ADD_LAYER_NORM = Operator(
    name="add_layer_norm",
    schema=f"(Tensor x, Tensor r, Tensor? w, Tensor? b, float eps={EPS}) -> (Tensor, Tensor)",
    kernel="add_layer_norm",
    result=lambda x, r, w, b, _eps: _sums("add_layer_norm", x, r, w, b),
    pose=lambda outputs, x, r, w, b, eps: _posed(eps, (x, r), (w, b), outputs),
    pytorch=_add_layer,
    autocast=("layer_norm", "partly"),
)


def rms_norm(input: Tensor, weight: Tensor | None = None, eps: float | None = None) -> Tensor:  # noqa: A002 - PyTorch's name
    """`torch.nn.functional.rms_norm` over the weight's dimensions, or without one over the last."""
    return RMS_NORM(input, weight, _number(eps))


def layer_norm(
    input: Tensor,  # noqa: A002 - PyTorch's name
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = EPS,
) -> Tensor:
    """`torch.nn.functional.layer_norm` over the weight's dimensions, or without one over the last."""
    return LAYER_NORM(input, weight, bias, float(eps))


def add_rms_norm(x: Tensor, r: Tensor, weight: Tensor | None = None, eps: float | None = None) -> tuple[Tensor, Tensor]:
    """`rms_norm` of x + r, and x + r, the new residual, in one launch."""
    y, s = ADD_RMS_NORM(x, r, weight, _number(eps))
    return y, s


def add_layer_norm(
    x: Tensor, r: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = EPS
) -> tuple[Tensor, Tensor]:
    """`layer_norm` of x + r, and x + r, the new residual, in one launch."""
    y, s = ADD_LAYER_NORM(x, r, weight, bias, float(eps))
    return y, s


def _number(eps: float | None) -> float | None:
    return None if eps is None else float(eps)
