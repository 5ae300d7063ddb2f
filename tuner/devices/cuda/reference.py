"""Expected outputs of a problem in device memory: computed there by the library where it can, else on the host."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.dtypes import SMALLEST_NORMAL, UNIT_ROUNDOFF, is_integer
from tilewright.kernels.kernel import Kernel, Launch, Tensor
from tilewright.kernels.problem import Problem
from tilewright.kernels.reference import FinishThere, ProductReference, Reference, admitted_roundoff
from tilewright.kernels.sources.source import resolved
from tilewright.tuner.arrays import HostArray
from tilewright.tuner.errors import OutOfMemoryError
from tilewright.tuner.library.cublas import WORKSPACE_BYTES, Cublas, LibraryError, has_call
from tilewright.tuner.library.product import product_of
from tilewright.tuner.loop.expected import Expected
from tilewright.tuner.loop.verify import bound_factor

if TYPE_CHECKING:
    from tilewright.tuner.devices.cuda.context import CudaContext, Function

_SMALL_FLOPS = 1e8
_SMALL_BYTES = 1 << 22
"""Below both NumPy has its answer before the library has its handle: 10 ms. A matrix times one row is few operations,
and converting its 25 million numbers to float64 took 0.2 s (CPU, 2026-11-24)."""

_FEW_SUMS = 1 << 21
"""Sums that NumPy finishes in some tenths of a second."""

_WIDE_BYTES = 8
_FINISH = "finish"
_LAUNCH = Launch((1024, 1, 1), (256, 1, 1))  # `widen` loops, so that any grid will do


@dataclass(frozen=True)
class HeldReference:
    """Values and magnitudes in float64, on the device and laid out as the output; a magnitude's factor to its bound.

    `terms`: of each sum. For an output of integers it holds the values alone, in its dtype.
    """

    value: Any = field(repr=False)
    magnitude: Any = field(default=None, repr=False)
    factor: float = 0.0
    terms: int = 0


class CudaReferences:
    """Makes references for one problem.

    NumPy takes seconds for a large product in float64. cuBLAS's double precision takes milliseconds, shares no code
    with what is tuned, and is as good a judge of float32 and half types; float64 results are held against NumPy's.
    """

    def __init__(self, device: CudaContext, kernel: Kernel, problem: Problem, widen: Function) -> None:
        self._device, self._kernel, self._problem = device, kernel, problem
        self._widen = widen
        self._workspace: Any = None
        self._library: Cublas | None = None
        flops = kernel.flops(problem)
        few = sum(tensor.size_bytes(problem) for tensor in kernel.tensors) < _SMALL_BYTES
        self._is_small = few and flops is not None and flops < _SMALL_FLOPS
        is_alike = problem.dtype != "float64" and kernel.output.dtype_for(problem) == problem.dtype
        is_alone = len(kernel.outputs) == 1 and kernel.check is None
        product = kernel.product
        inside = None if product is None else product.inside(problem)
        usable = is_alike and is_alone and not self._is_small and inside is not None and has_call(inside.kernel)
        self._product: ProductReference | None = product if usable else None
        self._inside = inside or problem  # whose sums they are
        self._summing = kernel if self._inside == problem else catalogue().get(self._inside.kernel)

    @property
    def are_quick(self) -> bool:
        """Whether a reference takes hardly longer than launches: it is made on the device alone, or has few numbers."""
        if self._is_small or self._product is None:
            return self._is_small
        is_there = self._product.finish is None or self._product.there is not None
        return is_there or math.prod(self._summing.output.shape(self._inside)) <= _FEW_SUMS

    def made_there(
        self, host: Mapping[str, HostArray], addresses: Mapping[str, int], scalars: Mapping[str, float]
    ) -> HeldReference | None:
        """The reference made on the device for these inputs, which lie on the host and at these addresses; or None.

        None where it is not for the library to make.
        """
        if self._product is None:
            return None
        try:
            return self._on_device(self._product, host, addresses, scalars)
        except (OutOfMemoryError, LibraryError):
            return None  # the copies in float64 do not fit beside the arrays, or the library cannot do it

    def held(self, expected: Expected) -> dict[str, HeldReference] | None:
        """The same as on the host, by output; None where only the host can compare: by a check of the kernel's own,
        with integers that are none of the output's dtype, of an output that is no matrices, or where there is no room.
        """
        outputs = self._kernel.outputs
        if self._kernel.check is not None or not all(t.layout(self._problem).is_of_matrices for t in outputs):
            return None
        try:
            held = {t.name: self._held(t, expected.references[t.name]) for t in outputs}
        except OutOfMemoryError:
            return None
        known = {name: one for name, one in held.items() if one is not None}
        return known if len(known) == len(held) else None

    def close(self) -> None:
        """Frees the library's handle and workspace."""
        if self._library is not None:
            self._library.close()
        self._library = self._workspace = None

    def _on_device(
        self,
        product: ProductReference,
        host: Mapping[str, HostArray],
        addresses: Mapping[str, int],
        scalars: Mapping[str, float],
    ) -> HeldReference:
        problem = self._problem
        value, magnitude = (self._sums(addresses, scalars, absolute=absolute) for absolute in (False, True))
        if product.finish is None or product.there is not None:
            terms = product.terms(problem)
            if product.there is not None:
                self._finish(product.there, terms, host, value, magnitude)
            factor = bound_factor(terms, admitted_roundoff(problem), problem.dtype)
            return HeldReference(value, magnitude, factor, terms)
        shape = self._summing.output.shape(self._inside)
        sums, magnitudes = np.empty(shape), np.empty(shape)
        for memory, numbers in ((value, sums), (magnitude, magnitudes)):
            self._device.download(int(memory), numbers)
        reference = product.finish(problem, host, sums, magnitudes)
        for memory, numbers in ((value, reference.value), (magnitude, reference.magnitude)):
            self._device.upload(int(memory), np.ascontiguousarray(numbers))
        factor = bound_factor(reference.terms, reference.unit_roundoff, problem.dtype)
        return HeldReference(value, magnitude, factor, reference.terms)

    def _finish(
        self, there: FinishThere, terms: int, host: Mapping[str, HostArray], value: Any, magnitude: Any
    ) -> None:
        """Makes sums and magnitudes those of the results, in place."""
        problem, addends = self._problem, np.ascontiguousarray(host[there.addends], np.float64)
        held = self._device.allocate(addends.nbytes)
        self._device.upload(int(held), addends)
        work = self._device.compilation(resolved(there.source), there.macros(problem), _FINISH)
        finish = self._device.load(self._device.compile(work).cubin, _FINISH, "PPPQQddd")
        count, unit = math.prod(self._summing.output.shape(self._inside)), admitted_roundoff(problem)
        numbers = math.sqrt(terms), unit or UNIT_ROUNDOFF[problem.sum_dtype], SMALLEST_NORMAL[problem.sum_dtype]
        finish.enqueue(_LAUNCH, int(value), int(magnitude), int(held), addends.size, count, *numbers)
        self._device.synchronize()  # the addends are freed on return

    def _sums(self, addresses: Mapping[str, int], scalars: Mapping[str, float], *, absolute: bool) -> Any:
        """The product in float64, of all the numbers or of their absolute values."""
        problem, output = self._inside, self._summing.output
        factors = [tensor for tensor in self._summing.tensors if tensor.summed(problem) is not None]
        taking_part = [*factors, *([output] if output.is_read(problem) else [])]
        wide = {t.name: self._device.allocate(_WIDE_BYTES * t.layout(problem).elements) for t in {*factors, output}}
        for tensor in taking_part:
            count, to = tensor.layout(problem).elements, int(wide[tensor.name])
            self._widen.enqueue(_LAUNCH, addresses[tensor.name], to, count, int(absolute))
        scalars = {name: abs(number) if absolute else number for name, number in scalars.items()}
        pointers = {name: int(memory) for name, memory in wide.items()}
        as_matrices = self._blas().calls(product_of(replace(problem, dtype="float64"), pointers, scalars))[-1]
        as_matrices.enqueue()
        self._device.synchronize()  # the factors are freed on return
        return wide[output.name]

    def _blas(self) -> Cublas:
        if self._library is None:
            self._workspace = self._device.allocate(WORKSPACE_BYTES)
            self._library = Cublas(self._device.stream.handle, int(self._workspace))
        return self._library

    def _held(self, tensor: Tensor, reference: Reference) -> HeldReference | None:
        dtype = tensor.dtype_for(self._problem)
        if is_integer(dtype):
            with np.errstate(invalid="ignore"):
                exact = reference.value.astype(dtype)
            return HeldReference(self._uploaded(tensor, exact)) if np.array_equal(exact, reference.value) else None
        factor = bound_factor(reference.terms, reference.unit_roundoff, dtype)
        wide = (np.asarray(numbers, np.float64) for numbers in (reference.value, reference.magnitude))
        value, magnitude = (self._uploaded(tensor, numbers) for numbers in wide)
        return HeldReference(value, magnitude, factor, reference.terms)

    def _uploaded(self, tensor: Tensor, numbers: np.ndarray[Any, Any]) -> Any:
        layout = tensor.layout(self._problem)
        laid_out = layout.memory_of(layout.placed(numbers))
        memory = self._device.allocate(laid_out.nbytes)
        self._device.upload(int(memory), laid_out)
        return memory
