"""Expected outputs of a kernel for certain inputs: by its reference, its own check, or a configuration of it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import numpy as np

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.dtypes import LARGEST, UNIT_ROUNDOFF, is_integer, sum_dtype
from tilewright.kernels.kernel import Arrays, Kernel, Tensor
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.reference import Reference, close_to, computed
from tilewright.kernels.space import Configuration
from tilewright.tuner.arrays import DRAWN_KINDS
from tilewright.tuner.errors import OwnFunctionError, declared
from tilewright.tuner.loop.verify import compare, worse
from tilewright.tuner.outcome import Verification


@dataclass(frozen=True)
class Expected:
    """`references` by output; with a check of the kernel's own, what the reference `returned` instead.

    `verified`: how, where that is not against a reference. `is_analysed`: whether errors are held against magnitudes
    that the kernel's author gave, not against what the values have on average.
    """

    kernel: Kernel
    problem: Problem
    references: dict[str, Reference] = field(repr=False)
    returned: Any = field(default=None, repr=False)
    verified: str = ""
    is_analysed: bool = False

    def counts(self, kind: str) -> bool:
        """Whether a wrong result with such inputs refuses a configuration; else it is worth a remark.

        Always with a kernel of this package. With one of the user's, inputs that are changed line by line are fair only
        where its reference and all terms are finite in the dtype, and say by themselves how far a result may be off.
        """
        if kind in DRAWN_KINDS or self.kernel.name in catalogue().by_name:
            return True
        largest = (
            (self.references[t.name], LARGEST[t.dtype_for(self.problem)])
            for t in self.kernel.outputs
            if self.is_analysed and not is_integer(t.dtype_for(self.problem))
        )
        return self.is_analysed and all(
            bool(np.all(np.abs(numbers) <= most))
            for reference, most in largest
            for numbers in (reference.value, reference.magnitude)
        )

    def compare(self, outputs: Arrays) -> Verification:
        """The comparison of the worst output."""
        if self.kernel.check is not None:
            try:
                reason = self.kernel.check(outputs, self.returned) or ""
            except Exception as error:  # noqa: BLE001 - somebody's code, on whatever a wrong kernel has computed
                reason = f"it raised {type(error).__name__}: {error}"
            return Verification(None, int(bool(reason)), reason=str(reason), verified=self.verified)
        several = len(self.kernel.outputs) > 1
        verifications = (
            replace(
                compare(outputs[tensor.name], self.references[tensor.name], tensor.dtype_for(self.problem)),
                tensor=tensor.name if several else "",
                verified=self.verified,
            )
            for tensor in self.kernel.outputs
        )
        return reduce(worse, verifications)

    def widened(self, times: float) -> Expected:
        """The same with bounds so many times as wide; integers and a kernel's own check have none."""
        if times == 1 or not self.references or any(is_integer(t.dtype_for(self.problem)) for t in self.kernel.outputs):
            return self
        references = {}
        for tensor in self.kernel.outputs:
            reference = self.references[tensor.name]
            own = UNIT_ROUNDOFF[sum_dtype(tensor.dtype_for(self.problem))]
            references[tensor.name] = replace(reference, unit_roundoff=times * (reference.unit_roundoff or own))
        return replace(self, references=references)

    def poison(self, tensor: Tensor) -> np.ndarray[Any, Any] | None:
        """Wrong integers to fill an output with before a launch, since no integer is NaN.

        Which one, nobody can know who does not know the right one. None where NaN patterns do, or it is not known what
        is right.
        """
        dtype = tensor.dtype_for(self.problem)
        if not is_integer(dtype) or tensor.name not in self.references or tensor.is_read(self.problem):
            return None
        right: np.ndarray[Any, Any] = self.references[tensor.name].value.astype(dtype)
        turned = np.frombuffer(secrets.token_bytes(right.nbytes), right.dtype).reshape(right.shape)
        wrong: np.ndarray[Any, Any] = right ^ (turned | right.dtype.type(1))
        return wrong


def expected_of(kernel: Kernel, problem: Problem, arrays: Arrays, scalars: Mapping[str, float]) -> Expected:
    """The expected outputs by the kernel's reference or check; raises OwnFunctionError where these do not fit."""
    returned = None
    if kernel.reference is not None:
        with declared(kernel.name, "reference"), np.errstate(invalid="ignore", over="ignore"):
            returned = kernel.reference(problem, arrays, scalars)
    if kernel.check is not None:
        return Expected(kernel, problem, {}, returned, kernel.verified or "")
    by_name = returned if isinstance(returned, Mapping) else {kernel.output.name: returned}
    references = {}
    for tensor in kernel.outputs:
        if tensor.name not in by_name:
            raise OwnFunctionError(kernel.name, "reference", f"it does not return {tensor.name}")
        reference, dtype = by_name[tensor.name], tensor.dtype_for(problem)
        if not isinstance(reference, Reference):
            judged = partial(computed, arithmetic=kernel.arithmetic) if kernel.arithmetic else close_to
            reference = judged(np.asarray(reference), dtype, filtered_axes=kernel.filtered_axes(problem))
        shape = tuple(tensor.shape(problem))
        if reference.value.shape != shape:
            reason = f"{tensor.name} has the shape {shape}, and it returns {reference.value.shape}"
            raise OwnFunctionError(kernel.name, "reference", reason)
        references[tensor.name] = reference
    is_analysed = all(isinstance(by_name[tensor.name], Reference) for tensor in kernel.outputs)
    return Expected(kernel, problem, references, is_analysed=is_analysed)


def trusted_configuration(kernel: Kernel, problem: Problem, limits: Limits) -> Configuration | None:
    """The configuration whose results are taken as right, where the kernel has no reference."""
    if not kernel.is_held_against_default:
        return None
    space = kernel.space(problem, limits)
    if not len(space):
        reason = f"there is none, and no configuration for {problem} that could serve as one"
        raise OwnFunctionError(kernel.name, "reference", reason)
    return kernel.default_configuration(space)


def expected_by(kernel: Kernel, problem: Problem, configuration: Configuration, outputs: Arrays) -> Expected:
    """The expected outputs by what that configuration computed; a check of the kernel's own gets it as `expected`."""
    if kernel.check is not None:
        return Expected(kernel, problem, {}, outputs, f"by the kernel's own check, against {configuration}")
    axes = kernel.filtered_axes(problem)
    judged = partial(computed, arithmetic=kernel.arithmetic, filtered_axes=axes)
    references = {t.name: judged(outputs[t.name], t.dtype_for(problem)) for t in kernel.outputs}
    return Expected(kernel, problem, references, verified=f"against the configuration {configuration}, not a reference")


def untrusted(kernel: Kernel, configuration: Configuration, reason: str) -> OwnFunctionError:
    """The error where a configuration cannot serve as the reference that the kernel does not have."""
    return OwnFunctionError(kernel.name, "reference", f"there is none, and {configuration}, in its place, {reason}")
