"""Inputs of each kind on the device with what outputs must be for them; those of a size serve all smaller ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.dtypes import is_integer
from tilewright.kernels.kernel import Kernel, Tensor
from tilewright.kernels.problem import Problem
from tilewright.tuner.arrays import (
    DRAWN_KINDS,
    DrawnAhead,
    HostArray,
    input_kinds,
    random_arrays,
    rotating_kinds,
    scalar_values,
)
from tilewright.tuner.devices.cuda.checks import CheckKernels
from tilewright.tuner.devices.cuda.reference import CudaReferences, HeldReference
from tilewright.tuner.line_kinds import bound_width, shared_pair
from tilewright.tuner.loop.expected import Expected, expected_of

if TYPE_CHECKING:
    from tilewright.tuner.devices.cuda.context import CudaContext

ROOM_SHARE = 0.5
"""Of the free memory so much may go to one more kind of inputs: making its reference takes as much again."""

_QUICKLY_DRAWN_BYTES = 1 << 24
_DRAWN_AT_ONCE = 4  # kinds of inputs that serve all sizes: their references, which are larger, are on the device alone
_SLOWLY_MADE_KINDS = 3  # beside those that are drawn, where the host makes references while the job waits


@dataclass
class Case:
    """Inputs of one kind, on the device, and what the outputs must be: `references` there, or `expected` on the host.

    Neither: a configuration has yet to compute it. `verified`: how, where that is not against a reference of the
    kernel's. `admits_library`: the bound has been compared with the library. `counts`: see `Expected`.
    """

    kind: str
    inputs: dict[str, Any] = field(repr=False)
    references: dict[str, HeldReference] = field(default_factory=dict)
    expected: Expected | None = None
    verified: str = ""
    admits_library: bool = False
    counts: bool = True

    @property
    def is_settled(self) -> bool:
        """Whether it is known what the outputs must be."""
        return bool(self.references) or self.expected is not None

    def widen_bound(self, times: float) -> None:
        """Makes the bound so many times as wide."""
        self.references = {name: replace(held, factor=times * held.factor) for name, held in self.references.items()}
        if self.expected is not None:
            self.expected = self.expected.widened(times)


class Cases:
    """Makes the cases of one problem. `is_kept`: each once, for its own size and for smaller ones of its family.

    Kinds are made when they are asked for where that is quick. Large ones are drawn ahead by a thread.
    """

    def __init__(
        self, device: CudaContext, kernel: Kernel, problem: Problem, seed: int, *, is_kept: bool = False
    ) -> None:
        self.device, self.kernel, self.problem, self.seed, self.is_kept = device, kernel, problem, seed, is_kept
        self.checks = CheckKernels(device, problem.dtype)
        self._references = CudaReferences(device, kernel, problem, self.checks.widen)
        self._bytes = case_bytes(kernel, problem)
        self.kinds = self._kinds_with_room(input_kinds(kernel, problem))
        self._kept: dict[str, Case] = {}
        self._ahead: DrawnAhead | None = None

    @property
    def are_quick(self) -> bool:
        """Whether a case takes hardly longer than launches do, once its inputs are drawn."""
        return self._references.are_quick

    def serve(self, kernel: Kernel, problem: Problem, seed: int) -> bool:
        """Whether that problem's cases are the first rows of these."""
        own, axis = self.problem, self.problem.at_launch
        return (
            (kernel.name, problem.at_launch, seed) == (self.kernel.name, axis, self.seed)
            and problem.shape.keys() == own.shape.keys()
            and problem.with_size(axis, own.shape[axis]) == own
            and problem.shape[axis] <= own.shape[axis]
        )

    def is_at_hand(self, kind: str) -> bool:
        """Whether its inputs need not be waited for."""
        return self._ahead is None or kind in self._kept or self._ahead.is_drawn(kind)

    def has_room(self, kind: str) -> bool:
        """Whether one more fits the memory."""
        return kind in self._kept or self._bytes <= self.device.free_bytes() * ROOM_SHARE

    def made(self, kind: str) -> Case:
        """A case of that kind, whose bound nobody has widened."""
        if kind not in self._kept:
            case = self._made(kind)
            if not self.is_kept or case.expected is not None:
                return case
            self._kept[kind] = case
        return replace(self._kept[kind])

    def drop(self) -> None:
        """Keeps the first kind alone, for want of room."""
        self._kept = {kind: case for kind, case in self._kept.items() if kind == self.kinds[0]}

    def expect(self, expected: Expected, case: Case) -> None:
        """Settles what the outputs must be for these inputs: held on the device, or compared on the host."""
        case.counts = expected.counts(case.kind)
        held = self._references.held(expected)
        case.references, case.verified = held or {}, expected.verified
        case.expected = expected if held is None else None

    def close(self) -> None:
        """Frees the library's handle and draws nothing more; the memory goes with the object."""
        if self._ahead is not None:
            self._ahead.close()
        self._references.close()

    def _made(self, kind: str) -> Case:
        kernel, problem = self.kernel, self.problem
        host = self._drawn(kind)
        inputs = self._uploaded(host)
        case, scalars = Case(kind, inputs), scalar_values(kernel, problem, kind)
        held = self._references.made_there(host, {name: int(memory) for name, memory in inputs.items()}, scalars)
        width = bound_width(kernel, problem, kind)
        if held is not None:
            case.references = {kernel.output.name: replace(held, factor=width * held.factor)}
        elif not kernel.is_held_against_default:
            self.expect(expected_of(kernel, problem, host, scalars).widened(width), case)
        return case

    def _drawn(self, kind: str) -> dict[str, HostArray]:
        if self._ahead is not None:
            return self._ahead.take(kind)
        arrays = random_arrays(self.kernel, self.problem, self.seed, kind)
        if self._is_drawn_slowly():
            at_once = _DRAWN_AT_ONCE if self.is_kept else 1
            self._ahead = DrawnAhead(self.kernel, self.problem, self.seed, self._order(), at_once)
        return arrays

    def _uploaded(self, host: Mapping[str, HostArray]) -> dict[str, Any]:
        sizes, tensors = array_bytes(self.kernel, self.problem), {t.name: t for t in self.kernel.tensors}
        inputs = {name: self.device.allocate(sizes[name]) for name in host}
        for name, array in host.items():
            self.device.upload(int(inputs[name]), tensors[name].layout(self.problem).memory_of(array))
        return inputs

    def _order(self) -> list[str]:
        """The kinds that are drawn ahead: those first that trials take turns with."""
        rotating = rotating_kinds(self.kinds, self.seed)
        return sorted(self.kinds[1:], key=lambda kind: kind not in rotating)

    def _is_drawn_slowly(self) -> bool:
        sizes = array_bytes(self.kernel, self.problem)
        drawn = sum(sizes[t.name] for t in self.kernel.tensors if t.is_read(self.problem))
        return self.are_quick and drawn > _QUICKLY_DRAWN_BYTES and self.kernel.inputs is None

    def _kinds_with_room(self, kinds: tuple[str, ...]) -> tuple[str, ...]:
        """All of them where they fit the memory at once and are made quickly, else the drawn ones and some more."""
        drawn = sum(kind in DRAWN_KINDS for kind in kinds)
        room = int(self.device.free_bytes() * ROOM_SHARE) // max(1, self._bytes)
        most = room if self.are_quick else min(room, drawn + _SLOWLY_MADE_KINDS)
        return kinds[: max(drawn, most)]


