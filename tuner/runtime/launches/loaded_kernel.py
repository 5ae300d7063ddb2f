"""A configuration loaded in one context, and the arguments of its launches, which are made once and filled in again."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tilewright.kernels.kernel import Kernel, Launch, Scalar, Tensor
from tilewright.kernels.problem import Problem
from tilewright.kernels.variant import KEPT_SUMMARY_BYTES, TensorMap
from tilewright.tuner.compile.cache import CubinCache, compiled_by, default_folder
from tilewright.tuner.compile.compilation import HIDDEN_ADDRESSES, Compilation, Compiled, CompiledLaunch, arch_of
from tilewright.tuner.compile.compiler import default_compiler
from tilewright.tuner.devices.cuda.driver import DriverError, call, function
from tilewright.tuner.devices.cuda.launch import config_of
from tilewright.tuner.devices.cuda.tensor_map import MapCells
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.runtime.arrays.arguments import check_addresses
from tilewright.tuner.runtime.arrays.packed import KeptMemory, PackedOperand
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.errors import ArgumentError, BundleWarning, LaunchError, warn
from tilewright.tuner.runtime.first_use.first_use import FirstUse
from tilewright.tuner.runtime.first_use.on_stream import rows_check
from tilewright.tuner.runtime.launches.contexts import (
    Allocation,
    allocation_of,
    allowed_while_capturing,
    check_memory,
    current_handle,
    current_id,
    look_up,
)
from tilewright.tuner.runtime.launches.gpu import gpu_place
from tilewright.tuner.runtime.memory.room import ROOM
from tilewright.tuner.runtime.memory.workspaces import Workspaces, capture_id

MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_MOST_KNOWN = 256
"""Combinations of addresses of which a launch remembers the allocations: about 2 kB each."""

Constant = tuple[int, int, int]
"""An input for constant memory: its place among the tensors, the address there, and the bytes."""


class HasAddress(Protocol):
    """The workspaces of launches on all streams."""

    def address(self, stream: int) -> int:
        """The address of the workspace for a launch on that stream now."""


class Loaded:
    """A kernel as it is launched in one context. `spare`: arguments that no launch uses just then.

    `check`: that of its first use, until its verdict was read. `enqueue` makes one of the steps of such arguments.
    """

    use: FirstUse | None = None
    check: Any = None
    workspaces: HasAddress | None = None
    constants: Sequence[Constant] = ()
    kept_bytes = 0
    enqueue: Callable[..., int]

    def __init__(self, kernel: Kernel, problem: Problem, ordinal: int) -> None:
        self._kernel, self._problem = kernel, problem
        self.ordinal, self._context = ordinal, current_handle()
        self.spare: list[Any] = []

    def look(self, addresses: tuple[int, ...], words: Any) -> list[Allocation]:
        """The allocations of the addresses; raises LaunchError where nothing may be launched on one of them."""
        check_addresses(self._kernel, self._problem, addresses)
        for tensor, address in zip(self._kernel.tensors, addresses, strict=True):
            check_memory(tensor.name, look_up(address), self._context, self.ordinal)
        if len(words.known) >= _MOST_KNOWN:
            words.known.clear()
        words.known[addresses] = allocations = [allocation_of(address) for address in addresses]
        return allocations

    def fill(self, addresses: tuple[int, ...], stream: int) -> None:
        """Copies inputs to constant memory, on the stream; `addresses` are all of a launch's."""
        for place, target, size_bytes in self.constants:
            source, size, on = ctypes.c_uint64(addresses[place]), ctypes.c_size_t(size_bytes), ctypes.c_void_p(stream)
            call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(target), source, size, on)


