"""The library's own call for what a launcher is given: that of PyTorch or CuPy, whichever has made the arrays.

Neither is imported: arrays that are one's have imported it. The arrays are in the kernel's order, outputs last.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from tilewright.kernels.problem import Problem
from tilewright.tuner.turns.contest import Event

Scalars = tuple[float, ...]
Call = Callable[[Sequence[Any], Scalars], object]

HANDLED = frozenset({"trans_a", "trans_b", "beta_zero", "accuracy", "activation"})
"""Options of a problem that a library's call may have; with another one set there is none."""


class Opponent(NamedTuple):
    """A library's call. `fits(arrays, scalars)`: whether it computes the same now, as accurately as is asked."""

    name: str
    call: Call
    fits: Callable[[Sequence[Any], Scalars], bool]
    event: Callable[[], Event]


def opponent(problem: Problem, defaults: Mapping[str, Any], arrays: Sequence[Any]) -> Opponent | None:
    """The opponent for the problem as a caller states it, on such arrays; None where none is known here."""
    packages = {type(one).__module__.partition(".")[0] for one in arrays}
    is_plain = all(name in HANDLED or value == defaults.get(name) for name, value in problem.options.items())
    accuracy = problem.options.get("accuracy", "fp32")
    if len(packages) != 1 or not is_plain or accuracy == "fp32-fma":
        return None
    exact = problem.dtype == "float32" and accuracy == "fp32" and problem.kernel in _PRODUCTS
    if packages == {"torch"} and problem.kernel in _PYTORCH:
        return _of_pytorch(partial(_PYTORCH[problem.kernel], problem), str(arrays[0].device), exact=exact)
    may_be_tf32 = exact and os.environ.get("CUPY_TF32", "0") != "0"
    is_cupys = packages == {"cupy"} and problem.kernel == "gemm" and not may_be_tf32
    return _of_cupy(problem) if is_cupys else None


class PytorchEvent:
    """An event of PyTorch's, which is recorded on the stream of that device, whichever is the current one."""

    def __init__(self, device: str) -> None:
        self._cuda, self._device = sys.modules["torch"].cuda, device
        self.own = self._cuda.Event(enable_timing=True)

    def record(self) -> None:
        """Records the event behind what has been enqueued."""
        self.own.record(self._cuda.current_stream(self._device))

    def query(self) -> bool:
        """Whether the GPU has reached the event."""
        return bool(self.own.query())

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds from this event to another one."""
        return float(self.own.elapsed_time(end.own))


def _of_pytorch(call: Call, device: str, *, exact: bool) -> Opponent:
    torch = sys.modules["torch"]

    def run(arrays: Sequence[Any], scalars: Scalars) -> None:
        with torch.no_grad():
            call(arrays, scalars)

    def fits(arrays: Sequence[Any], _scalars: Scalars) -> bool:
        if exact and _in_tf32(torch):
            return False
        return not (torch.is_grad_enabled() and any(one.requires_grad for one in arrays))

    return Opponent("PyTorch", run, fits, partial(PytorchEvent, device))


def _in_tf32(torch: Any) -> bool:
    """Whether PyTorch's products are in TF32 now; the older setting raises if a program has used the newer one."""
    matmul = torch.backends.cuda.matmul
    return bool(matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32)


def _gemm(problem: Problem, arrays: Sequence[Any], scalars: Scalars) -> None:
    torch, (a, b, c), (alpha, beta) = sys.modules["torch"], arrays, scalars
    a, b = a.mT if problem.options["trans_a"] else a, b.mT if problem.options["trans_b"] else b
    if alpha == 1 and beta == 0:
        torch.matmul(a, b, out=c)
    elif c.dim() == 2:
        torch.addmm(c, a, b, beta=beta, alpha=alpha, out=c)
    else:
        whole = [one.expand(len(c), *one.shape[-2:]) for one in (a, b)]
        torch.baddbmm(c, *whole, beta=beta, alpha=alpha, out=c)


def _linear(problem: Problem, arrays: Sequence[Any], _scalars: Scalars) -> None:
    torch, (x, w, b, y) = sys.modules["torch"], arrays
    torch.addmm(b, x, w.mT, out=y)
    activation = problem.options["activation"]
    if activation == "gelu":
        torch.ops.aten.gelu.out(y, out=y)
    elif activation != "none":
        getattr(y, f"{activation}_")()


def _gemv(problem: Problem, arrays: Sequence[Any], scalars: Scalars) -> None:
    torch, (a, x, y), (alpha, beta) = sys.modules["torch"], arrays, scalars
    torch.addmv(y, a.mT if problem.options["trans_a"] else a, x, beta=beta, alpha=alpha, out=y)


def _softmax(_problem: Problem, arrays: Sequence[Any], _scalars: Scalars) -> None:
    sys.modules["torch"].softmax(arrays[0], -1, out=arrays[1])


_PRODUCTS = frozenset({"gemm", "linear"})
"""Kernels that a library may compute in TF32; products with a vector it does not."""

_PYTORCH: Mapping[str, Callable[[Problem, Sequence[Any], Scalars], None]] = {
    "gemm": _gemm,
    "linear": _linear,
    "gemv": _gemv,
    "softmax": _softmax,
}


def _of_cupy(problem: Problem) -> Opponent:
    cupy = sys.modules["cupy"]

    def run(arrays: Sequence[Any], _scalars: Scalars) -> None:
        a, b, c = arrays
        a = a.swapaxes(-1, -2) if problem.options["trans_a"] else a
        cupy.matmul(a, b.swapaxes(-1, -2) if problem.options["trans_b"] else b, out=c)

    return Opponent("CuPy", run, lambda _arrays, scalars: scalars == (1.0, 0.0), partial(_CupyEvent, cupy))


class _CupyEvent:
    """An event of CuPy's with the names of PyTorch's."""

    def __init__(self, cupy: Any) -> None:
        self._cuda, self.own = cupy.cuda, cupy.cuda.Event()

    def record(self) -> None:
        self.own.record(self._cuda.get_current_stream())

    def query(self) -> bool:
        return bool(self.own.done)

    def elapsed_time(self, end: Any, /) -> float:
        return float(self._cuda.get_elapsed_time(self.own, end.own))
