"""Launches on GPUs: one problem, loaded once in each context that it is launched in.

`launch` is what every call goes through when all is prepared: no allocation, no synchronisation, four or five calls of
the driver, which are quicker by ctypes than a Python object for a stream that somebody else has made.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tilewright.kernels.kernel import Kernel, Launch, Scalar
from tilewright.kernels.problem import Problem
from tilewright.tuner.compile.cache import CubinCache, compiled_by, default_folder
from tilewright.tuner.compile.compilation import Compilation, arch_of
from tilewright.tuner.devices.cuda.driver import DriverError, call, function
from tilewright.tuner.devices.local import default_compiler
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.runtime.arguments import check_addresses
from tilewright.tuner.runtime.choice import Choice, Chooses
from tilewright.tuner.runtime.contexts import (
    OF_THREAD,
    Allocation,
    allocation_of,
    allowed_while_capturing,
    check_memory,
    context_of,
    current_handle,
    current_ordinal,
    look_up,
    primary,
    pushed,
    quick,
)
from tilewright.tuner.runtime.errors import BundleWarning, LaunchError, WrongDeviceError, warn
from tilewright.tuner.runtime.forks import ForkSafeLock
from tilewright.tuner.runtime.gpu import gpu_place
from tilewright.tuner.runtime.workspaces import Workspaces

_MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_MOST_KNOWN = 256
"""Combinations of addresses of which a launch remembers the allocations: about 2 kB each."""


class CudaLaunches:
    """Launches of one problem; `only` is the GPU's number where the caller named one."""

    def __init__(self, kernel: Kernel, problem: Problem, choices: Chooses, only: int | None = None) -> None:
        self._kernel, self._problem, self._choices, self._only = kernel, problem, choices, only
        self._loaded: dict[int, LoadedKernel] = {}
        self._lock = ForkSafeLock()
        self._ask_context, self._ask_memory = quick("cuCtxGetId"), quick("cuPointerGetAttribute")
        self._enqueue = function("cuLaunchKernelEx")

    def launch(  # noqa: C901 - every call goes through here: a function more is a twentieth of a microsecond more
        self, addresses: tuple[int, ...], scalars: tuple[float, ...], stream: int, ordinal: int | None
    ) -> None:
        """One launch in the current context, or where none is in the arrays' own. Raises LaunchError before it runs.

        `ordinal`: the GPU of arrays that keep their memory; None: somebody may have freed it since the last launch.
        """
        mine = OF_THREAD.scratch
        if self._ask_context(None, mine.context_id_at):
            with context_of(self._kernel.tensors[0].name, addresses[0]):
                self.prepared()
                self.launch(addresses, scalars, stream, ordinal)
            return
        loaded = self._loaded.get(mine.context_id.value) or self.prepared()
        try:
            words = loaded.spare.pop()  # each launch that is under way has its own: other threads launch too
        except IndexError:
            words = loaded.words()
        allocations = words.known.get(addresses)
        if allocations is None or (ordinal is not None and ordinal != loaded.ordinal):
            allocations = loaded.look(addresses, words)
        if ordinal is None:
            for question, found, number in allocations:
                if self._ask_memory(*question) or found.value != number:
                    loaded.look(addresses, words)
        if loaded.workspaces is not None:
            addresses = (*addresses, loaded.workspaces.address(stream))
        if words.addresses != addresses:
            words.move(addresses)
        if words.stream != stream or words.scalars != scalars:
            words.change(stream, scalars)
        for step in words.steps:
            status = self._enqueue(*step)
            if status:
                break
        loaded.spare.append(words)
        if status:
            raise LaunchError(f"{self._problem}: {DriverError('cuLaunchKernelEx', status)}")

    def prepare(self, ordinal: int) -> None:
        """Compiles and loads for that GPU: in the current context where it is that GPU's, else in the primary one."""
        if current_ordinal() == ordinal:
            self.prepared()
            return
        with pushed(primary(ordinal)):
            self.prepared()

    def prepared(self) -> LoadedKernel:
        """The kernel in the current context, loaded now where it is not yet."""
        mine = OF_THREAD.scratch
        self._ask_context(None, mine.context_id_at)
        number = mine.context_id.value
        with self._lock:
            if number not in self._loaded:
                ordinal = current_ordinal() or 0
                if self._only not in {None, ordinal}:
                    raise WrongDeviceError(
                        f"this launcher is for cuda:{self._only}, but the current context is on cuda:{ordinal}"
                    )
                self._loaded[number] = self._choices.loaded(
                    self._kernel,
                    self._problem,
                    gpu_place(ordinal),
                    lambda choice: LoadedKernel(self._kernel, self._problem, choice, ordinal),
                )
            return self._loaded[number]


