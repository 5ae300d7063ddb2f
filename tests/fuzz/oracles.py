"""What kernels must compute, by PyTorch in float64, and how far off they may be. Shares no code with verification."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tilewright.kernels.problem import Problem

Tensors = Mapping[str, Tensor]
Scalars = Mapping[str, float]

ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
TF32_STEP = 2.0**-10
"""Both factors are cut off to 10 bits behind the leading one: each loses up to this share of itself."""

CUT_OFF = 2.0**-27
"""Of a sum's size, for each term: tensor cores align 16 products to the largest and cut off what is below float32's."""

BOUNDS = 4.0
"""How many bounds an error may reach; roundings of a sum are as good as random, so that its bound grows with the root
of its terms."""

TINY = 2.0**-126
"""Below it an activation in float32 may be 0."""

STEEPEST = 1.13
"""The largest slope of all activations, which is that of gelu."""

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": lambda z: 0.5 * z * torch.special.erfc(-math.sqrt(0.5) * z),  # functional.gelu cancels below -6
    "silu": lambda z: z * torch.sigmoid(z),
}


@dataclass(frozen=True)
class Right:
    """The right value of an output and the error that it may have; `size`: of all terms of the sum behind it, where
    that may overflow; `is_whole`: it is a sum of whole numbers, exact while they are small.
    """

    value: Tensor
    bound: Tensor
    size: Tensor
    is_whole: bool = False


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums of such numbers are made in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _sum_bound(
    size: Tensor, terms: int, dtype: torch.dtype, *, coarse: Tensor | None = None, is_tf32: bool = False
) -> Tensor:
    """The error of sums of so many products whose sizes add up to `size`.

    `coarse`: the same with subnormal factors taken as the least normal number, `size` where none can be subnormal.
    Tensor cores do not normalise them: what they cut off counts from that number's products.
    """
    wide = sum_dtype(dtype)
    least = terms * torch.finfo(wide).smallest_normal * 2 * ROUNDOFF[wide]
    cut_off = (terms * CUT_OFF if wide == torch.float32 else 0.0) + 2 * TF32_STEP * is_tf32
    return size * math.sqrt(terms) * ROUNDOFF[wide] + (size if coarse is None else coarse) * cut_off + least


def _finite(numbers: Tensor) -> Tensor:
    return numbers.abs().masked_fill(~numbers.isfinite(), 0.0)


def _coarse(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Their sizes, at least the dtype's least normal number where they are not 0."""
    sizes = _finite(numbers)
    return torch.where(sizes > 0, sizes.clamp(min=torch.finfo(dtype).smallest_normal), 0.0)


def _is_tf32(problem: Problem) -> bool:
    return problem.options.get("accuracy") == "tf32"


def _is_activated(problem: Problem) -> bool:
    return problem.options.get("activation", "none") != "none"


