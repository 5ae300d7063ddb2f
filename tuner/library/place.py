"""The part of a CUDA context that the library's calls and the kernels beside them need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tilewright.tuner.compile.compilation import Compilation, Compiled


class LibraryPlace(Protocol):
    """Memory, a stream and loaded code on one device; `devices.cuda.context.CudaContext` has them."""

    stream: Any

    @property
    def model(self) -> Any:
        """The device model, with its limits."""

    def allocate(self, size_bytes: int) -> Any:
        """Device memory, freed with the object; int() of it is the address. Raises OutOfMemoryError."""

    def compilation(self, source: str, definitions: Mapping[str, str], entry: str, suffix: str = "") -> Compilation:
        """A compilation for this GPU by its compiler."""

    def compile(self, work: Compilation) -> Compiled:
        """The cubin; raises TrialFailure."""

    def load(self, cubin: bytes, entry: str, arguments: str, max_dynamic_shared_bytes: int = 0) -> Any:
        """The function of that name; `arguments` as PyCUDA's format letters."""


class Addressed(Protocol):
    """The arrays of a problem on the device."""

    addresses: dict[str, int]
