"""Checks of a kernel's outputs on the GPU: whether they are right, and whether anything else was written."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.kernels.dtypes import ITEM_BYTES, REAL, real_macros, rounding_of
from tilewright.kernels.kernel import Kernel, Launch, Tensor
from tilewright.kernels.problem import Problem
from tilewright.kernels.sources.source import resolved
from tilewright.tuner.devices.cuda.reference import HeldReference
from tilewright.tuner.loop.verify import C_DEFAULT, underflow, worse
from tilewright.tuner.outcome import Verification

if TYPE_CHECKING:
    from tilewright.tuner.devices.cuda.context import CudaContext, Function

GUARD_BYTES = 1 << 18
"""Before and after every array: a tile that overhangs by 64 rows of 1,024 floats stays inside."""

# For the checks: their loops take any grid, and this one fills every GPU.
CHECK_LAUNCH = Launch((1024, 1, 1), (256, 1, 1))
POISON = 0xFF  # every byte of it makes a NaN, in every floating dtype
ANSWER_WORDS = 4
"""Words of 8 bytes for each output: its worst ratio, how many are wrong, which first, how many between its rows
changed."""

_NOTHING_WRONG = 2**64 - 1


class CheckKernels:
    """The functions of check.cu for one dtype, loaded."""

    def __init__(self, device: CudaContext, dtype: str) -> None:
        source = resolved(Path(__file__).with_name("check.cu"))
        cubin = device.compile(device.compilation(source, real_macros(dtype), "compare")).cubin
        self.compare: Function = device.load(cubin, "compare", "PPPddddddQQQQQP")
        self.compare_exactly: Function = device.load(cubin, "compare_exactly", "PPQQQQQQP")
        self.poison: Function = device.load(cubin, "poison", "PPQQQQQQ")
        self.count_damage: Function = device.load(cubin, "count_damage", "PQP")
        self.count_gap_damage: Function = device.load(cubin, "count_gap_damage", "PQQQQQQQP")
        self.fingerprint: Function = device.load(cubin, "fingerprint", "PQP")
        self.read_through: Function = device.load(cubin, "read_through", "PQP")
        self.widen: Function = device.load(cubin, "widen", "PPQi")


class OutputChecks:
    """Compares a problem's outputs with the values that they must have."""

    def __init__(
        self, device: CudaContext, kernel: Kernel, problem: Problem, addresses: Mapping[str, int], checks: CheckKernels
    ) -> None:
        self._device, self._kernel, self._problem, self._addresses = device, kernel, problem, addresses
        self._checks, self._by_dtype = checks, {problem.dtype: checks}
        for dtype in {tensor.dtype_for(problem) for tensor in kernel.outputs} & REAL.keys() - {problem.dtype}:
            self._by_dtype[dtype] = CheckKernels(device, dtype)

    def poison(self, tensor: Tensor, held: HeldReference) -> None:
        """Makes every component of an output wrong: for integers, which have no NaN."""
        if held.magnitude is None:
            self._checks.poison.enqueue(CHECK_LAUNCH, *self._places(tensor, held.value))

    def prepare(self, words: np.ndarray[Any, Any]) -> None:
        """Sets the first words, ANSWER_WORDS for each output, to what they are where nothing is wrong."""
        words[2 : ANSWER_WORDS * len(self._kernel.outputs) : ANSWER_WORDS] = _NOTHING_WRONG

    def enqueue(self, answers: int, references: Mapping[str, HeldReference]) -> None:
        """Enqueues the comparison; its answers go to that address."""
        for place, tensor in enumerate(self._kernel.outputs):
            if tensor.name in references:
                self._compare(answers + 8 * ANSWER_WORDS * place, tensor, references[tensor.name])

    def read(
        self, words: Sequence[int], references: Mapping[str, HeldReference]
    ) -> tuple[Verification, dict[str, int]]:
        """The worst of the comparisons, and elements that were written between rows, by output."""
        verification, gap_damage = Verification(bound_ratio=0.0, wrong=0), dict[str, int]()
        for place, tensor in enumerate(self._kernel.outputs):
            answer = words[ANSWER_WORDS * place :][:ANSWER_WORDS]
            if tensor.name in references:
                verification = worse(verification, self._verification(tensor, references[tensor.name], answer))
                gap_damage |= {tensor.name: answer[3]} if answer[3] else {}
        return verification, gap_damage

    def _places(self, tensor: Tensor, value: Any) -> tuple[int, ...]:
        """An output and what it must be, its bytes an element and where these lie, as the checks take them."""
        bytes_, (_, *places) = ITEM_BYTES[tensor.dtype_for(self._problem)], tensor.layout(self._problem).as_matrices
        return (self._addresses[tensor.name], int(value), bytes_, math.prod(tensor.shape(self._problem)), *places)

    def _compare(self, answers: int, tensor: Tensor, held: HeldReference) -> None:
        """Has an output compared, and looked at between its rows."""
        out, value, bytes_, *places = self._places(tensor, held.value)
        dtype, layout = tensor.dtype_for(self._problem), tensor.layout(self._problem)
        if held.magnitude is None:
            self._checks.compare_exactly.enqueue(CHECK_LAUNCH, out, value, bytes_, *places, answers)
        else:
            rounding = rounding_of(dtype, held.terms)
            self._by_dtype[dtype].compare.enqueue(
                CHECK_LAUNCH,
                *(out, value, int(held.magnitude), held.factor, underflow(dtype), C_DEFAULT),
                *(rounding.unit_roundoff, rounding.smallest_normal, rounding.overflow),
                *(*places, answers),
            )
        if layout.is_dense:
            return
        matrices, rows, columns, stride, pitch = layout.as_matrices
        # One of them has no stride to go by.
        walks = [(n, step if n > 1 else layout.elements) for n, step in ((matrices, stride), (rows, pitch))]
        outer, inner = sorted(walks, key=lambda walk: -walk[1])
        elements = layout.elements
        self._checks.count_gap_damage.enqueue(
            CHECK_LAUNCH, out, bytes_, elements, *outer, *inner, columns, answers + 24
        )

    def _verification(self, tensor: Tensor, held: HeldReference, answer: Sequence[int]) -> Verification:
        name = tensor.name if len(self._kernel.outputs) > 1 else ""
        ratio = struct.unpack("<d", struct.pack("<Q", answer[0]))[0]
        if answer[2] == _NOTHING_WRONG:
            return Verification(ratio, answer[1], tensor=name)
        layout, dtype = tensor.layout(self._problem), tensor.dtype_for(self._problem)
        first = tuple(int(i) for i in np.unravel_index(answer[2], layout.shape))
        at = sum(index * stride for index, stride in zip(first, layout.strides, strict=True))
        got, expected = np.zeros(1, dtype), np.zeros(1, np.float64 if dtype in REAL else dtype)
        self._device.download(self._addresses[tensor.name] + at * got.itemsize, got)
        self._device.download(int(held.value) + at * expected.itemsize, expected)
        kind = float if dtype in REAL else int
        return Verification(ratio, answer[1], first, got=kind(got[0]), expected=kind(expected[0]), tensor=name)
