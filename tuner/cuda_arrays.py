"""A problem's arrays on the GPU, between guard bands, and what can be found out about them there."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.kernels.kernel import REAL, Kernel, Launch, Reference, Tensor
from tilewright.kernels.problem import UNIT_ROUNDOFF, Problem
from tilewright.tuner.arrays import HostArray
from tilewright.tuner.device import Verification
from tilewright.tuner.verify import C_DEFAULT

if TYPE_CHECKING:
    from tilewright.tuner.cuda import CudaDevice, Function

GUARD_BYTES = 1 << 18
"""Before and after every array: a tile that overhangs by 64 rows of 1,024 floats stays inside."""

# For the checks: their loops take any grid, and this one fills every GPU.
CHECK_LAUNCH = Launch((1024, 1, 1), (256, 1, 1))
POISON = 0xFF  # every byte of it makes a NaN, in float32 and in float64
_ANSWER_WORDS = 3
_NOTHING_WRONG = 2**64 - 1


@dataclass(frozen=True)
class Inspection:
    """The output against its reference; damaged 4-byte words around each array; the inputs that are not as uploaded."""

    verification: Verification
    damage: dict[str, int]
    changed_inputs: list[str]

    def trespasses(self) -> list[str]:
        """What the kernel wrote that it must not, in words; empty where it wrote nothing else."""
        told = [f"{words} words of 4 bytes beside {name} were written" for name, words in self.damage.items()]
        return told + [f"the input {name} was changed" for name in self.changed_inputs]


class CheckKernels:
    """The functions of cuda_check.cu for one dtype, loaded."""

    def __init__(self, device: CudaDevice, dtype: str) -> None:
        source = Path(__file__).with_name("cuda_check.cu").read_text(encoding="utf-8")
        cubin = device.compile(device.compilation(source, {"REAL": REAL[dtype]}, "compare")).cubin
        self.compare: Function = device.load(cubin, "compare", "PPPddQP")
        self.count_damage: Function = device.load(cubin, "count_damage", "PQP")
        self.fingerprint: Function = device.load(cubin, "fingerprint", "PQP")
        self.read_through: Function = device.load(cubin, "read_through", "PQP")


class ProblemArrays:
    """Every array of a problem on the device, the pristine copies of what kernels change, and the reference."""

    def __init__(
        self, device: CudaDevice, kernel: Kernel, problem: Problem, host: dict[str, HostArray], reference: Reference
    ) -> None:
        self.device, self.kernel, self.problem, self.host = device, kernel, problem, host
        self.checks = CheckKernels(device, problem.dtype)
        self._tensors: dict[str, Tensor] = {t.name: t for t in kernel.tensors}
        self._sizes = array_bytes(kernel, problem)
        self._memory = {name: device.allocate(size + 2 * GUARD_BYTES) for name, size in self._sizes.items()}
        self.addresses = {name: int(memory) + GUARD_BYTES for name, memory in self._memory.items()}
        self._pristine = {
            name: self._upload_new(host[name])
            for name, t in self._tensors.items()
            if t.role == "inout" and name in host
        }
        self._count = reference.value.size
        self._value = self._upload_new(np.ascontiguousarray(reference.value))
        self._magnitude = self._upload_new(np.ascontiguousarray(reference.magnitude))
        self._factor = math.sqrt(reference.terms) * UNIT_ROUNDOFF[problem.dtype]
        self._answers = device.allocate(8 * (_ANSWER_WORDS + 2 * len(self._tensors)))
        self.reset_all()
        self._fingerprints = self._ask()[2]

    def reset_all(self) -> None:
        """Arrays as at the beginning: inputs uploaded, bands and outputs poisoned."""
        for name, address in self.addresses.items():
            for band in self._bands(name):
                self.device.fill(band, GUARD_BYTES, POISON)
            if self._tensors[name].role == "input":
                self.device.synchronize()
                self.device.upload(address, self.host[name])
        self.reset_written()

    def reset_written(self) -> None:
        """What the kernel writes: outputs poisoned with NaN, inout arrays as they were at first."""
        for name, tensor in self._tensors.items():
            if not tensor.is_read(self.problem):
                self.device.fill(self.addresses[name], self._sizes[name], POISON)
            elif tensor.role == "inout":
                self.device.copy(self.addresses[name], int(self._pristine[name]), self._sizes[name])

    def inspect(self) -> Inspection:
        """What the last launch has left."""
        verification, damage, fingerprints = self._ask()
        changed = [
            name
            for name, tensor in self._tensors.items()
            if tensor.role == "input" and fingerprints[name] != self._fingerprints[name]
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
        value, magnitude = int(self._value), int(self._magnitude)
        self.checks.compare.enqueue(CHECK_LAUNCH, out, value, magnitude, self._factor, C_DEFAULT, self._count, answers)
        for place, name in enumerate(self._tensors):
            damage_at = answers + 8 * (_ANSWER_WORDS + 2 * place)
            for band in self._bands(name):
                self.checks.count_damage.enqueue(CHECK_LAUNCH, band, GUARD_BYTES // 4, damage_at)
            size = self._sizes[name] // 4
            self.checks.fingerprint.enqueue(CHECK_LAUNCH, self.addresses[name], size, damage_at + 8)
        self.device.download(answers, words)
        found = [int(word) for word in words]
        damage = {name: found[_ANSWER_WORDS + 2 * i] for i, name in enumerate(self._tensors)}
        prints = {name: found[_ANSWER_WORDS + 2 * i + 1] for i, name in enumerate(self._tensors)}
        return self._verification(found), {name: words for name, words in damage.items() if words}, prints

    def _verification(self, found: list[int]) -> Verification:
        ratio = struct.unpack("<d", struct.pack("<Q", found[0]))[0]
        shape = self.kernel.output.shape(self.problem)
        first = None if found[2] == _NOTHING_WRONG else tuple(int(i) for i in np.unravel_index(found[2], shape))
        return Verification(bound_ratio=ratio, wrong=found[1], first_wrong=first)

    def _bands(self, name: str) -> tuple[int, int]:
        return self.addresses[name] - GUARD_BYTES, self.addresses[name] + self._sizes[name]

    def _upload_new(self, data: np.ndarray[Any, Any]) -> Any:
        memory = self.device.allocate(data.nbytes)
        self.device.upload(int(memory), data)
        return memory


def array_bytes(kernel: Kernel, problem: Problem) -> dict[str, int]:
    """Bytes of every array by name."""
    return {t.name: math.prod(t.shape(problem)) * problem.item_bytes for t in kernel.tensors}


def needed_bytes(kernel: Kernel, problem: Problem) -> int:
    """Device memory that the bench takes: arrays and bands, copies of what is changed, the reference in float64."""
    sizes = array_bytes(kernel, problem)
    copies = sum(sizes[t.name] for t in kernel.tensors if t.role == "inout" and t.is_read(problem))
    reference = 2 * 8 * math.prod(kernel.output.shape(problem))
    return sum(sizes.values()) + 2 * GUARD_BYTES * len(sizes) + copies + reference
