"""Launches on GPUs: one problem, loaded once in each context that it is launched in.

`launch` is what every call goes through when all is prepared: no allocation, no synchronisation, four or five calls of
the driver, which are quicker by ctypes than a Python object for a stream that somebody else has made.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache, partial, reduce
from operator import or_
from pathlib import Path

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
from tilewright.tuner.runtime.arguments import ALIGNMENT, check_addresses
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.contexts import (
    OF_THREAD,
    Allocation,
    allocation_of,
    allowed_while_capturing,
    check_memory,
    context_of,
    current_handle,
    current_id,
    current_ordinal,
    look_up,
    primary,
    pushed,
    quick,
)
from tilewright.tuner.runtime.errors import ArgumentError, BundleWarning, LaunchError, WrongDeviceError, warn
from tilewright.tuner.runtime.first_use.chooses import Chooses
from tilewright.tuner.runtime.first_use.drawn import HostMemory, verified
from tilewright.tuner.runtime.first_use.first_use import Finding, FirstUse
from tilewright.tuner.runtime.first_use.on_stream import rows_check
from tilewright.tuner.runtime.forks import ForkSafeLock
from tilewright.tuner.runtime.gpu import gpu_place
from tilewright.tuner.runtime.packed import KeptMemory, PackedOperand
from tilewright.tuner.runtime.workspaces import Workspaces, capture_id

MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_LEGACY = 0  # the default stream
_MOST_KNOWN = 256
"""Combinations of addresses of which a launch remembers the allocations: about 2 kB each."""


Constant = tuple[int, int, int]
"""An input for constant memory: its place among the tensors, the address there, and the bytes."""


class CudaLaunches:
    """Launches of one problem; `only` is the GPU's number where the caller named one."""

    def __init__(self, kernel: Kernel, problem: Problem, choices: Chooses, only: int | None = None) -> None:
        self._kernel, self._problem, self._choices, self._only = kernel, problem, choices, only
        self._loaded: dict[int, LoadedKernel] = {}
        self._trusted: dict[tuple[int, int], LoadedKernel] = {}
        self._lock = ForkSafeLock()
        self._ask_context, self._ask_memory = quick("cuCtxGetId"), quick("cuPointerGetAttribute")
        self._enqueue = function("cuLaunchKernelEx")

    def launch(
        self,
        addresses: tuple[int, ...],
        scalars: tuple[float, ...],
        stream: int,
        ordinal: int | None,
        packed: PackedOperand | None = None,
    ) -> None:
        """One launch in the current context, or where none is in the arrays' own. Raises LaunchError before it runs.

        `ordinal`: the GPU of arrays that keep their memory; None: somebody may have freed it since the last launch.
        """
        mine = OF_THREAD.scratch
        if self._ask_context(None, mine.context_id_at):
            with context_of(self._kernel.tensors[0].name, addresses[0]):
                self.prepared()
                self.launch(addresses, scalars, stream, ordinal, packed)
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
        self._submit(loaded, words, addresses, scalars, stream, packed)

    def launch_fresh(self, addresses: tuple[int, ...], scalars: tuple[float, ...], stream: int, ordinal: int) -> None:
        """As `launch`, of arrays that keep their memory and of outputs that nothing else lies in.

        In a context in which such arrays were launched before, nothing of them is looked up: a model has new addresses
        in every call, and asking for each took longer than the launch.
        """
        mine = OF_THREAD.scratch
        is_without = self._ask_context(None, mine.context_id_at)
        loaded = None if is_without else self._trusted.get((mine.context_id.value, ordinal))
        if loaded is None or reduce(or_, addresses) % ALIGNMENT or 0 in addresses:
            self.launch(addresses, scalars, stream, ordinal)
            launched = None if is_without else self._loaded.get(mine.context_id.value)
            if launched is not None:
                self._trusted[mine.context_id.value, ordinal] = launched
            return
        try:
            words = loaded.spare.pop()
        except IndexError:
            words = loaded.words()
        self._submit(loaded, words, addresses, scalars, stream)

    def _submit(
        self,
        loaded: LoadedKernel,
        words: LaunchArguments,
        addresses: tuple[int, ...],
        scalars: tuple[float, ...],
        stream: int,
        packed: PackedOperand | None = None,
    ) -> None:
        """Launches with these words, which it gives back."""
        check, checked = loaded.check, None
        if check is not None:
            if check.is_over and not self._stands(loaded):
                self.launch(addresses, scalars, stream, None, packed)
                return
            checked = check.taken(stream)
            if checked is not None:
                checked.before(addresses, scalars)
        try:
            self._enqueue_all(loaded, words, addresses, scalars, stream, packed)
        except BaseException:
            if checked is not None:
                checked.abandon()
            raise
        loaded.spare.append(words)
        if checked is not None:
            checked.after()

    def _enqueue_all(
        self,
        loaded: LoadedKernel,
        words: LaunchArguments,
        addresses: tuple[int, ...],
        scalars: tuple[float, ...],
        stream: int,
        packed: PackedOperand | None,
    ) -> None:
        if loaded.workspaces is not None:
            addresses = (*addresses, loaded.workspaces.address(stream))
        if packed is not None and loaded.kept_bytes:
            addresses = (*addresses, loaded.kept(packed, addresses, stream))
        if words.addresses != addresses:
            words.move(addresses)
        if words.stream != stream or words.scalars != scalars:
            words.change(stream, scalars)
        if loaded.constants:
            loaded.fill(addresses, stream)
        for step in words.steps:
            status = self._enqueue(*step)
            if status:
                raise LaunchError(f"{self._problem}: {DriverError('cuLaunchKernelEx', status)}")

    def _stands(self, loaded: LoadedKernel) -> bool:
        """Whether the configuration is right, now that the verdict is there; if not, it is not launched again."""
        check, loaded.check = loaded.check, None
        if check is None or check.settle():
            return True
        self._withdraw(check.use)
        return False

    def _withdraw(self, use: FirstUse, _finding: Finding | None = None) -> None:
        """Loads another configuration for the next launch, in every context that has this one."""
        with self._lock:
            self._trusted = {key: one for key, one in self._trusted.items() if one.use is not use}
            self._loaded = {number: one for number, one in self._loaded.items() if one.use is not use}

    def pack(self, packed: PackedOperand, address: int, stream: int) -> None:
        """Packs the operand at that address in the current context, or where none is in its own."""
        if not current_handle():
            with context_of(packed.name, address):
                self.pack(packed, address, stream)
            return
        loaded = self.prepared()
        place = [tensor.name for tensor in self._kernel.tensors].index(packed.name)
        addresses = tuple(address if i == place else 0 for i in range(len(self._kernel.tensors)))
        if loaded.workspaces is not None:
            addresses = (*addresses, loaded.workspaces.address(stream))
        if loaded.kept_bytes:
            loaded.kept(packed, addresses, stream)

    def load(self, ordinal: int) -> None:
        """Compiles and loads for that GPU, in its primary context where it is not current."""
        with pushed(current_handle() if current_ordinal() == ordinal else primary(ordinal)):
            self.prepared()

    def prepare(self, ordinal: int) -> None:
        """Compiles, loads and verifies for that GPU: in its current context where it has one, else in the primary one.

        Waits for the GPU where the configuration was not verified at this shape.
        """
        with pushed(current_handle() if current_ordinal() == ordinal else primary(ordinal)):
            while not self._is_verified(self.prepared()):
                pass  # another one was loaded, which ends at the default

    def _is_verified(self, loaded: LoadedKernel) -> bool:
        """Whether the configuration may stay; what is wrong is not launched again."""
        check, use = loaded.check, loaded.use
        if check is not None and check.is_under_way:
            with allowed_while_capturing():
                call("cuCtxSynchronize")
        if check is not None and check.is_over and not self._stands(loaded):
            return False
        if use is None or verified(use, partial(self._launch_copies, loaded)):
            return True
        self._withdraw(use)
        return False

    def _launch_copies(self, loaded: LoadedKernel, memory: Sequence[HostMemory], scalars: tuple[float, ...]) -> None:
        """One launch on copies of the host's memory, in the declared order; the outputs are there when it returns."""
        with allowed_while_capturing():
            copies = [KeptMemory(one.nbytes) for one in memory]
            for one, copy in zip(memory, copies, strict=True):
                size = ctypes.c_size_t(one.nbytes)
                call("cuMemcpyHtoD_v2", ctypes.c_uint64(copy.address), ctypes.c_void_p(one.ctypes.data), size)
            packed = PackedOperand(self._kernel.packed, None) if self._problem.options.get("packed_b") else None
            addresses = tuple(copy.address for copy in copies)
            self._enqueue_all(loaded, loaded.words(), addresses, scalars, _LEGACY, packed)
            call("cuStreamSynchronize", ctypes.c_void_p(_LEGACY))
            for tensor, one, copy in zip(self._kernel.tensors, memory, copies, strict=True):
                if tensor.role != "input":
                    size = ctypes.c_size_t(one.nbytes)
                    call("cuMemcpyDtoH_v2", ctypes.c_void_p(one.ctypes.data), ctypes.c_uint64(copy.address), size)

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
                place = gpu_place(ordinal)

                def load(choice: Choice) -> LoadedKernel:
                    use = self._choices.first_use(self._kernel, self._problem, place, choice)
                    if use is not None:
                        use.listen(self._withdraw)
                    return LoadedKernel(self._kernel, self._problem, choice, ordinal, use)

                self._loaded[number] = self._choices.loaded(self._kernel, self._problem, place, load)
            return self._loaded[number]