class LoadedKernel(Loaded):
    """One configuration in one context, which is current whenever this is used."""

    def __init__(
        self, kernel: Kernel, problem: Problem, choice: Choice, ordinal: int, use: FirstUse | None = None
    ) -> None:
        super().__init__(kernel, problem, ordinal)
        variant, values = kernel.variant(choice.configuration.variant), choice.configuration.values
        launches = variant.launches(kernel.entry, values, problem)
        self._geometries = [geometry for _, geometry in launches]
        workspace_bytes = variant.workspace_bytes(values, problem)
        packing = variant.packing_launches(kernel.entry, values, problem)
        entries = [entry for entry, _ in (*launches, *packing)]
        ROOM.check(ordinal, workspace_bytes)  # before anything is compiled
        functions, self.constants, compiled = _load(kernel, problem, choice, ordinal, entries)
        self._nulls = 0
        if compiled is not None:
            self._geometries = [compiled.applied(self._geometries[-1])]
            workspace_bytes = compiled.workspace_bytes(self._geometries[-1])
            self._nulls = HIDDEN_ADDRESSES - bool(workspace_bytes)
        self.workspaces = Workspaces(workspace_bytes) if workspace_bytes else None
        self._functions = functions[: len(launches)]
        self._packing = [(one, step) for one, (_, step) in zip(functions[len(launches) :], packing, strict=True)]
        self.kept_bytes = variant.kept_bytes(problem)
        self._maps = variant.tensor_maps(values, problem)
        sizes = (problem.shape["n"], problem.shape["k"]) if self.kept_bytes else ()
        self._key = current_id(), choice.configuration.variant, *sizes, self.kept_bytes
        for loaded, geometry in zip(self._functions, self._geometries, strict=True):
            if geometry.shared_bytes:
                call("cuFuncSetAttribute", loaded, MAX_DYNAMIC_SHARED_BYTES, geometry.shared_bytes)
        self.use, self.check = use, rows_check(kernel, problem, use, current_id())
        self.enqueue = function("cuLaunchKernelEx")

    def failure(self, status: int) -> Exception:
        """The error that a status of its launch means."""
        return LaunchError(f"{self._problem}: {DriverError('cuLaunchKernelEx', status)}")

    def words(self) -> LaunchArguments:
        """Arguments for one more launch at a time."""
        return self._words(list(zip(self._functions, self._geometries, strict=True)))

    def _words(self, steps: Sequence[tuple[ctypes.c_void_p, Launch]]) -> LaunchArguments:
        scratch = (self.workspaces is not None) + bool(self.kept_bytes)
        return LaunchArguments(self._kernel, self._problem, steps, scratch, self._nulls, self._maps)

    def kept(self, packed: PackedOperand, addresses: tuple[int, ...], stream: int) -> int:
        """The address of the packed operand, packed now where it is not yet; `addresses` are all of a launch's."""
        return packed.address(self._key, lambda: self._pack(packed, addresses, stream))

    def _pack(self, packed: PackedOperand, addresses: tuple[int, ...], stream: int) -> KeptMemory:
        if capture_id(stream):
            raise ArgumentError(
                packed.name,
                f"is not packed for {self._problem} yet, and a CUDA graph is being captured",
                f"Launch once, or call this launcher's pack({packed.name}), before the capture",
            )
        check_memory(packed.name, look_up(max(addresses[: len(self._kernel.tensors)])), self._context, self.ordinal)
        memory, on = KeptMemory(self.kept_bytes), ctypes.c_void_p(stream)
        words = self._words(self._packing)
        words.move((*addresses, memory.address))
        words.change(stream, words.scalars)
        call("cuMemsetD8Async", ctypes.c_uint64(memory.address), 0, ctypes.c_size_t(KEPT_SUMMARY_BYTES), on)
        for step in words.steps:
            call("cuLaunchKernelEx", *step)
        call("cuStreamSynchronize", on)  # any stream may use it from here on
        return memory


