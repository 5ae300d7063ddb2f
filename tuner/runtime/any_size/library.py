"""Ranges of a family that the library's call serves, by its own choice at each size."""

from __future__ import annotations

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.variant import SHARED_COUNTER_BYTES
from tilewright.tuner.library.cublas import WORKSPACE_BYTES
from tilewright.tuner.runtime.any_size.words import SizedCall
from tilewright.tuner.runtime.arrays.packed import PackedOperand
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.launches.host import HostLibrary
from tilewright.tuner.runtime.launches.library_calls import LoadedLibrary, call_of
from tilewright.tuner.runtime.memory.shared import SharedWorkspaces


def call_of_range(family: Family, choice: Choice) -> str | None:
    """The library's call that serves a range in place of its configuration; None where ours does.

    None too where a row's result must not depend on how many there are.
    """
    return None if family.batch_invariant else call_of(family.largest, choice)[0]


class SizedLibrary:
    """The call of that name in one context. Raises LibraryError where cublasLt has none at a size."""

    use = None  # its first use was verified when it was timed

    def __init__(self, kernel: Kernel, family: Family, name: str, ordinal: int, workspaces: SharedWorkspaces) -> None:
        self._kernel, self._family, self._name, self._ordinal = kernel, family, name, ordinal
        self._workspaces = workspaces
        self._by_size: dict[int, LoadedLibrary] = {}
        self._ready(family.high)

    def prepare(self, low: int, high: int) -> None:
        """Looks the algorithms up at both ends, and makes the default stream's workspace as large as any needs."""
        self._ready(low)
        self._ready(high)
        self._workspaces.reserve(SHARED_COUNTER_BYTES + WORKSPACE_BYTES)

    def pack(self, packed: PackedOperand, address: int, stream: int) -> None:
        """Does nothing: a library's call keeps no operand packed."""

    def launch(self, call: SizedCall) -> None:
        """Launches that size; raises LibraryRefusedError where it cannot, and nothing has run."""
        loaded = self._by_size.get(call.size) or self._ready(call.size)
        try:
            words = loaded.spare.pop()
        except IndexError:
            words = loaded.words()
        addresses = call.addresses
        if loaded.workspaces is not None:
            addresses = (*addresses, loaded.workspaces.address(call.stream))
        if words.addresses != addresses:
            words.move(addresses)
        if words.stream != call.stream or words.scalars != call.scalars:
            words.change(call.stream, call.scalars)
        status = loaded.enqueue(*words.steps[0])
        if status:
            raise loaded.failure(status)
        loaded.spare.append(words)

    def _ready(self, size: int) -> LoadedLibrary:
        """The algorithm at that size, for which the heuristic is asked once."""
        problem = self._family.exact(size)
        loaded = LoadedLibrary(self._kernel, problem, self._name, self._ordinal, self._workspaces)
        return self._by_size.setdefault(size, loaded)


class HostSizedLibrary:
    """A call of OpenBLAS's routine at any size."""

    def __init__(self, kernel: Kernel, family: Family) -> None:
        self._kernel, self._family = kernel, family

    def launch(self, size: int, addresses: tuple[int, ...], scalars: tuple[float, ...]) -> None:
        """One call, which is over when it returns."""
        HostLibrary(self._kernel, self._family.exact(size)).launch(addresses, scalars)
