"""Launches of one configuration through the launcher, on tensors between guards, judged by the oracles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from fuzz.cases import Case
from fuzz.numbers import FACTORS, ROWS, WHOLE, Numbers
from fuzz.oracles import ORACLES, Findings, judged
from torch import Tensor

from tilewright.kernels.kernel import Kernel, Scalar
from tilewright.kernels.kernel import Tensor as Declared
from tilewright.kernels.problem import Problem
from tilewright.tuner.runtime.choice import Choice, TargetDevice, is_admitted
from tilewright.tuner.runtime.launcher import Launcher
from tilewright.tuner.runtime.packed_launcher import PackedLauncher

T = TypeVar("T")

GUARD = 256
"""Elements before and behind each tensor; a multiple of what aligns vectors."""

POISONS = (math.nan, 12345.0)
"""What outputs hold before the first launch and before the second: NaN, and a number that sums could swallow."""

SUMMED = {
    "gemm": {"A": -1, "B": -2},
    "gemv": {"A": -1, "x": 0},
    "linear": {"X": 1, "W": 1},
    "linear_gated": {"X": 1, "W": 1},
    "linear_quantized": {"X": 1},
    "conv2d": {"X": 3, "W": 3},
    "classifier": {"X": 1, "W1": 1},
}
"""Factors by kernel, with the axis that their products are summed along, where nothing is transposed."""

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class PosedOtherwiseError(Exception):
    """The arrays pose another problem than the case's: with one row or column nobody can tell what is transposed."""


@dataclass(frozen=True)
class Pinned:
    """Chooses the case's configuration, whatever is asked: where arrays pose its problem."""

    case: Case
    checks_first_use = False

    def choose(self, kernel: Kernel, problem: Problem, place: TargetDevice, /) -> Choice:
        """The configuration; raises PosedOtherwiseError for a problem that does not have it."""
        if not is_admitted(kernel, problem, place, self.case.configuration):
            raise PosedOtherwiseError(f"the arrays of {self.case.problem} pose {problem}")
        return Choice(self.case.configuration, "pinned")

    def loaded(self, kernel: Kernel, problem: Problem, place: TargetDevice, load: Callable[[Choice], T], /) -> T:
        """What `load` makes of it."""
        return load(self.choose(kernel, problem, place))

    def first_use(self, kernel: Kernel, problem: Problem, place: TargetDevice, choice: Choice, /) -> None:
        """Nothing: the fuzz checks results itself."""


@dataclass
class Placed:
    """A tensor that lies in its buffer as the problem says, between guards."""

    view: Tensor
    buffer: Tensor
    outside: Tensor = field(repr=False)

    @classmethod
    def of(cls, tensor: Declared, problem: Problem, device: str) -> Placed:
        """Uninitialised numbers, in a buffer whose other elements are 77."""
        layout = tensor.layout(problem)
        dtype = getattr(torch, tensor.dtype_for(problem))
        buffer = torch.full((layout.elements + 2 * GUARD,), 77, dtype=dtype, device=device)
        outside = torch.ones(buffer.shape, dtype=torch.bool, device=device)
        outside.as_strided(*_own(layout.shape, layout.strides), GUARD).fill_(False)  # noqa: FBT003 - what it holds
        return cls(buffer.as_strided(layout.shape, layout.strides, GUARD), buffer, outside)

    def fill(self, numbers: Tensor | float) -> None:
        """Writes the numbers; matrices that share memory all get the first of them."""
        own = self.buffer.as_strided(*_own(self.view.shape, self.view.stride()), GUARD)
        own.copy_(numbers[tuple(slice(n) for n in own.shape)]) if isinstance(numbers, Tensor) else own.fill_(numbers)

    def bits(self) -> Tensor:
        """The buffer's bits, which can be compared where numbers are NaN."""
        return self.buffer.clone().view(BITS[self.buffer.element_size()])


