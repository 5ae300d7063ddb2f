"""Outputs of a model: their tensors, and whether two runs of the same code differ."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tilewright.tuner.pytorch.acceleration.judgement.trees import Parts, apart

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}
"""The difference that two runs of the same code may have, whose sums atomics order: by the dtype of the output."""


def leaves(output: Any) -> list[Tensor]:
    """The tensors of an output, each once, in order; those of caches and other objects are among them."""
    parts = Parts()
    apart(output, parts, strict=False)
    return [one.detach() for one in parts.tensors]


def tolerance_of(output: Any) -> float:
    """The tolerance of the least precise tensor."""
    return max((TOLERANCES.get(one.dtype, 0.0) for one in leaves(output)), default=0.0)


def difference(output: Any, expected: Any) -> float:
    """The norm of the error over the norm of the expected output, for the worst tensor; infinite for an extra NaN."""
    found, known = leaves(output), leaves(expected)
    if len(found) != len(known):
        return math.inf
    return max((_of_tensor(*pair) for pair in zip(found, known, strict=True)), default=0.0)


def _of_tensor(output: Tensor, expected: Tensor) -> float:
    if output.shape != expected.shape or output.dtype != expected.dtype:
        return math.inf
    if not output.is_floating_point():
        return 0.0 if torch.equal(output, expected) else math.inf
    if torch.equal(output, expected):
        return 0.0
    exact = expected.double()
    size = float(exact.norm())
    off = float((output.double() - exact).norm())
    if not math.isfinite(off):
        return math.inf
    return off / size if size else math.inf
