"""The library's layer: its product, then one kernel of ours that adds the bias and applies the activation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.kernels.dtypes import real_macros
from tilewright.kernels.kernel import Kernel, Launch
from tilewright.kernels.problem import Problem
from tilewright.kernels.sources.source import resolved
from tilewright.tuner.compile.compilation import Compilation
from tilewright.tuner.library.cublas import LibraryCall
from tilewright.tuner.library.place import LibraryPlace

_ENTRY = "add_bias_activate"
_VECTOR_BYTES = 16
_THREADS = 256
_BLOCKS_PER_MULTIPROCESSOR = 8  # 2,048 threads: all that a multiprocessor of a data-centre GPU holds


def is_layer(kernel: Kernel) -> bool:
    """Whether the library can compute only the product inside this kernel."""
    return kernel.name in {"linear", "conv2d"}


def layer_source() -> str:
    """The source of the second kernel, with the activation that the layer's own variants use."""
    return resolved(Path(__file__).with_name("layer.cu"))


def layer_definitions(kernel: Kernel, problem: Problem) -> dict[str, str]:
    """Macros of the layer's source."""
    most = _VECTOR_BYTES // problem.item_bytes
    _, columns, pixels = _extents(kernel, problem)
    run = pixels if pixels > 1 else columns
    return real_macros(problem.dtype) | {
        "SHAPE_N": str(columns),
        "SHAPE_PIXELS": str(pixels),
        "RUN_WIDTH": str(most if run % most == 0 else 1),
        f"ACTIVATION_{str(problem.options['activation']).upper()}": "1",
    }


def _extents(kernel: Kernel, problem: Problem) -> tuple[int, int, int]:
    """The rows and channels of the output, and how many pixels of a channel lie one behind the other."""
    shape = kernel.output.shape(problem)
    if problem.options.get("layout") == "nchw":
        return shape[0], shape[1], math.prod(shape[2:])
    return math.prod(shape[:-1]), shape[-1], 1


class LayerEnd:
    """The second kernel, compiled and loaded for one problem."""

    def __init__(self, device: LibraryPlace, kernel: Kernel, problem: Problem, addresses: Mapping[str, int]) -> None:
        work: Compilation = device.compilation(layer_source(), layer_definitions(kernel, problem), _ENTRY)
        self._function = device.load(device.compile(work).cubin, _ENTRY, "PPQ")
        self._arguments = addresses["b"], addresses[kernel.output.name], _extents(kernel, problem)[0]
        self._launch = Launch(
            (_BLOCKS_PER_MULTIPROCESSOR * device.model.limits.multiprocessors, 1, 1), (_THREADS, 1, 1)
        )

    def after(self, product: LibraryCall) -> LibraryCall:
        """The product's call followed by this kernel."""

        def enqueue() -> None:
            product.enqueue()
            self._function.enqueue(self._launch, *self._arguments)

        return LibraryCall(f"{product.name} + bias and activation kernel", enqueue)


_WIDENING = "widen"

_LAUNCH = Launch((1024, 1, 1), (256, 1, 1))


def has_narrow_weights(kernel: str) -> bool:
    """Whether the kernel's weights are whole numbers that the library has no product for."""
    return kernel == "linear_quantized"


def widening_source() -> str:
    """The source of the kernel that makes wide weights."""
    return resolved(Path(__file__).with_name("weights.cu"))


def widening_definitions(kernel: Kernel, problem: Problem) -> dict[str, str]:
    """Macros of the widening source, the problem's among them."""
    return kernel.definitions(problem, kernel.variant(kernel.default_variant).space().default())


class WideWeights:
    """A problem's weights widened to 16 bits, once, from the inputs at these addresses at that moment."""

    def __init__(self, device: LibraryPlace, kernel: Kernel, problem: Problem, addresses: Mapping[str, int]) -> None:
        self._memory: Any = device.allocate(problem.shape["n"] * problem.shape["k"] * problem.item_bytes)
        self.address = int(self._memory)
        work = device.compilation(widening_source(), widening_definitions(kernel, problem), _WIDENING)
        widen = device.load(device.compile(work).cubin, _WIDENING, "PPP")
        widen.enqueue(_LAUNCH, addresses["W"], addresses["S"], self.address)

    @staticmethod
    def named(call: LibraryCall) -> LibraryCall:
        """The call, named by what it multiplies with, as its roundings differ from the kernel's."""
        return replace(call, name=f"{call.name}, weights in 16 bits", is_comparable=False, is_named=False)
