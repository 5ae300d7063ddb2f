"""The standard for an output: its error and that of PyTorch's own, both from the same model in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilewright.tuner.pytorch.acceleration.judgement import outputs
from tilewright.tuner.pytorch.acceleration.judgement.exact import (
    LOWER,
    PARTS,
    InParts,
    computed_in_double,
)
from tilewright.tuner.pytorch.precision import without_tf32

MARGIN = 1.5
"""The allowed multiple of PyTorch's own error: two orders of summation differ by as much."""

ALONE = 4.0
"""The same for a single operator: it finds wrong results; the whole model decides what is accurate enough."""

ROUNDOFFS = 4
"""The roundoffs of the dtype that are allowed where PyTorch's own error is less."""

HUGE = 1e30
"""The magnitude beyond which a number stands for minus infinity in a mask, and has to be equal."""


class Error(NamedTuple):
    """Norms of a difference: of the whole tensor over the tensor's, of the largest row over that of a usual row.

    Rows are those of the last axis, and a usual one has their mean square.
    """

    whole: float
    row: float

    def __str__(self) -> str:
        return f"{self.whole:.2g} (largest row {self.row:.2g})"


NONE, INFINITE = Error(0.0, 0.0), Error(math.inf, math.inf)


class Verdict(NamedTuple):
    """The error of an output's worst tensor, the error of PyTorch's own, and what is allowed."""

    error: Error
    eager: Error
    allowed: Error

    @property
    def is_right(self) -> bool:
        """Whether the output's errors are at most the allowed ones."""
        return self.error.whole <= self.allowed.whole and self.error.row <= self.allowed.row

    @property
    def excess(self) -> float:
        """The error over what is allowed; at most 1 where the output is right."""
        pairs = zip(self.error, self.allowed, strict=True)
        return max(0.0 if error <= 0 else math.inf if allowed <= 0 else error / allowed for error, allowed in pairs)

    def __str__(self) -> str:
        """The three numbers, for a reason."""
        allowed = f"{self.allowed.whole:.2g}" if math.isinf(self.allowed.row) else str(self.allowed)
        return f"off by {self.error}, PyTorch's own by {self.eager}, and {allowed} is allowed"


@dataclass(frozen=True)
class Standard:
    """PyTorch's own output, what errors are taken from, PyTorch's own errors, and the tolerance that a caller gave.

    `measure`: what errors are taken from, in words. `margin`: without a tolerance, so many of PyTorch's own errors are
    allowed. `eager` is without TF32, `as_set` with it where the program allows it (by default PyTorch's convolutions).
    """

    expected: Sequence[Tensor]
    exact: Sequence[Tensor]
    eager: Sequence[Error]
    tolerance: float | None = None
    measure: str = "itself in float64"
    margin: float = MARGIN
    as_set: Sequence[Error] = ()

    @classmethod
    def of(
        cls,
        run: Callable[[Any], Any],
        model: nn.Module | None = None,
        tolerance: float | None = None,
        margin: float = MARGIN,
    ) -> Standard:
        """The standard of `run(model)`; TF32 in PyTorch's own products widens nothing."""
        expected = outputs.leaves(run(model))
        with without_tf32() as changes:
            is_rounded = changes and any(one.is_cuda for one in expected)
            own = outputs.leaves(run(model)) if is_rounded else expected
            exact = _exact(run, model, own)
            if exact is not None:
                errors = _errors(own, exact, own)
                if all(error.whole <= _sane(one) for error, one in zip(errors, own, strict=True)):
                    as_set = _errors(expected, exact, own) if is_rounded else ()
                    return cls(expected, exact, errors, tolerance, margin=margin, as_set=as_set)
            as_set = _errors(expected, own, own) if is_rounded else ()
            return cls(expected, own, _reordered(run, model, own), tolerance, "PyTorch's own", margin, as_set)

    @property
    def of_program(self) -> Standard:
        """The standard of the whole model as the program runs it: operators that stay PyTorch's may compute in TF32."""
        if not self.as_set:
            return self
        larger = zip(self.eager, self.as_set, strict=True)
        return replace(self, eager=[Error(*map(max, *pair)) for pair in larger])

    def verdict(self, output: Any) -> Verdict:
        """The verdict on an output."""
        found = outputs.leaves(output)
        if len(found) != len(self.expected):
            return Verdict(INFINITE, NONE, self._allowed(None, NONE))
        errors = _errors(found, self.exact, self.expected)
        rows = zip(errors, self.eager, self.expected, strict=True)
        verdicts = [Verdict(error, eager, self._allowed(one, eager)) for error, eager, one in rows]
        return max(verdicts, key=lambda one: one.excess, default=Verdict(NONE, NONE, self._allowed(None, NONE)))

    def _allowed(self, expected: Tensor | None, eager: Error) -> Error:
        if self.tolerance is not None:
            return Error(self.tolerance, math.inf)
        least = (
            ROUNDOFFS * torch.finfo(expected.dtype).eps / 2 if expected is not None and _has_errors(expected) else 0.0
        )
        return Error(max(self.margin * eager.whole, least), max(self.margin * eager.row, least))


