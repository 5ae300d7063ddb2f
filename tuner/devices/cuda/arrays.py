"""A problem's arrays on the GPU, between guard bands, and their checks there."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.kernels.kernel import REAL, Kernel, Launch, Tensor
from tilewright.kernels.problem import Problem
from tilewright.tuner.arrays import HostArray, input_kinds, random_arrays
from tilewright.tuner.devices.cuda.reference import CudaReferences, HeldReference
from tilewright.tuner.outcome import Verification
from tilewright.tuner.verify import C_DEFAULT

if TYPE_CHECKING:
    from tilewright.tuner.devices.cuda.context import CudaContext, Function

GUARD_BYTES = 1 << 18
"""Before and after every array: a tile that overhangs by 64 rows of 1,024 floats stays inside."""

# For the checks: their loops take any grid, and this one fills every GPU.
CHECK_LAUNCH = Launch((1024, 1, 1), (256, 1, 1))
POISON = 0xFF  # every byte of it makes a NaN, in float32 and in float64
_ROOM_SHARE = 0.5  # of the free memory may go to one more kind of inputs: making its reference takes as much again
_ANSWER_WORDS = 3
_NOTHING_WRONG = 2**64 - 1


@dataclass(frozen=True)
class Inspection:
    """The output against its reference; damaged 4-byte words around each array; the inputs that are not as uploaded."""

    verification: Verification
    damage: dict[str, int]
    changed_inputs: list[str]

    def trespasses(self) -> list[str]:
        """The kernel's writes outside its outputs, in words; empty where it made none."""
        sentences = [f"{words} words of 4 bytes beside {name} were written" for name, words in self.damage.items()]
        return sentences + [f"the input {name} was changed" for name in self.changed_inputs]


class CheckKernels:
    """The functions of cuda_check.cu for one dtype, loaded."""

    def __init__(self, device: CudaContext, dtype: str) -> None:
        source = Path(__file__).with_name("check.cu").read_text(encoding="utf-8")
        cubin = device.compile(device.compilation(source, {"REAL": REAL[dtype]}, "compare")).cubin
        self.compare: Function = device.load(cubin, "compare", "PPPddQP")
        self.count_damage: Function = device.load(cubin, "count_damage", "PQP")
        self.fingerprint: Function = device.load(cubin, "fingerprint", "PQP")
        self.read_through: Function = device.load(cubin, "read_through", "PQP")
        self.widen: Function = device.load(cubin, "widen", "PPQi")


@dataclass(frozen=True)
class Case:
    """Inputs of one kind and their reference, both on the device."""

    kind: str
    inputs: dict[str, Any] = field(repr=False)
    reference: HeldReference