class LaunchArguments:
    """The words of cuLaunchKernelEx for each of a variant's launches, made once and filled in again and again.

    `scratch`: memory of the launcher's own behind the arguments; behind it come so many addresses that are 0, and then
    tensor maps.
    """

    def __init__(
        self,
        kernel: Kernel,
        problem: Problem,
        launches: Sequence[tuple[ctypes.c_void_p, Launch]],
        scratch: int,
        nulls: int = 0,
        maps: Sequence[TensorMap] = (),
    ) -> None:
        count = len(kernel.tensors) + scratch
        self.known: dict[tuple[int, ...], list[Allocation]] = {}
        self.addresses: tuple[int, ...] = ()
        self._pointers, self._pack = (ctypes.c_uint64 * count)(), struct.Struct(f"{count}Q").pack_into
        scalars = [argument for argument in kernel.arguments if isinstance(argument, Scalar)]
        self._numbers = [np.ctypeslib.as_ctypes_type(scalar.dtype_for(problem))() for scalar in scalars]
        self.stream, self.scalars = 0, tuple(0.0 for _ in self._numbers)
        start = ctypes.addressof(self._pointers)
        cell_of = {tensor.name: start + 8 * place for place, tensor in enumerate(kernel.tensors)}
        cell_of |= {
            scalar.name: ctypes.addressof(number) for scalar, number in zip(scalars, self._numbers, strict=True)
        }
        cells = [cell_of[argument.name] for argument in kernel.passed(problem)]
        cells += range(start + 8 * len(kernel.tensors), start + 8 * count, 8)  # workspace, what is kept packed
        self._null = ctypes.c_uint64()
        cells += [ctypes.addressof(self._null)] * nulls
        self._maps = MapCells(kernel, problem, maps)
        cells += self._maps.places
        self._configurations = [config_of(loaded, geometry) for loaded, geometry in launches]
        arguments = (ctypes.c_void_p * len(cells))(*cells)
        self.steps = [
            (ctypes.byref(configuration), loaded, arguments, None)
            for configuration, (loaded, _) in zip(self._configurations, launches, strict=True)
        ]

    def move(self, addresses: tuple[int, ...]) -> None:
        """Fills in the addresses, a workspace's last."""
        self._pack(self._pointers, 0, *addresses)
        self._maps.encode(addresses)
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
) -> tuple[list[ctypes.c_void_p], list[Constant], CompiledLaunch | None]:
    """The functions and constants in the current context, and what their compiler decided of the launch.

    The module stays loaded, since a graph may hold it.
    """
    if choice.cubin is not None:
        try:
            compiled = Compiled(choice.cubin, launch=choice.launch, shared=choice.shared_cubin)
            return *_functions(compiled, entries, kernel, problem), compiled.launch
        except DriverError as error:
            warn(f"{problem}: the bundle's cubin is of no use here ({error})", BundleWarning)
    arch = arch_of(gpu_place(ordinal).limits.compute_capability)
    work = Compilation.of(kernel, problem, choice.configuration, arch, default_compiler())
    try:
        compiled = compiled_by(_cubins(default_folder()), work)
    except TrialFailure as failure:
        raise LaunchError(f"{kernel.name} {choice.configuration} does not compile: {failure.log}") from failure
    return *_functions(compiled, entries, kernel, problem), compiled.launch


def load_functions(
    kernel: Kernel, problem: Problem, choice: Choice, ordinal: int, entries: Sequence[str]
) -> list[ctypes.c_void_p]:
    """The functions in the current context, compiled where they are not yet; raises LaunchError."""
    functions, constants, compiled = _load(kernel, problem, choice, ordinal, entries)
    if constants or compiled is not None:
        raise LaunchError(f"{kernel.name}: neither constants nor Triton functions have a size from the launch")
    return functions


def _functions(
    compiled: Compiled, entries: Sequence[str], kernel: Kernel, problem: Problem
) -> tuple[list[ctypes.c_void_p], list[Constant]]:
    modules = {cubin: ctypes.c_void_p() for cubin in (compiled.cubin, compiled.shared) if cubin}
    found = [ctypes.c_void_p() for _ in entries]
    with allowed_while_capturing():
        for cubin, module in modules.items():
            call("cuModuleLoadData", ctypes.byref(module), cubin)
        for one, (cubin, symbol) in zip(found, map(compiled.function, entries), strict=True):
            call("cuModuleGetFunction", ctypes.byref(one), modules[cubin], symbol.encode())
        own, placed = modules[compiled.cubin], enumerate(kernel.tensors)
        return found, [_constant(own, place, tensor, problem) for place, tensor in placed if tensor.symbol]


def _constant(module: ctypes.c_void_p, place: int, tensor: Tensor, problem: Problem) -> Constant:
    address, size, needed = ctypes.c_uint64(), ctypes.c_size_t(), tensor.size_bytes(problem)
    call("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), module, tensor.symbol.encode())
    if size.value < needed:
        raise LaunchError(f"{tensor.symbol} in the source has {size.value} bytes, and {tensor.name} has {needed}")
    return place, address.value, needed


@cache
def _cubins(folder: Path) -> CubinCache:
    return CubinCache(folder)
