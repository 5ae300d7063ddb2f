"""A problem's arrays on the GPU, between guard bands, and their checks there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from tilewright.kernels.kernel import Kernel, Tensor
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.arrays import HostArray, random_arrays, rotating_kinds, scalar_values
from tilewright.tuner.devices.cuda.cases import Case, Cases, array_bytes, case_bytes
from tilewright.tuner.devices.cuda.checks import ANSWER_WORDS, CHECK_LAUNCH, GUARD_BYTES, POISON, OutputChecks
from tilewright.tuner.devices.cuda.texture import TextureObject
from tilewright.tuner.loop.expected import Expected
from tilewright.tuner.outcome import Verification

if TYPE_CHECKING:
    from tilewright.tuner.devices.cuda.context import CudaContext

_FINITE_BYTES = (0x41, 0x7B)  # outputs hold 12.08 or 1.3e36 in float32, and no NaN, before every second kind's launch


@dataclass(frozen=True)
class Inspection:
    """The output against its reference; what was written around each array and between the output's rows; the inputs
    that are not as uploaded.
    """

    verification: Verification
    damage: dict[str, int]  # in words of 4 bytes
    gap_damage: dict[str, int]  # in elements
    changed_inputs: list[str]

    def trespasses(self) -> list[str]:
        """The kernel's writes outside its outputs, in words; empty where it made none."""
        sentences = [f"{words} words of 4 bytes beside {name} were written" for name, words in self.damage.items()]
        sentences += [f"{n} elements between the rows of {name} were written" for name, n in self.gap_damage.items()]
        return sentences + [f"the input {name} was changed" for name in self.changed_inputs]