class LoadedKernel:
    """One configuration in one context, which is current whenever this is used."""

    def __init__(self, kernel: Kernel, problem: Problem, choice: Choice, ordinal: int) -> None:
        variant, values = kernel.variant(choice.configuration.variant), choice.configuration.values
        self._kernel, self._problem = kernel, problem
        launches = variant.launches(kernel.entry, values, problem)
        self._geometries = [geometry for _, geometry in launches]
        self.ordinal, self._context = ordinal, current_handle()
        workspace_bytes = variant.workspace_bytes(values, problem)
        self.workspaces = Workspaces(workspace_bytes) if workspace_bytes else None
        self._functions = _load(kernel, problem, choice, ordinal, [entry for entry, _ in launches])
        for loaded, geometry in zip(self._functions, self._geometries, strict=True):
            if geometry.shared_bytes:
                call("cuFuncSetAttribute", loaded, _MAX_DYNAMIC_SHARED_BYTES, geometry.shared_bytes)
        self.spare: list[LaunchWords] = []

    def look(self, addresses: tuple[int, ...], words: LaunchWords) -> list[Allocation]:
        """The allocations of the addresses; raises LaunchError where this kernel may not use one here."""
        check_addresses(self._kernel, self._problem, addresses)
        for tensor, address in zip(self._kernel.tensors, addresses, strict=True):
            check_memory(tensor.name, look_up(address), self._context, self.ordinal)
        if len(words.known) >= _MOST_KNOWN:
            words.known.clear()
        words.known[addresses] = allocations = [allocation_of(address) for address in addresses]
        return allocations

    def words(self) -> LaunchWords:
        """Words for one more launch at a time."""
        steps = list(zip(self._functions, self._geometries, strict=True))
        return LaunchWords(self._kernel, self._problem, steps, self.workspaces is not None)


class _Configuration(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class LaunchWords:
    """The words of cuLaunchKernelEx for each of a variant's launches, made once and filled in again and again."""

    def __init__(
        self, kernel: Kernel, problem: Problem, launches: Sequence[tuple[ctypes.c_void_p, Launch]], has_workspace: bool
    ) -> None:
        real = ctypes.c_float if problem.dtype == "float32" else ctypes.c_double
        count = len(kernel.tensors) + has_workspace
        self.known: dict[tuple[int, ...], list[Allocation]] = {}
        self.addresses: tuple[int, ...] = ()
        self._pointers, self._pack = (ctypes.c_uint64 * count)(), struct.Struct(f"{count}Q").pack_into
        self._numbers = [real() for argument in kernel.arguments if isinstance(argument, Scalar)]
        self.stream, self.scalars = 0, tuple(0.0 for _ in self._numbers)
        start = ctypes.addressof(self._pointers)
        pointers, numbers = iter(range(start, start + 8 * count, 8)), iter(self._numbers)
        cells = [
            ctypes.addressof(next(numbers)) if isinstance(argument, Scalar) else next(pointers)
            for argument in kernel.arguments
        ]
        cells += pointers  # the workspace
        self._configurations = [_Configuration(g.grid, g.block, g.shared_bytes) for _, g in launches]
        arguments = (ctypes.c_void_p * len(cells))(*cells)
        self.steps = [
            (ctypes.byref(configuration), loaded, arguments, None)
            for configuration, (loaded, _) in zip(self._configurations, launches, strict=True)
        ]

    def move(self, addresses: tuple[int, ...]) -> None:
        """Fills in the addresses, a workspace's last."""
        self._pack(self._pointers, 0, *addresses)
        self.addresses = addresses

    def change(self, stream: int, scalars: tuple[float, ...]) -> None:
        """Fills in what is mostly the same."""
        self.stream, self.scalars = stream, scalars
        for configuration in self._configurations:
            configuration.stream = stream
        for cell, value in zip(self._numbers, scalars, strict=True):
            cell.value = value


def _load(
    kernel: Kernel, problem: Problem, choice: Choice, ordinal: int, entries: Sequence[str]
) -> list[ctypes.c_void_p]:
    """The functions in the current context; the module stays loaded, since a graph may hold it."""
    if choice.cubin is not None:
        try:
            return _functions(choice.cubin, entries)
        except DriverError as error:
            warn(f"{problem}: the bundle's cubin is of no use here ({error})", BundleWarning)
    arch = arch_of(gpu_place(ordinal).limits.compute_capability)
    work = Compilation.of(kernel, problem, choice.configuration, arch, default_compiler())
    try:
        compiled = compiled_by(_cubins(default_folder()), work)
    except TrialFailure as failure:
        raise LaunchError(f"{kernel.name} {choice.configuration} does not compile: {failure.log}") from failure
    return _functions(compiled.cubin, entries)


def _functions(cubin: bytes, entries: Sequence[str]) -> list[ctypes.c_void_p]:
    module, found = ctypes.c_void_p(), [ctypes.c_void_p() for _ in entries]
    with allowed_while_capturing():
        call("cuModuleLoadData", ctypes.byref(module), cubin)
        for one, entry in zip(found, entries, strict=True):
            call("cuModuleGetFunction", ctypes.byref(one), module, entry.encode())
    return found


@cache
def _cubins(folder: Path) -> CubinCache:
    return CubinCache(folder)