class ProblemArrays:
    """Every array of a problem on the device, filled with inputs of one kind at a time, and their reference.

    Kinds are made when they are first used where that is quick, else at once, and kept while there is room. Kernels
    always get the same addresses.
    """

    def __init__(
        self, device: CudaContext, kernel: Kernel, problem: Problem, seed: int, scalars: Mapping[str, float]
    ) -> None:
        self.device, self.kernel, self.problem, self._seed = device, kernel, problem, seed
        self.kinds = input_kinds(kernel, problem)
        self.checks = CheckKernels(device, problem.dtype)
        self._references = CudaReferences(device, kernel, problem, scalars, self.checks.widen)
        self._tensors: dict[str, Tensor] = {t.name: t for t in kernel.tensors}
        self._sizes = array_bytes(kernel, problem)
        self._memory = {name: device.allocate(size + 2 * GUARD_BYTES) for name, size in self._sizes.items()}
        self.addresses = {name: int(memory) + GUARD_BYTES for name, memory in self._memory.items()}
        self._count = math.prod(kernel.output.shape(problem))
        self._answers = device.allocate(8 * (_ANSWER_WORDS + 2 * len(self._tensors)))
        self._cases: dict[str, Case] = {}
        self._fingerprints: dict[str, dict[str, int]] = {}
        self.case = self._made(self.kinds[0])
        for kind in () if self._references.are_quick else self.kinds[1:]:
            self._made(kind)  # now, while nothing is waited for that has a deadline
        self.reset_all()
        self._fingerprints[self.case.kind] = self._ask()[2]

    @property
    def host(self) -> dict[str, HostArray]:
        """The inputs of the present kind, drawn again."""
        return random_arrays(self.kernel, self.problem, self._seed, self.case.kind)

    def use(self, kind: str) -> None:
        """Fills the arrays with inputs of this kind, where another one was there."""
        if kind == self.case.kind:
            return
        self.case = self._cases.get(kind) or self._made(kind)
        self._reset_inputs()
        self.reset_written()
        if kind not in self._fingerprints:
            self._fingerprints[kind] = self._ask()[2]

    def reset_all(self) -> None:
        """Arrays as at the beginning: inputs as they were drawn, bands and outputs poisoned."""
        for name in self.addresses:
            for band in self._bands(name):
                self.device.fill(band, GUARD_BYTES, POISON)
        self._reset_inputs()
        self.reset_written()

    def close(self) -> None:
        """Frees the library's handle; the memory goes with the object."""
        self._references.close()

    def reset_written(self) -> None:
        """Resets what the kernel writes: outputs are poisoned with NaN, inout arrays get their first values."""
        for name, tensor in self._tensors.items():
            if not tensor.is_read(self.problem):
                self.device.fill(self.addresses[name], self._sizes[name], POISON)
            elif tensor.role == "inout":
                self.device.copy(self.addresses[name], int(self.case.inputs[name]), self._sizes[name])

    def inspect(self) -> Inspection:
        """The output and the guard bands after the last launch."""
        verification, damage, fingerprints = self._ask()
        changed = [
            name
            for name, tensor in self._tensors.items()
            if tensor.role == "input" and fingerprints[name] != self._fingerprints[self.case.kind][name]
        ]
        return Inspection(verification, damage, changed)

    def _ask(self) -> tuple[Verification, dict[str, int], dict[str, int]]:
        """The comparison, damaged words by array (those that have any), and every array's fingerprint."""
        words = np.zeros(_ANSWER_WORDS + 2 * len(self._tensors), np.uint64)
        words[2] = _NOTHING_WRONG
        answers = int(self._answers)
        self.device.synchronize()
        self.device.upload(answers, words)
        out = self.addresses[self.kernel.output.name]
        held = self.case.reference
        value, magnitude = int(held.value), int(held.magnitude)
        self.checks.compare.enqueue(CHECK_LAUNCH, out, value, magnitude, held.factor, C_DEFAULT, self._count, answers)
        for place, name in enumerate(self._tensors):
            damage_at = answers + 8 * (_ANSWER_WORDS + 2 * place)
            for band in self._bands(name):
                self.checks.count_damage.enqueue(CHECK_LAUNCH, band, GUARD_BYTES // 4, damage_at)
            size = self._sizes[name] // 4
            self.checks.fingerprint.enqueue(CHECK_LAUNCH, self.addresses[name], size, damage_at + 8)
        self.device.download(answers, words)
        numbers = [int(word) for word in words]
        damage = {name: numbers[_ANSWER_WORDS + 2 * i] for i, name in enumerate(self._tensors)}
        prints = {name: numbers[_ANSWER_WORDS + 2 * i + 1] for i, name in enumerate(self._tensors)}
        return self._verification(numbers), {name: words for name, words in damage.items() if words}, prints

    def _verification(self, comparison: list[int]) -> Verification:
        ratio = struct.unpack("<d", struct.pack("<Q", comparison[0]))[0]
        if comparison[2] == _NOTHING_WRONG:
            return Verification(bound_ratio=ratio, wrong=comparison[1], inputs=self.case.kind)
        first = tuple(int(i) for i in np.unravel_index(comparison[2], self.kernel.output.shape(self.problem)))
        got, expected = np.zeros(1, self.problem.dtype), np.zeros(1, np.float64)
        self.device.download(self.addresses[self.kernel.output.name] + comparison[2] * got.itemsize, got)
        self.device.download(int(self.case.reference.value) + comparison[2] * expected.itemsize, expected)
        return Verification(ratio, comparison[1], first, self.case.kind, float(got[0]), float(expected[0]))

    def _bands(self, name: str) -> tuple[int, int]:
        return self.addresses[name] - GUARD_BYTES, self.addresses[name] + self._sizes[name]

    def _reset_inputs(self) -> None:
        for name, tensor in self._tensors.items():
            if tensor.role == "input":
                self.device.copy(self.addresses[name], int(self.case.inputs[name]), self._sizes[name])

    def _made(self, kind: str) -> Case:
        """A new case; where there is no room for one more, the first kind and this one are all that is kept."""
        if self._cases and case_bytes(self.kernel, self.problem) > self.device.free_bytes() * _ROOM_SHARE:
            self.case = self._cases[self.kinds[0]]
            self._cases = {self.case.kind: self.case}
            self._reset_inputs()
        host = random_arrays(self.kernel, self.problem, self._seed, kind)
        inputs = {name: self.device.allocate(array.nbytes) for name, array in host.items()}
        for name, array in host.items():
            self.device.upload(int(inputs[name]), array)
        reference = self._references.make(host, {name: int(memory) for name, memory in inputs.items()})
        self._cases[kind] = Case(kind, inputs, reference)
        return self._cases[kind]


def array_bytes(kernel: Kernel, problem: Problem) -> dict[str, int]:
    """Bytes of every array by name."""
    return {t.name: math.prod(t.shape(problem)) * problem.item_bytes for t in kernel.tensors}


def case_bytes(kernel: Kernel, problem: Problem) -> int:
    """Device memory of the inputs of one kind and their reference in float64."""
    sizes = array_bytes(kernel, problem)
    inputs = sum(sizes[t.name] for t in kernel.tensors if t.is_read(problem))
    return inputs + 2 * 8 * math.prod(kernel.output.shape(problem))


def needed_bytes(kernel: Kernel, problem: Problem) -> int:
    """Device memory that the bench takes at least: arrays and bands, and two kinds of input with their references."""
    sizes = array_bytes(kernel, problem)
    return sum(sizes.values()) + 2 * GUARD_BYTES * len(sizes) + 2 * case_bytes(kernel, problem)
