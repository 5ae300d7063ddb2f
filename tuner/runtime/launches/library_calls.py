"""The library's calls that launchers make where they were faster: by the names under which results are stored.

A name says the library, its version and the algorithm, so that it means the same in another process, and nothing where
another version is installed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tilewright.kernels.kernel import Kernel, Scalar
from tilewright.kernels.problem import Problem
from tilewright.kernels.variant import SHARED_COUNTER_BYTES
from tilewright.tuner.devices.cpu import library as cpu
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.library import cublas, cublaslt
from tilewright.tuner.library.cublas import LibraryError
from tilewright.tuner.library.names import CUBLAS, CUBLASLT, OPENBLAS
from tilewright.tuner.library.product import Product, fused_product
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.launches.contexts import Allocation, allowed_while_capturing, current_id
from tilewright.tuner.runtime.launches.loaded_kernel import Loaded
from tilewright.tuner.runtime.memory.room import ROOM, NoRoomError
from tilewright.tuner.runtime.memory.shared import SharedWorkspaces, shared_workspaces

_REFUSED: dict[tuple[Problem, str], str] = {}
"""The reasons why calls could not be made ready in this process, by problem and name."""

_APART = 1 << 12
"""Between the addresses that stand for arrays until a launch names theirs."""


def call_of(problem: Problem, choice: Choice) -> tuple[str | None, str]:
    """The library's call that is launched instead of the choice's configuration, and the reason if it is not launched.

    The call is None and the reason empty if the library was not measured to be faster.
    """
    name = choice.library_name
    if name is None or not choice.library_faster or not choice.is_measured:
        return None, ""
    is_packed = problem.options.get("packed_b")
    why_not = "an operand is packed" if is_packed else _REFUSED.get((problem, name)) or _why_not_here(name)
    return (None, f"{name} is not launched: {why_not}") if why_not else (name, "")


def refuse(problem: Problem, name: str, reason: object) -> None:
    """Marks the call as refused: it is not tried again in this process."""
    _REFUSED[problem, name] = str(reason)


def _why_not_here(name: str) -> str:
    if name.startswith(CUBLAS):
        return cublas.why_not_here(name)
    if name.startswith(CUBLASLT):
        return cublaslt.why_not_here(name)
    return cpu.why_not_here(name) if name.startswith(OPENBLAS) else "the launcher makes no calls of this kind"


class LibraryWorkspaces:
    """The workspaces of a library call's launches.

    The memory that launches of a stream share begins with counters; these lie behind them.
    """

    def __init__(self, name: str, size_bytes: int, shared: SharedWorkspaces | None) -> None:
        self._name, self._size_bytes = name, SHARED_COUNTER_BYTES + size_bytes
        self._shared = shared or shared_workspaces(current_id())

    def address(self, stream: int) -> int:
        """The address of the workspace for a launch on that stream now; raises LibraryRefusedError."""
        try:
            return self._shared.address(stream, self._size_bytes) + SHARED_COUNTER_BYTES
        except NoRoomError as error:
            raise LibraryRefusedError(self._name, str(error)) from error


@cache
def _library_in(_context: int) -> cublaslt.CublasLt:
    """The library with one handle for the current context, which has that id; any number of threads may use it."""
    return cublaslt.CublasLt()


@cache
def _cublas_in(_context: int, _precision: str) -> SharedCublas:
    """The library with one handle for the current context, which has that id, and the products of one precision."""
    return SharedCublas()


class SharedCublas(cublas.Cublas):
    """A handle whose stream and workspace are set by one launch at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._lock, self._place = ForkSafeLock(), (-1, -1)

    def algorithm(self, product: Product, name: str) -> cublas.Routine | None:
        """The routine of that name; None where cuBLAS has none for this product."""
        with self._lock:
            return next((one for one in self.routines(product) if one.name == name), None)

    def matmul(self, product: Product, routine: cublas.Routine) -> cublas.Arguments:
        """The arguments of one more launch at a time; its addresses, workspace and stream are still 0."""
        return cublas.Arguments(self.algorithm(product, routine.name) or routine, product)

    def enqueue(self, arguments: cublas.Arguments) -> int:
        """The status of a launch."""
        place = arguments.stream.value or 0, arguments.workspace.value or 0
        with self._lock:
            if place != self._place:
                self.move(*place)
                self._place = place
            return self.status(arguments.routine)