def _exact(run: Callable[[Any], Any], model: nn.Module | None, expected: Sequence[Tensor]) -> list[Tensor] | None:
    """The output in float64; None where that fails, or is no more exact."""
    if any(one.dtype == torch.float64 for one in expected) or not any(one.dtype in LOWER for one in expected):
        return None
    try:
        exact = outputs.leaves(computed_in_double(run, model))
    except Exception:  # noqa: BLE001 - somebody else's code may not do with another dtype, or memory not suffice
        return None
    return exact if [one.shape for one in exact] == [one.shape for one in expected] else None


def _has_errors(one: Tensor) -> bool:
    return bool(one.is_floating_point() or one.is_complex())


def _sane(one: Tensor) -> float:
    """The error allowed where both computed the same: half of the dtype's digits. A router may choose otherwise."""
    return math.sqrt(torch.finfo(one.dtype).eps) if one.is_floating_point() else 0.0


def _reordered(run: Callable[[Any], Any], model: nn.Module | None, own: Sequence[Tensor]) -> list[Error]:
    """The largest difference between the output and itself with the k of every product summed in parts."""
    largest = [NONE] * len(own)
    for count in PARTS:
        # As above, code may fail: then the roundoffs are left.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), InParts(count), suppress(Exception):
            pairs = zip(largest, _errors(outputs.leaves(run(model)), own, own), strict=True)
            largest = [Error(*map(max, before, error)) for before, error in pairs]
    return [one if math.isfinite(one.whole) else NONE for one in largest]


def _errors(found: Sequence[Tensor], exact: Sequence[Tensor], expected: Sequence[Tensor]) -> list[Error]:
    return [_error(*three) for three in zip(found, exact, expected, strict=True)]


def _error(found: Tensor, exact: Tensor, expected: Tensor) -> Error:
    """The error; infinite where shape or dtype differ, or numbers that are not finite are not the same."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return INFINITE
    if not _has_errors(found):
        return NONE if torch.equal(found, expected) else INFINITE
    if not found.numel() or (found.dtype == exact.dtype and torch.equal(found, exact)):
        return NONE
    special = ~(expected.abs() < HUGE)
    if not ((found == expected) | (found.isnan() & expected.isnan()) | ~special).all():
        return INFINITE
    wide = torch.complex128 if found.is_complex() else torch.float64
    exact = exact.to(wide).masked_fill(special, 0)
    off = found.to(wide).masked_fill(special, 0) - exact
    rows = off.norm(dim=-1) if off.dim() else off.abs()
    size, whole, row = float(exact.norm()), float(off.norm()), float(rows.max())
    if not math.isfinite(whole) or (whole and not size):
        return INFINITE
    return Error(whole / size, row / size * math.sqrt(rows.numel())) if whole else NONE
