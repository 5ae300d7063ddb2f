"""The alternative to weights of 8 or 4 bits: weights of 16 bits, which the library multiplies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.kernels.kernel import Kernel, Launch
from tilewright.kernels.problem import Problem
from tilewright.kernels.source import resolved
from tilewright.tuner.library.cublas import LibraryCall
from tilewright.tuner.library.place import LibraryPlace

_ENTRY = "widen"
_LAUNCH = Launch((1024, 1, 1), (256, 1, 1))


def has_narrow_weights(kernel: str) -> bool:
    """Whether the kernel's weights are whole numbers that the library has no product for."""
    return kernel == "linear_quantized"


def widening_source() -> str:
    """The source of the kernel that makes them."""
    return resolved(Path(__file__).with_name("weights.cu"))


def widening_definitions(kernel: Kernel, problem: Problem) -> dict[str, str]:
    """Its macros: the problem's, among others."""
    return kernel.definitions(problem, kernel.variant(kernel.default_variant).space().default())


class WideWeights:
    """A problem's weights in 16 bits, made once, of the inputs that are at these addresses just then."""

    def __init__(self, device: LibraryPlace, kernel: Kernel, problem: Problem, addresses: Mapping[str, int]) -> None:
        self._memory: Any = device.allocate(problem.shape["n"] * problem.shape["k"] * problem.item_bytes)
        self.address = int(self._memory)
        work = device.compilation(widening_source(), widening_definitions(kernel, problem), _ENTRY)
        widen = device.load(device.compile(work).cubin, _ENTRY, "PPP")
        widen.enqueue(_LAUNCH, addresses["W"], addresses["S"], self.address)

    @staticmethod
    def named(call: LibraryCall) -> LibraryCall:
        """The call, which says what it multiplies with: its roundings are others than the kernel's."""
        return replace(call, name=f"{call.name}, weights in 16 bits", is_comparable=False)