class LoadedKernel:
    """One configuration in one context, which is current whenever this is used.

    `check`: that of its first use, until its verdict was read.
    """

    def __init__(
        self, kernel: Kernel, problem: Problem, choice: Choice, ordinal: int, use: FirstUse | None = None
    ) -> None:
        variant, values = kernel.variant(choice.configuration.variant), choice.configuration.values
        self._kernel, self._problem = kernel, problem
        launches = variant.launches(kernel.entry, values, problem)
        self._geometries = [geometry for _, geometry in launches]
        self.ordinal, self._context = ordinal, current_handle()
        workspace_bytes = variant.workspace_bytes(values, problem)
        packing = variant.packing_launches(kernel.entry, values, problem)
        entries = [entry for entry, _ in (*launches, *packing)]
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
        self.spare: list[LaunchArguments] = []
        self.use, self.check = use, rows_check(kernel, problem, use, current_id())

    def look(self, addresses: tuple[int, ...], words: LaunchArguments) -> list[Allocation]:
        """The allocations of the addresses; raises LaunchError where this kernel may not use one here."""
        check_addresses(self._kernel, self._problem, addresses)
        for tensor, address in zip(self._kernel.tensors, addresses, strict=True):
            check_memory(tensor.name, look_up(address), self._context, self.ordinal)
        if len(words.known) >= _MOST_KNOWN:
            words.known.clear()
        words.known[addresses] = allocations = [allocation_of(address) for address in addresses]
        return allocations

    def fill(self, addresses: tuple[int, ...], stream: int) -> None:
        """Copies inputs to constant memory, on the stream; the addresses are all of a launch's."""
        for place, target, size_bytes in self.constants:
            source, size, on = ctypes.c_uint64(addresses[place]), ctypes.c_size_t(size_bytes), ctypes.c_void_p(stream)
            call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(target), source, size, on)

    def words(self) -> LaunchArguments:
        """Words for one more launch at a time."""
        return self._words(list(zip(self._functions, self._geometries, strict=True)))

    def _words(self, steps: Sequence[tuple[ctypes.c_void_p, Launch]]) -> LaunchArguments:
        scratch = (self.workspaces is not None) + bool(self.kept_bytes)
        return LaunchArguments(self._kernel, self._problem, steps, scratch, self._nulls, self._maps)

    def kept(self, packed: PackedOperand, addresses: tuple[int, ...], stream: int) -> int:
        """Where the packed operand lies, packed now where it is not yet; the addresses are all of a launch's."""
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