def _activated(problem: Problem, z: Tensor, bound: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The activation of a sum: its slope, and the roundings of the function and of its argument."""
    if not _is_activated(problem):
        return z, bound
    value, wide = FUNCTIONS[str(problem.options["activation"])](z), sum_dtype(dtype)
    own = ROUNDOFF[wide] * (12 * value.abs() + 2 * z.abs()) + torch.finfo(wide).smallest_normal
    return value, STEEPEST * bound + torch.where(z.isfinite(), own, torch.finfo(wide).smallest_normal)


def gemm(problem: Problem, tensors: Tensors, scalars: Scalars) -> dict[str, Right]:
    """The product alpha op(A) op(B) + beta C."""
    a, b = tensors["A"].double(), tensors["B"].double()
    a = a.mT if problem.options["trans_a"] else a
    b = b.mT if problem.options["trans_b"] else b
    coarse = _coarse(a, tensors["A"].dtype) @ _coarse(b, tensors["B"].dtype)
    right = _with_c(problem, (a @ b, _finite(a) @ _finite(b), coarse), tensors["C"], scalars, a.shape[-1])
    return {"C": right}


def gemv(problem: Problem, tensors: Tensors, scalars: Scalars) -> dict[str, Right]:
    """The product alpha op(A) x + beta y."""
    a, x = tensors["A"].double(), tensors["x"].double()
    a = a.mT if problem.options["trans_a"] else a
    size = _finite(a) @ _finite(x)
    right = _with_c(problem, (a @ x, size, size), tensors["y"], scalars, a.shape[-1])
    return {"y": right}


def _with_c(problem: Problem, sums: tuple[Tensor, Tensor, Tensor], c: Tensor, scalars: Scalars, terms: int) -> Right:
    """Alpha times the first sum plus beta C; the other sums are of sizes, as they are and coarse."""
    dtype, alpha = getattr(torch, problem.dtype), scalars["alpha"]
    value, size, coarse = alpha * sums[0], abs(alpha) * sums[1], abs(alpha) * sums[2]
    if not problem.options["beta_zero"]:
        value, size = value + scalars["beta"] * c.double(), size + abs(scalars["beta"]) * _finite(c.double())
    bound = _sum_bound(size, terms + 2, dtype, coarse=coarse, is_tf32=_is_tf32(problem))
    return Right(value, bound, size, is_whole=True)


def linear(problem: Problem, tensors: Tensors, _scalars: Scalars) -> dict[str, Right]:
    """The layer act(X Wᵀ + b)."""
    x, w, b = (tensors[name].double() for name in ("X", "W", "b"))
    z, size = x @ w.mT + b, _finite(x) @ _finite(w).mT + _finite(b)
    dtype = tensors["X"].dtype
    coarse = _coarse(x, dtype) @ _coarse(w, dtype).mT
    bound = _sum_bound(size, x.shape[-1] + 1, dtype, coarse=coarse, is_tf32=_is_tf32(problem))
    value, bound = _activated(problem, z, bound, dtype)
    return {"Y": Right(value, bound, size, is_whole=not _is_activated(problem))}


def linear_gated(problem: Problem, tensors: Tensors, _scalars: Scalars) -> dict[str, Right]:
    """The layer act(X Gᵀ) * (X Uᵀ)."""
    x, w, dtype = tensors["X"].double(), tensors["W"].double(), tensors["X"].dtype
    sums, size = x @ w.mT, _finite(x) @ _finite(w).mT
    gate, other = sums.chunk(2, -1)
    coarse = _coarse(x, dtype) @ _coarse(w, dtype).mT
    gate_bound, other_bound = _sum_bound(size, x.shape[-1], dtype, coarse=coarse).chunk(2, -1)
    f, f_bound = _activated(problem, gate, gate_bound, dtype)
    value = f * other
    bound = f_bound * (other.abs() + BOUNDS * other_bound) + f.abs() * other_bound + ROUNDOFF[torch.float32] * value
    sizes = size.chunk(2, -1)
    is_open = other.isinf() & (f.abs() < TINY)  # times infinity: the kernel's f may be 0
    size = sizes[0] + sizes[1] + (sizes[0] * sizes[1])
    return {"Y": Right(value, bound.abs(), size.masked_fill(is_open, math.inf))}


def linear_quantized(problem: Problem, tensors: Tensors, _scalars: Scalars) -> dict[str, Right]:
    """The product of X and the numbers that whole numbers W and scales S stand for."""
    stored, scales = tensors["W"], tensors["S"].double()
    n, k = problem.shape["n"], problem.shape["k"]
    if problem.options["weights"] != "int8":
        stored = torch.stack((stored % 16, stored // 16), -1)
    groups = scales.shape[1]
    whole = stored.double().reshape(n, groups, k // groups)
    if problem.options["weights"] == "int4_zeros":
        weights = (whole - scales[..., 1:]) * scales[..., :1]
    else:
        weights = (whole - (8.0 if problem.options["weights"] == "int4" else 0.0)) * scales[..., None]
    x, w = tensors["X"].double(), weights.reshape(n, k)
    size, dtype = _finite(x) @ _finite(w).mT, tensors["X"].dtype
    coarse = _coarse(x, dtype) @ _coarse(w, dtype).mT
    return {"Y": Right(x @ w.mT, _sum_bound(size, k + groups, dtype, coarse=coarse), size)}


def conv2d(problem: Problem, tensors: Tensors, _scalars: Scalars) -> dict[str, Right]:
    """The layer act(conv(X, W) + b)."""
    shape, is_nhwc = problem.shape, problem.options["layout"] == "nhwc"
    x, w, b = (tensors[name].double() for name in ("X", "W", "b"))
    is_depthwise = bool(problem.options["depthwise"])
    if is_nhwc:
        x = x.permute(0, 3, 1, 2)
    w = w.reshape(-1, 1, *w.shape[-2:]) if is_depthwise else w.permute(0, 3, 1, 2) if is_nhwc else w
    # Zeros that are there, so that times infinity they are NaN: some of PyTorch's kernels pass over what is not.
    x = functional.pad(x, (shape["padding_w"], shape["padding_w"], shape["padding"], shape["padding"]))
    ways = {
        "stride": (shape["stride"], shape["stride_w"]),
        "dilation": (shape["dilation"], shape["dilation_w"]),
        "groups": shape["channels"] if is_depthwise else 1,
    }
    dtype = tensors["X"].dtype
    z, size = functional.conv2d(x, w, b, **ways), functional.conv2d(_finite(x), _finite(w), _finite(b), **ways)
    coarse = functional.conv2d(_coarse(x, dtype), _coarse(w, dtype), **ways)
    if is_nhwc:
        z, size, coarse = (one.permute(0, 2, 3, 1) for one in (z, size, coarse))
    terms = shape["kernel_h"] * shape["kernel_w"] * w.shape[1] + 1
    bound = _sum_bound(size, terms, dtype, coarse=coarse, is_tf32=_is_tf32(problem))
    value, bound = _activated(problem, z, bound, dtype)
    return {"Y": Right(value, bound, size, is_whole=not _is_activated(problem))}


def softmax(_problem: Problem, tensors: Tensors, _scalars: Scalars) -> dict[str, Right]:
    """The softmax of each row."""
    return {"Y": _softmax(tensors["X"].double(), tensors["X"].dtype)}


def _softmax(x: Tensor, dtype: torch.dtype, argument_bound: Tensor | None = None) -> Right:
    value, wide = torch.softmax(x, -1), sum_dtype(dtype)
    distance = (x.amax(-1, keepdim=True) - x).nan_to_num(0.0, 0.0, 0.0).clamp(max=800.0)
    off = distance * ROUNDOFF[wide] + (0.0 if argument_bound is None else argument_bound)
    relative = off + (value * off).sum(-1, keepdim=True).nan_to_num(0.0)
    relative = relative + ROUNDOFF[wide] * (math.sqrt(x.shape[-1]) + 14)
    bound = value.nan_to_num(0.0) * relative + 2 * torch.finfo(wide).smallest_normal
    return Right(value, bound, value.nan_to_num(0.0))


def classifier(_problem: Problem, tensors: Tensors, _scalars: Scalars) -> dict[str, Right]:
    """The network softmax(relu(X W1ᵀ + b1) W2ᵀ + b2)."""
    x, w1, b1, w2, b2 = (tensors[name].double() for name in ("X", "W1", "b1", "W2", "b2"))
    dtype = tensors["X"].dtype
    hidden = torch.relu(x @ w1.mT + b1)
    hidden_bound = _sum_bound(_finite(x) @ _finite(w1).mT + _finite(b1), x.shape[-1] + 1, dtype)
    size = _finite(hidden) @ _finite(w2).mT + _finite(b2)
    own = _sum_bound(size, hidden.shape[-1] + 1, dtype) + hidden_bound @ _finite(w2).mT
    right = _softmax(hidden @ w2.mT + b2, dtype, own)
    return {"Y": Right(right.value, right.bound, right.value.nan_to_num(0.0) + size)}


def norm(_problem: Problem, tensors: Tensors, scalars: Scalars) -> dict[str, Right]:
    """Rows over their root mean square, or with b their distance from the mean over their deviation; S = X + R first.

    What is normalised is S as it is stored.
    """
    stored, dtype, found = tensors["X"], tensors["X"].dtype, {}
    wide = sum_dtype(dtype)
    u, least = ROUNDOFF[wide], torch.finfo(wide).smallest_normal
    if "R" in tensors:
        exact = tensors["X"].double() + tensors["R"].double()
        size = _finite(tensors["X"].double()) + _finite(tensors["R"].double())
        found["S"] = Right(exact, u * size, size)
        stored = tensors["X"] + tensors["R"]
    s, w = stored.double(), tensors["w"].double()
    root, mean = math.sqrt(s.shape[-1]), torch.zeros_like(s[:, :1])
    if "b" in tensors:
        mean = s.mean(-1, keepdim=True)
    distance = s - mean
    scale = 1 / (distance.square().mean(-1, keepdim=True) + scalars["eps"]).sqrt()
    value = distance * scale * w
    bound = value.abs() * u * (root + 8)
    if "b" in tensors:
        lost = u * (root * s.abs().mean(-1, keepdim=True) + distance.abs())
        bound = bound + w.abs() * scale * lost + value.abs() * (lost.amax(-1, keepdim=True) * scale).square()
        value = value + tensors["b"].double()
        bound = bound + u * (tensors["b"].double().abs() + value.abs())
    size = _finite(s).square().sum(-1, keepdim=True) + _finite(value)
    return found | {"Y": Right(value, bound.nan_to_num(0.0) + least, size)}


ORACLES: dict[str, Callable[[Problem, Tensors, Scalars], dict[str, Right]]] = {
    "gemm": gemm,
    "gemv": gemv,
    "linear": linear,
    "linear_gated": linear_gated,
    "linear_quantized": linear_quantized,
    "conv2d": conv2d,
    "softmax": softmax,
    "classifier": classifier,
    "rms_norm": norm,
    "layer_norm": norm,
    "add_rms_norm": norm,
    "add_layer_norm": norm,
}


@dataclass(frozen=True)
class Findings:
    """How many elements were judged and are wrong, the largest error in bounds, and the first wrong element."""

    judged: int
    wrong: int
    worst: float
    first: str = ""


def judged(out: Tensor, right: Right, dtype: torch.dtype, *, is_whole: bool) -> Findings:
    """The output `out` of a problem in `dtype` beside what is right.

    Sums that may overflow on the way are not judged. Where float64 says infinity or NaN, only that is right.
    """
    got, value, stored = out.double(), right.value, out.dtype
    wide, limits = sum_dtype(dtype), torch.finfo(stored)
    may_overflow = right.size > torch.finfo(wide).max / 16
    bound, rounding = right.bound.nan_to_num(0.0), torch.zeros_like(value)
    is_narrow = stored != wide
    if is_narrow:
        rounding = ROUNDOFF[stored] * value.abs().clamp(min=limits.smallest_normal).nan_to_num(0.0, 0.0, 0.0)
    if is_whole and right.is_whole:
        exact = right.size < 2.0**24
        bound = torch.where(exact, 0.0, bound)
        rounding = torch.where(exact, (value.to(stored).double() - value).abs(), rounding)
    error = ((got - value).abs() - rounding).clamp(min=0.0)
    ratio = torch.where(error == 0, 0.0, error / bound)
    edge = limits.max + ROUNDOFF[stored] * 2.0 ** (math.frexp(limits.max)[1] - 1)  # what rounds to infinity
    overflows = got.isinf() & (got * value > 0) & (value.abs() + BOUNDS * bound >= edge) & is_narrow
    ratio = torch.where(got.isfinite(), ratio, math.inf).masked_fill(overflows, 0.0)
    same = (got == value) | (got.isnan() & value.isnan())
    ratio = torch.where(value.isfinite(), ratio, torch.where(same, 0.0, math.inf))
    ratio = ratio.masked_fill(may_overflow, 0.0)
    is_wrong = ~(ratio <= BOUNDS)
    wrong = int(is_wrong.sum())
    first = ""
    if wrong:
        where = tuple(int(i) for i in is_wrong.nonzero()[0])
        first = f"{wrong} of {got.numel()}, first {where}: {float(got[where]):.9g} for {float(value[where]):.9g}"
    finite = ratio[ratio.isfinite()]
    worst = math.inf if finite.numel() < ratio.numel() else float(finite.max()) if finite.numel() else 0.0
    return Findings(got.numel() - int(may_overflow.sum()), wrong, worst, first)
