"""The layers of first_calls.py: their sizes, drawn by a seed, and their calls by `tilewright.torch` and by PyTorch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from predictions.shapes import MODEL_LAYERS, model_layers, random_shapes
from torch.nn import functional as F  # noqa: N812 - its usual name

import tilewright.torch as tw
from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.pytorch.operator import Operator
from tilewright.tuner.pytorch.operators.attention import ATTENTION
from tilewright.tuner.pytorch.operators.convolution import CONV2D
from tilewright.tuner.pytorch.operators.gated import LINEAR_GATED
from tilewright.tuner.pytorch.operators.norms import EPS, LAYER_NORM, RMS_NORM
from tilewright.tuner.pytorch.operators.products import GEMV, LINEAR
from tilewright.tuner.pytorch.operators.softmax import SOFTMAX
from tilewright.tuner.pytorch.precision import ALLOWED

Shape = dict[str, int]
HIDDEN = (768, 1024, 2048, 3584, 4096, 5120, 8192)
MOST_ELEMENTS = 1 << 26


@dataclass(frozen=True)
class Layer:
    """One call: what the operator itself takes, and the same by both sides. `shown`: how `status` begins its line."""

    operator: Operator
    arguments: tuple[Any, ...]
    ours: Callable[[], Any]
    library: Callable[[], Any]
    shown: str
    dtype: str


def shapes(kernel: str, count: int, seed: int) -> list[Shape]:
    """So many, the same for the same seed."""
    generator = random.Random(f"{kernel} {seed}")
    if kernel == "linear":
        return model_layers(count, seed)
    if kernel == "conv2d":
        return random_shapes(catalogue().get(kernel), count, seed=seed)
    return [_shape(kernel, generator) for _ in range(count)]


def _shape(kernel: str, generator: random.Random) -> Shape:
    n, k = generator.choice(MODEL_LAYERS)
    if kernel == "gemv":
        return {"m": n, "n": k}
    m = round(2 ** generator.uniform(0, 12))
    if kernel == "linear_gated":
        return {"m": m, "n": n, "k": k}
    if kernel == "attention":
        heads, depth = generator.choice((8, 12, 16, 32)), generator.choice((32, 64, 128))
        queries = round(2 ** generator.uniform(6, 11))
        return {"batch": generator.choice((1, 2, 4, 8)), "heads": heads, "queries": queries, "depth": depth}
    columns = generator.choice(HIDDEN) if kernel != "softmax" else 8 * round(2 ** generator.uniform(3, 12))
    return {"m": min(m * 4, MOST_ELEMENTS // columns), "n": columns}


def layer(kernel: str, shape: Shape, dtype: str) -> Layer:
    """The layer with random numbers on the GPU."""

    def drawn(*extents: int) -> torch.Tensor:
        return torch.randn(extents, device="cuda", dtype=getattr(torch, dtype))

    operator, arguments, ours, library = SIDES[kernel](shape, drawn)
    shown = ", ".join(str(tuple(one.shape)) for one in arguments if isinstance(one, torch.Tensor))
    return Layer(operator, arguments, ours, library, shown, dtype)


Drawn = Callable[..., torch.Tensor]
Sides = tuple[Operator, tuple[Any, ...], Callable[[], Any], Callable[[], Any]]


def _linear(s: Shape, drawn: Drawn) -> Sides:
    x, w = drawn(s["m"], s["k"]), drawn(s["n"], s["k"])
    return LINEAR, (x, w, None, "none", ALLOWED), lambda: tw.linear(x, w), lambda: F.linear(x, w)


def _linear_gated(s: Shape, drawn: Drawn) -> Sides:
    x, w = drawn(s["m"], s["k"]), drawn(2 * s["n"], s["k"])
    return LINEAR_GATED, (x, w, "silu"), lambda: tw.linear_gated(x, w), lambda: _gated(x, w)


def _gemv(s: Shape, drawn: Drawn) -> Sides:
    a, x = drawn(s["m"], s["n"]), drawn(s["n"])
    return GEMV, (a, x, 1.0), lambda: tw.gemv(a, x), lambda: torch.mv(a, x)


def _attention(s: Shape, drawn: Drawn) -> Sides:
    q, k, v = (drawn(s["batch"], s["heads"], s["queries"], s["depth"]) for _ in range(3))
    own, theirs = tw.scaled_dot_product_attention, F.scaled_dot_product_attention
    return ATTENTION, (q, k, v, None, False, None, False), lambda: own(q, k, v), lambda: theirs(q, k, v)


def _conv2d(s: Shape, drawn: Drawn) -> Sides:
    x = drawn(s["batch"], s["channels"], s["height"], s["width"])
    w = drawn(s["filters"], s["channels"], s["kernel_h"], s["kernel_w"])
    stride, padding = s["stride"], s["padding"]
    sizes = [stride, stride], [padding, padding], [1, 1], 1
    own, theirs = partial(tw.conv2d, x, w, None, stride, padding), partial(F.conv2d, x, w, None, stride, padding)
    return CONV2D, (x, w, None, *sizes, "none", ALLOWED), own, theirs


def _softmax(s: Shape, drawn: Drawn) -> Sides:
    x = drawn(s["m"], s["n"])
    return SOFTMAX, (x, -1), lambda: tw.softmax(x), lambda: torch.softmax(x, -1)


def _rms_norm(s: Shape, drawn: Drawn) -> Sides:
    x, w = drawn(s["m"], s["n"]), drawn(s["n"])
    return RMS_NORM, (x, w, None), lambda: tw.rms_norm(x, w), lambda: F.rms_norm(x, w.shape, w)


def _layer_norm(s: Shape, drawn: Drawn) -> Sides:
    x, w, b = drawn(s["m"], s["n"]), drawn(s["n"]), drawn(s["n"])
    return LAYER_NORM, (x, w, b, EPS), lambda: tw.layer_norm(x, w, b), lambda: F.layer_norm(x, w.shape, w, b)


SIDES: dict[str, Callable[[Shape, Drawn], Sides]] = {
    "linear": _linear,
    "conv2d": _conv2d,
    "linear_gated": _linear_gated,
    "gemv": _gemv,
    "softmax": _softmax,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "attention": _attention,
}
"""The operator, its arguments, and the call by both, of each kernel."""


def _gated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    gate, up = F.linear(x, w).chunk(2, -1)
    return F.silu(gate) * up