def _own(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[list[int], list[int]]:
    return [1 if stride == 0 else n for n, stride in zip(shape, strides, strict=True)], list(strides)


@dataclass(frozen=True)
class Check:
    """One kind of numbers: what it is, and what was found."""

    kind: str
    scalars: Mapping[str, float]
    findings: Findings
    trespasses: str = ""

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings.wrong and not self.trespasses


class CaseOnDevice:
    """The tensors of a case and its launcher."""

    def __init__(self, kernel: Kernel, case: Case, device: str, seed: int) -> None:
        self.kernel, self.problem, self._device = kernel, case.problem, device
        self._numbers, self._dtype = Numbers(device, seed), getattr(torch, case.problem.dtype)
        self._placed = {tensor.name: Placed.of(tensor, case.problem, device) for tensor in kernel.tensors}
        launcher = PackedLauncher if case.problem.options.get("packed_b") else Launcher
        self.launcher = launcher(kernel, _as_asked(kernel, case.problem), None, Pinned(case))
        self._arrays = {name: self._as_given(name, one.view) for name, one in self._placed.items()}

    @property
    def kinds(self) -> tuple[str, ...]:
        """What such kernels are checked with."""
        return FACTORS if self.kernel.name in SUMMED else ROWS

    def check(self, kind: str) -> Check:
        """Two launches on fresh numbers of that kind."""
        scalars = self._draw(kind)
        inputs = {name: one.view.clone() for name, one in self._placed.items()}
        rights = ORACLES[self.kernel.name](self.problem, inputs, self._rounded(scalars))
        is_whole = kind in WHOLE and all(value in {1.0, 2.0, -1.0} for value in scalars.values())
        found, trespasses = Findings(0, 0, 0.0), ""
        written = [t.name for t in self.kernel.tensors if t.role != "input"]
        for poison in POISONS:
            for tensor in self.kernel.tensors:
                if tensor.role != "input":
                    self._placed[tensor.name].fill(inputs[tensor.name] if tensor.is_read(self.problem) else poison)
            before = {name: one.bits() for name, one in self._placed.items()}
            self._launch(scalars)
            for name, one in self._placed.items():
                changed = one.bits() != before[name]
                changed &= one.outside if name in written else torch.ones_like(changed)
                if changed.any():
                    trespasses = f"{int(changed.sum())} elements of {name} or around it were changed"
            for name, right in rights.items():
                one = judged(self._placed[name].view, right, self._dtype, is_whole=is_whole)
                found = Findings(
                    found.judged + one.judged,
                    found.wrong + one.wrong,
                    max(found.worst, one.worst),
                    found.first or one.first,
                )
        return Check(kind, scalars, found, trespasses)

    def _launch(self, scalars: Mapping[str, float]) -> None:
        arrays = dict(self._arrays)
        if isinstance(self.launcher, PackedLauncher):
            arrays[self.kernel.packed] = self.launcher.pack(arrays[self.kernel.packed])
        self.launcher(**arrays, **scalars)
        if self._device != "cpu":
            torch.cuda.synchronize()

    def _as_given(self, name: str, view: Tensor) -> Tensor:
        """A matrix as a program has it: of a transposed one the view that is not."""
        return view.mT if self.problem.options.get(f"trans_{name.lower()}", False) else view

    def _draw(self, kind: str) -> dict[str, float]:
        """Fills what is read; the scalars."""
        numbers, summed = self._numbers, SUMMED.get(self.kernel.name, {})
        for place, tensor in enumerate(t for t in self.kernel.tensors if t.is_read(self.problem)):
            shape, one = tuple(tensor.layout(self.problem).shape), self._placed[tensor.name]
            if tensor.name in summed:
                one.fill(numbers.factor(kind, shape, self._axis(tensor.name, len(shape)), min(place, 1), self._dtype))
            elif self.kernel.name == "linear_quantized":
                one.fill(self._quantised(tensor.name, shape))
            elif tensor.name in {"X", "R"}:
                one.fill(numbers.rows(kind, shape, self._dtype))
            else:
                one.fill(numbers.whole(-8, 9, *shape) if kind in WHOLE else numbers.normal(*shape))
        return {a.name: self._scalar(a, kind) for a in self.kernel.arguments if isinstance(a, Scalar)}

    def _axis(self, name: str, axes: int) -> int:
        """The axis, from the front, along which products are summed."""
        axis = SUMMED[self.kernel.name][name]
        if self.problem.options.get(f"trans_{name.lower()}", False):
            axis = -3 - axis if axes > 1 else axis
        if self.kernel.name == "conv2d":
            is_nhwc = self.problem.options["layout"] == "nhwc"
            axis = (axes - 1) if name == "X" and is_nhwc else 1 if name == "X" else axes - 1 if is_nhwc else 1
        return axis % axes

    def _quantised(self, name: str, shape: tuple[int, ...]) -> Tensor:
        weights, numbers = self.problem.options["weights"], self._numbers
        if name == "W":
            return numbers.whole(-128, 128, *shape) if weights == "int8" else numbers.whole(0, 256, *shape)
        scales = 2.0 ** numbers.whole(-12, 1, *shape) * (1 + numbers.whole(0, 8, *shape) / 8)
        if weights == "int4_zeros":
            scales[..., 1] = numbers.whole(0, 16, *shape[:-1])
        return scales

    def _scalar(self, scalar: Scalar, kind: str) -> float:
        if scalar.name == "eps":
            return float(10.0 ** -int(self._numbers.whole(2, 13, 1)))
        if scalar.name == "beta" and self.problem.options["beta_zero"]:
            return 0.0
        choices = (1.0, 1.0, 2.0, -1.0) if kind in WHOLE else (1.0, 2.0, -1.0, 0.3, -0.7, 0.01, 1 / 3)
        return choices[int(self._numbers.whole(0, len(choices), 1))]

    def _rounded(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """As the kernel gets them: in its own dtype, or in that of sums."""
        wide = torch.float64 if self._dtype == torch.float64 and "eps" not in scalars else torch.float32
        return {name: float(torch.tensor(value, dtype=wide)) for name, value in scalars.items()}


def _as_asked(kernel: Kernel, problem: Problem) -> Problem:
    """The problem as a program asks for it: dense, and nothing transposed, which the arrays say."""
    flags = {name: False for name in problem.options if name.startswith("trans_")}
    sizes = {axis: size for axis, size in problem.stated_shape.items() if not axis.startswith(("ld", "stride_"))}
    shape = problem.stated_shape if kernel.name == "conv2d" else sizes
    return kernel.problem(shape, problem.dtype, dict(problem.options) | flags)
