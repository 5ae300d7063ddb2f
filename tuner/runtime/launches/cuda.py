"""Launches on GPUs: one problem, loaded once in each context that it is launched in.

`launch` is what every call goes through when all is prepared: no allocation, no synchronisation, four or five calls of
the driver, which are quicker by ctypes than a Python object for a stream that somebody else has made.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial, reduce
from operator import or_

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.devices.cuda.driver import call
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.library.cublas import LibraryError
from tilewright.tuner.runtime.arrays.arguments import ALIGNMENT
from tilewright.tuner.runtime.arrays.packed import KeptMemory, PackedOperand
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.errors import LaunchError
from tilewright.tuner.runtime.first_use.chooses import Chooses
from tilewright.tuner.runtime.first_use.drawn import HostMemory, verified
from tilewright.tuner.runtime.first_use.first_use import Finding, FirstUse
from tilewright.tuner.runtime.launches.contexts import (
    OF_THREAD,
    allowed_while_capturing,
    context_of,
    current_handle,
    current_ordinal,
    launching_ordinal,
    primary,
    pushed,
    quick,
)
from tilewright.tuner.runtime.launches.gpu import gpu_place
from tilewright.tuner.runtime.launches.library_calls import (
    LibraryArguments,
    LibraryRefusedError,
    LoadedLibrary,
    call_of,
    refuse,
)
from tilewright.tuner.runtime.launches.loaded_kernel import LaunchArguments, LoadedKernel
from tilewright.tuner.runtime.memory.room import NoRoomError

_LEGACY = 0  # the default stream

_Loaded = LoadedKernel | LoadedLibrary


class CudaLaunches:
    """Launches of one problem; `only` is the GPU's number where the caller named one."""

    def __init__(self, kernel: Kernel, problem: Problem, choices: Chooses, only: int | None = None) -> None:
        self._kernel, self._problem, self._choices, self._only = kernel, problem, choices, only
        self._loaded: dict[int, _Loaded] = {}
        self._trusted: dict[tuple[int, int], _Loaded] = {}
        self._lock = ForkSafeLock()
        self._ask_context, self._ask_memory = quick("cuCtxGetId"), quick("cuPointerGetAttribute")

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
        """Launches as `launch` does, on arrays that keep their memory and into outputs that nothing else lies in.

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
        loaded: _Loaded,
        words: LaunchArguments | LibraryArguments,
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
        except NoRoomError:  # there was some when it was loaded; what is loaded now takes none
            if checked is not None:
                checked.abandon()
            self._submit_anew(loaded, addresses, scalars, stream, packed)
            return
        except LibraryRefusedError as error:  # it names algorithms for any such address, and some refuse one
            refuse(self._problem, error.name, error)
            self._drop(loaded)
            self.launch(addresses, scalars, stream, None, packed)
            return
        except BaseException:
            if checked is not None:
                checked.abandon()
            raise
        loaded.spare.append(words)
        if checked is not None:
            checked.after()

    def _submit_anew(
        self,
        loaded: _Loaded,
        addresses: tuple[int, ...],
        scalars: tuple[float, ...],
        stream: int,
        packed: PackedOperand | None,
    ) -> None:
        """Launches what replaced a kernel whose workspace has no room; raises NoRoomError."""
        self._drop(loaded)
        other = self.prepared()
        self._enqueue_all(other, other.words(), addresses, scalars, stream, packed)

    def _drop(self, loaded: _Loaded) -> None:
        """Forgets what the current context launches, so that it is found anew."""
        mine = OF_THREAD.scratch
        self._ask_context(None, mine.context_id_at)
        with self._lock:
            if self._loaded.get(mine.context_id.value) is loaded:
                del self._loaded[mine.context_id.value]
            self._trusted = {key: one for key, one in self._trusted.items() if one is not loaded}

    def _enqueue_all(
        self,
        loaded: _Loaded,
        words: LaunchArguments | LibraryArguments,
        addresses: tuple[int, ...],
        scalars: tuple[float, ...],
        stream: int,
        packed: PackedOperand | None,
    ) -> None:
        if loaded.workspaces is not None:
            addresses = (*addresses, loaded.workspaces.address(stream))
        if packed is not None and isinstance(loaded, LoadedKernel) and loaded.kept_bytes:
            addresses = (*addresses, loaded.kept(packed, addresses, stream))
        if words.addresses != addresses:
            words.move(addresses)
        if words.stream != stream or words.scalars != scalars:
            words.change(stream, scalars)
        if loaded.constants:
            loaded.fill(addresses, stream)
        for step in words.steps:
            status = loaded.enqueue(*step)
            if status:
                raise loaded.failure(status)

    def _stands(self, loaded: _Loaded) -> bool:
        """Whether the configuration is right, now that there is a verdict; if not, it is not launched again."""
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
        if isinstance(loaded, LoadedKernel) and loaded.kept_bytes:
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

    def _is_verified(self, loaded: _Loaded) -> bool:
        """Whether the configuration may stay; a wrong one is not launched again."""
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

    def _launch_copies(self, loaded: _Loaded, memory: Sequence[HostMemory], scalars: tuple[float, ...]) -> None:
        """Launches once on copies of the host's arrays, in the declared order; outputs are there when it returns."""
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

    def prepared(self) -> _Loaded:
        """The kernel in the current context, loaded now where it is not yet."""
        mine = OF_THREAD.scratch
        self._ask_context(None, mine.context_id_at)
        number = mine.context_id.value
        with self._lock:
            if number not in self._loaded:
                ordinal = launching_ordinal(self._only)
                place = gpu_place(ordinal)

                def load(choice: Choice) -> _Loaded:
                    called = self._called(choice, ordinal)
                    if called is not None:
                        return called
                    use = self._choices.first_use(self._kernel, self._problem, place, choice)
                    if use is not None:
                        use.listen(self._withdraw)
                    return LoadedKernel(self._kernel, self._problem, choice, ordinal, use)

                self._loaded[number] = self._choices.loaded(self._kernel, self._problem, place, load)
            return self._loaded[number]

    def _called(self, choice: Choice, ordinal: int) -> LoadedLibrary | None:
        """The library's call if it was faster and is here; one that cannot be made ready is not tried again."""
        name, _ = call_of(self._problem, choice)
        if name is None:
            return None
        try:
            return LoadedLibrary(self._kernel, self._problem, name, ordinal)
        except (LibraryError, LaunchError) as error:
            refuse(self._problem, name, error)
            return None