class LibraryRefusedError(LibraryError):
    """An algorithm that was made ready refused a launch."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


class LoadedLibrary(Loaded):
    """One algorithm of cuBLASLt or routine of cuBLAS in one context, which is current whenever this is used.

    Raises LibraryError where the library does not have it, and LaunchError where there is no room for its workspace.
    `shared`: where that lies.
    """

    def __init__(
        self, kernel: Kernel, problem: Problem, name: str, ordinal: int, shared: SharedWorkspaces | None = None
    ) -> None:
        super().__init__(kernel, problem, ordinal)
        self._name = name
        places = {tensor.name: _APART * (1 + place) for place, tensor in enumerate(kernel.tensors)}
        product = fused_product(problem, places, {})
        with allowed_while_capturing():
            self._library: Any = _library_in(current_id())
            if product is not None and name.startswith(CUBLAS):
                self._library = _cublas_in(current_id(), product.precision)
            found = None if product is None else self._library.algorithm(product, name)
        if product is None or found is None:
            raise LibraryError("the library does not name this algorithm here")
        self._product, self._algorithm, self.enqueue = product, found, self._first
        ROOM.check(ordinal, found.workspace_bytes)
        if found.workspace_bytes:
            self.workspaces = LibraryWorkspaces(name, found.workspace_bytes, shared)
        used = (product.first.address, product.second.address, product.out.address, product.bias)
        self._places = [address // _APART - 1 for address in used]
        scalars = [argument.name for argument in kernel.arguments if isinstance(argument, Scalar)]
        self._alpha, self._beta = (scalars.index(one) if one in scalars else -1 for one in ("alpha", "beta"))
        if problem.options.get("beta_zero"):
            self._beta = -1

    def words(self) -> LibraryArguments:
        """The arguments of one more launch at a time."""
        matmul = self._library.matmul(self._product, self._algorithm)
        return LibraryArguments(matmul, self._places, self._alpha, self._beta)

    def _first(self, *arguments: object) -> int:
        """Makes the first launch, at which the library may load code, even while a graph is captured."""
        self.enqueue = self._library.enqueue
        with allowed_while_capturing():
            status: int = self.enqueue(*arguments)
        return status

    def failure(self, status: int) -> Exception:
        """The error that a status of its launch means."""
        return LibraryRefusedError(self._name, f"{self._name}: status {status}")


class LibraryArguments:
    """The arguments of the library's function, filled in as those of a kernel are (`loaded_kernel.LaunchArguments`)."""

    def __init__(self, matmul: cublaslt.Matmul | cublas.Arguments, places: list[int], alpha: int, beta: int) -> None:
        self._matmul, self._places, self._alpha, self._beta = matmul, places, alpha, beta
        self.known: dict[tuple[int, ...], list[Allocation]] = {}
        self.addresses: tuple[int, ...] = ()
        self.scalars: tuple[float, ...] = ()
        self.stream = 0
        self.steps = [matmul.arguments]

    def move(self, addresses: tuple[int, ...]) -> None:
        """Fills in the addresses, a workspace's last."""
        first, second, out, bias = (addresses[place] if place >= 0 else 0 for place in self._places)
        self._matmul.move(first, second, out, bias)
        self._matmul.workspace.value = addresses[-1]
        self.addresses = addresses

    def change(self, stream: int, scalars: tuple[float, ...]) -> None:
        """Fills in what is mostly the same."""
        self.stream, self.scalars, self._matmul.stream.value = stream, scalars, stream
        if self._alpha >= 0:
            self._matmul.alpha.value = scalars[self._alpha]
        if self._beta >= 0:
            self._matmul.beta.value = scalars[self._beta]