class ProblemArrays:
    """Every array of a problem on the device, filled with inputs of one kind at a time, and their reference.

    Kinds are made when they are first used where that is quick, else at once, and kept while there is room. Kernels
    always get the same addresses. `cases`: of this problem, or of a larger one that lends its first rows.
    """

    def __init__(
        self, device: CudaContext, kernel: Kernel, problem: Problem, seed: int, cases: Cases | None = None
    ) -> None:
        self.device, self.kernel, self.problem, self._seed = device, kernel, problem, seed
        self._source = cases or Cases(device, kernel, problem, seed)
        self.checks, self.kinds = self._source.checks, self._source.kinds
        self._tensors: dict[str, Tensor] = {t.name: t for t in kernel.tensors}
        self._sizes = array_bytes(kernel, problem)
        self._memory = {name: device.allocate(size + 2 * GUARD_BYTES) for name, size in self._sizes.items()}
        self.addresses = {name: int(memory) + GUARD_BYTES for name, memory in self._memory.items()}
        declared = ((tensor, tensor.texture) for tensor in kernel.textures)
        self._textures = {
            t.name: TextureObject(t, texture, problem, self.addresses[t.name]) for t, texture in declared if texture
        }
        self._comparison = OutputChecks(device, kernel, problem, self.addresses, self.checks)
        self._first_print = ANSWER_WORDS * len(kernel.outputs)
        self._words = self._first_print + 2 * len(self._tensors)
        self._answers = device.allocate(8 * self._words)
        self._cases: dict[str, Case] = {}
        self._fingerprints: dict[str, dict[str, int]] = {}
        self.case = self._made(self.kinds[0])
        self._turns = cycle(rotating_kinds(self.kinds, seed))
        if not self._source.are_quick:
            for kind in self.kinds[1:]:
                self._made(kind)  # now, while nothing is waited for that has a deadline
        self.reset_all()
        self._fingerprints[self.case.kind] = self._ask()[-1]

    def passed(self, name: str) -> int:
        """The argument of a launch for that array: its address, or its texture."""
        return self._textures[name].handle if name in self._textures else self.addresses[name]

    @property
    def host(self) -> dict[str, HostArray]:
        """The inputs of the present kind, drawn again."""
        return random_arrays(self.kernel, self.problem, self._seed, self.case.kind)

    def next_kind(self) -> str:
        """The kind whose turn it is, of those that need not be waited for: large inputs are drawn beside the trials."""
        return next(kind for kind in self._turns if kind in self._fingerprints or self._source.is_at_hand(kind))

    def use(self, kind: str) -> None:
        """Fills the arrays with inputs of this kind, unless they have it already."""
        if kind == self.case.kind:
            return
        self.case = self._cases.get(kind) or self._made(kind)
        self._reset_inputs()
        self.reset_written()
        if kind not in self._fingerprints:
            self._fingerprints[kind] = self._ask()[-1]

    def reset_all(self) -> None:
        """Arrays as at the beginning: inputs as they were drawn, bands and outputs poisoned."""
        for name in self.addresses:
            for band in self._bands(name):
                self.device.fill(band, GUARD_BYTES, POISON)
        self._reset_inputs()
        self.reset_written()

    def close(self) -> None:
        """Frees the textures, and what cases are made with that nobody keeps; the memory goes with the object."""
        for texture in self._textures.values():
            texture.close()
        if not self._source.is_kept:
            self._source.close()

    def reset_written(self) -> None:
        """Resets what the kernel writes: outputs are poisoned with NaN, inout arrays get their first values."""
        for name, tensor in self._tensors.items():
            if not tensor.is_read(self.problem):
                finite = _FINITE_BYTES[self.kinds.index(self.case.kind) // 2 % 2]
                byte = finite if self._takes_finite(tensor) else POISON
                self.device.fill(self.addresses[name], self._sizes[name], byte)
                poison = self.case.expected.poison(tensor) if self.case.expected else None
                if poison is not None:
                    self.device.synchronize()
                    self._upload(self.addresses[name], tensor, tensor.layout(self.problem).placed(poison))
                if name in self.case.references:
                    self._comparison.poison(tensor, self.case.references[name])
            elif tensor.role == "inout":
                self.device.copy(self.addresses[name], int(self.case.inputs[name]), self._sizes[name])

    def _takes_finite(self, tensor: Tensor) -> bool:
        """Whether outputs of this case must not hold NaN before a launch: only where all is written, and known."""
        is_known = self.kernel.reference is not None and self.kernel.check is None
        is_second = self.kinds.index(self.case.kind) % 2 == 1
        return is_second and is_known and tensor.layout(self.problem).is_dense

    def scalars(self) -> Mapping[str, float]:
        """The scalars of the inputs in use."""
        return scalar_values(self.kernel, self.problem, self.case.kind)

    def expect(self, expected: Expected) -> None:
        """Settles what the outputs must be for the inputs in use."""
        self._source.expect(expected, self.case)

    def inspect(self, configuration: Configuration | None = None) -> Inspection:
        """The outputs, as far as the configuration writes them, and the guard bands after the last launch."""
        verification, damage, gap_damage, fingerprints = self._ask()
        if self.case.expected is not None:
            outputs = self.outputs()
            parts = self.kernel.written_by(configuration, self.problem, outputs) if configuration else outputs
            verification = replace(self.case.expected.compare(parts), inputs=self.case.kind)
            layouts = {tensor.name: tensor.layout(self.problem) for tensor in self.kernel.outputs}
            gaps = {name: layout.gaps_written(layout.memory_of(outputs[name])) for name, layout in layouts.items()}
            gap_damage = {name: count for name, count in gaps.items() if count}
        changed = [
            name
            for name, tensor in self._tensors.items()
            if tensor.role == "input" and fingerprints[name] != self._fingerprints[self.case.kind][name]
        ]
        return Inspection(verification, damage, gap_damage, changed)

    def _ask(self) -> tuple[Verification, dict[str, int], dict[str, int], dict[str, int]]:
        """The comparison; damaged words and elements of the arrays that have any; every array's fingerprint."""
        words = np.zeros(self._words, np.uint64)
        self._comparison.prepare(words)
        answers = int(self._answers)
        self.device.synchronize()
        self.device.upload(answers, words)
        self._comparison.enqueue(answers, self.case.references)
        for place, name in enumerate(self._tensors):
            damage_at = answers + 8 * (self._first_print + 2 * place)
            for band in self._bands(name):
                self.checks.count_damage.enqueue(CHECK_LAUNCH, band, GUARD_BYTES // 4, damage_at)
            size = self._sizes[name] // 4
            self.checks.fingerprint.enqueue(CHECK_LAUNCH, self.addresses[name], size, damage_at + 8)
        self.device.download(answers, words)
        numbers = [int(word) for word in words]
        damage = dict(zip(self._tensors, numbers[self._first_print :: 2], strict=True))
        prints = dict(zip(self._tensors, numbers[self._first_print + 1 :: 2], strict=True))
        verification, gap_damage = self._comparison.read(numbers, self.case.references)
        verification = replace(verification, inputs=self.case.kind, verified=self.case.verified)
        return verification, {name: words for name, words in damage.items() if words}, gap_damage, prints

    def outputs(self) -> dict[str, HostArray]:
        """The current contents of the kernel's outputs, on the host, by name."""
        return {tensor.name: self.output(tensor) for tensor in self.kernel.outputs}

    def output(self, tensor: Tensor) -> HostArray:
        """The current contents of one output."""
        layout = tensor.layout(self.problem)
        data: HostArray = np.empty(layout.elements, tensor.dtype_for(self.problem))
        self.device.download(self.addresses[tensor.name], data)
        return layout.view(data)

    def _bands(self, name: str) -> tuple[int, int]:
        return self.addresses[name] - GUARD_BYTES, self.addresses[name] + self._sizes[name]

    def _reset_inputs(self) -> None:
        for name, tensor in self._tensors.items():
            if tensor.role == "input":
                self.device.copy(self.addresses[name], int(self.case.inputs[name]), self._sizes[name])
        for texture in self._textures.values():
            texture.refill(self.device.stream.handle)

    def _made(self, kind: str) -> Case:
        """A new case; where there is no room for one more, the first kind and this one are all that is kept."""
        if self._cases and not self._source.has_room(kind):
            self.case = self._cases[self.kinds[0]]
            self._cases = {self.case.kind: self.case}
            self._source.drop()
            self._reset_inputs()
        case = self._cases[kind] = self._source.made(kind)
        return case

    def _upload(self, address: int, tensor: Tensor, array: HostArray) -> None:
        self.device.upload(address, tensor.layout(self.problem).memory_of(array))


def needed_bytes(kernel: Kernel, problem: Problem) -> int:
    """Device memory that the bench takes at least: arrays and bands, and two kinds of input with their references."""
    sizes = array_bytes(kernel, problem)
    copied = sum(sizes[t.name] for t in kernel.textures if t.texture and t.texture.memory != "linear")
    return copied + sum(sizes.values()) + 2 * GUARD_BYTES * len(sizes) + 2 * case_bytes(kernel, problem)
