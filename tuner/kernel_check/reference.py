"""The check of what decides whether a kernel's results are right: its inputs, its reference, its own check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tilewright.kernels.errors import KernelError
from tilewright.kernels.kernel import Kernel, Reference
from tilewright.kernels.own import option_values
from tilewright.kernels.problem import Problem
from tilewright.tuner.arrays import random_arrays, scalar_values
from tilewright.tuner.errors import OwnFunctionError
from tilewright.tuner.kernel_check.report import Finding, KernelCheckReport
from tilewright.tuner.loop.expected import expected_of

SEED = 20250117

# What a declaration's functions raise where they are wrong; what else they raise is not theirs, and ends the check.
DECLARATION_ERRORS = (ArithmeticError, LookupError, AttributeError, TypeError, ValueError, KernelError)

Shape = Mapping[str, int]


def check_reference(kernel: Kernel, shapes: Sequence[Shape], report: KernelCheckReport) -> None:
    """Checks the declared reference; an output of zeros must not pass as right."""
    if kernel.verified:
        report.add([Finding("note", "result", "", f"results are verified {kernel.verified}")])
    problems = (
        (shape, dtype, options)
        for shape in shapes
        for dtype in kernel.dtypes
        for options in option_values(kernel, dtype)
    )
    for shape, dtype, options in problems:
        where = " ".join([words_of(shape), dtype, *(f"{name}={value}" for name, value in options.items())])
        try:
            flaws = list(_flaws_of_reference(kernel, kernel.problem(shape, dtype, options)))
        except OwnFunctionError as error:
            flaws = [str(error)]
        except DECLARATION_ERRORS as error:
            flaws = [f"the declaration raises {type(error).__name__}: {error}"]
        report.add(Finding("error", "result", where, flaw) for flaw in flaws)


def _flaws_of_reference(kernel: Kernel, problem: Problem) -> Iterator[str]:
    flops, bytes_moved = kernel.flops(problem), kernel.bytes_moved(problem)
    if (flops is not None and flops < 0) or (bytes_moved is not None and bytes_moved < 1):
        yield "flops must be at least 0 (it only moves data), and bytes_moved at least 1"
    arrays = random_arrays(kernel, problem, SEED)
    if kernel.verified and kernel.check is None:
        return
    expected = expected_of(kernel, problem, arrays, scalar_values(kernel, problem))
    for tensor in kernel.outputs if kernel.check is None else ():
        flaw = _flaw_of(expected.references[tensor.name], tuple(tensor.shape(problem)))
        if flaw is not None:
            yield flaw if len(kernel.outputs) == 1 else f"{tensor.name}: {flaw}"
            return
    right = expected.returned if isinstance(expected.returned, Mapping) else {"": expected.returned}
    right = right if kernel.check is not None else {name: r.value for name, r in expected.references.items()}
    zeros = {t.name: np.zeros(t.shape(problem), t.dtype_for(problem)) for t in kernel.outputs}
    is_something = any(isinstance(value, np.ndarray) and value.any() for value in right.values())
    if is_something and expected.compare(zeros).is_right:
        accepted = "would accept an output of zeros"
        yield (
            f"the reference {accepted}: its magnitude or terms are far too large"
            if kernel.check is None
            else f"the check {accepted}, which the reference is not"
        )


def _flaw_of(reference: Reference, shape: tuple[int, ...]) -> str | None:
    if reference.magnitude.shape != shape:
        return f"the reference's magnitude has the shape {reference.magnitude.shape}, the tensor {shape}"
    if not (np.isfinite(reference.value).all() and np.isfinite(reference.magnitude).all()):
        return "the reference is not finite for normal inputs"
    if (reference.magnitude < 0).any() or reference.terms < 1:
        return "the reference's magnitude must not be negative, and terms at least 1"
    return None


def words_of(shape: Shape) -> str:
    """The shape as commands have it: `h=9,w=35`."""
    return ",".join(f"{axis}={size}" for axis, size in shape.items())