def have_first_rows(kernel: Kernel, problem: Problem) -> bool:
    """Whether inputs and sums of less along the axis that comes with the launch are the first rows of the problem's.

    Not where two factors are one array, which is a case of that one size.
    """
    if not problem.at_launch or kernel.product is None or kernel.name not in catalogue().by_name:
        return False
    less = problem.with_size(problem.at_launch, 1)
    return shared_pair(kernel, problem) is None and all(
        of_all.strides == of_one.strides and of_all.shape[1:] == of_one.shape[1:]
        for of_all, of_one in _layouts(kernel.tensors, problem, less)
    )


def fit_at_once(kernel: Kernel, problem: Problem, free_bytes: int) -> bool:
    """Whether the cases of all kinds have room: those that had to be made again would be as large for each size."""
    return len(input_kinds(kernel, problem)) * case_bytes(kernel, problem) <= ROOM_SHARE * free_bytes


def _layouts(tensors: Sequence[Tensor], *problems: Problem) -> Iterator[tuple[Any, ...]]:
    return (tuple(tensor.layout(problem) for problem in problems) for tensor in tensors)


def array_bytes(kernel: Kernel, problem: Problem) -> dict[str, int]:
    """Bytes of every array by name, in whole words of 4 bytes: what guards and fingerprints are made of."""
    return {t.name: -(-t.size_bytes(problem) // 4) * 4 for t in kernel.tensors}


def case_bytes(kernel: Kernel, problem: Problem) -> int:
    """Device memory of the inputs of one kind and their reference: exact integers, and others in float64."""
    sizes = array_bytes(kernel, problem)
    inputs = sum(sizes[t.name] for t in kernel.tensors if t.is_read(problem))
    outputs = kernel.outputs if kernel.check is None else ()
    held = (sizes[t.name] if is_integer(t.dtype_for(problem)) else 16 * t.layout(problem).elements for t in outputs)
    return inputs + sum(held)
