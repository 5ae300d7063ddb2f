"""One problem on one GPU: compiling, verifying and timing its configurations. Calls PyCUDA through the device only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.kernels.kernel import Argument, Kernel, Launch, Scalar, Tensor
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.kernels.variant import KEPT_SUMMARY_BYTES, TensorMap
from tilewright.tuner.arrays import HostArray, scalar_values
from tilewright.tuner.compile.compilation import HIDDEN_ADDRESSES, Compilation, Compiled, arch_of
from tilewright.tuner.devices.cuda import nvml
from tilewright.tuner.devices.cuda.arrays import ProblemArrays, needed_bytes
from tilewright.tuner.devices.cuda.cases import Cases
from tilewright.tuner.devices.cuda.executable import CudaExecutable, Workspace
from tilewright.tuner.devices.cuda.launch import DriverFunction, DriverModule
from tilewright.tuner.devices.cuda.sampling import Sampler, flushed_bytes
from tilewright.tuner.devices.cuda.tensor_map import MapCells
from tilewright.tuner.devices.device import Bench
from tilewright.tuner.devices.occupancy import occupancy
from tilewright.tuner.errors import OutOfMemoryError, TrialFailure, first_error
from tilewright.tuner.library.choice import CudaLibrary, has_library, has_same_result
from tilewright.tuner.library.cublas import WORKSPACE_BYTES, LibraryCall, LibraryError
from tilewright.tuner.library.names import of_any_size
from tilewright.tuner.line_kinds import SHARED, shared_pair
from tilewright.tuner.loop.expected import Expected, expected_by, trusted_configuration, untrusted
from tilewright.tuner.loop.verify import library_widening, worse
from tilewright.tuner.outcome import ALL_KINDS, L2, DeviceState, Executable, KindsPart, Outcome, Resources, Verification

if TYPE_CHECKING:
    from tilewright.tuner.devices.cuda.context import CudaContext

_PACKS = 3  # of which the shortest counts
_REPEATED_S, _MOST_REPEATED = 0.02, 64  # launches of one that may win, each verified: a rare fault is not the first's
_OFTEN = 4  # a family's configuration is verified with some kinds of inputs at so many sizes


class CudaBench(Bench):
    """See `device.Bench`. The arrays stay on the GPU from here to `close`."""

    def __init__(
        self, device: CudaContext, kernel: Kernel, problem: Problem, seed: int, cases: Cases | None = None
    ) -> None:
        """`cases`: see `ProblemArrays`."""
        self.device, self.kernel, self.problem = device, kernel, problem
        flush_bytes = flushed_bytes(device.model.l2_bytes)
        needed, free = needed_bytes(kernel, problem) + flush_bytes + WORKSPACE_BYTES, device.free_bytes()
        if needed > free:
            raise OutOfMemoryError(f"{problem} takes {needed / 1e9:.2f} GB; the device has {free / 1e9:.2f} GB free")
        self.scalars = scalar_values(kernel, problem)
        self._trusted = trusted_configuration(kernel, problem, device.model.limits)
        self.arrays = ProblemArrays(device, kernel, problem, seed, cases)
        self._sampler = Sampler(device, self.arrays.checks, flush_bytes)
        self._library: CudaLibrary | None = None
        self._executables: list[CudaExecutable] = []
        self._shared_modules: dict[bytes, DriverModule] = {}
        for kind in (*self.arrays.kinds, self.arrays.kinds[0]) if self._trusted is not None else ():
            self._use(kind)  # now, while nothing is waited for that has a deadline

    @property
    def memory(self) -> CudaContext:
        """The GPU's memory, for the library."""
        return self.device

    def compile(self, configuration: Configuration) -> CudaExecutable:
        """The executable, compiled in this process and loaded."""
        arch = arch_of(self.device.model.limits.compute_capability)
        work = Compilation.of(self.kernel, self.problem, configuration, arch, self.device.compiler)
        return self.load(configuration, self.device.compile(work))

    def load(self, configuration: Configuration, compiled: Compiled) -> CudaExecutable:
        """The executable of a cubin made elsewhere; raises TrialFailure(LAUNCH_FAILED) where the driver refuses it."""
        variant = self.kernel.variant(configuration.variant)
        launches = variant.launches(self.kernel.entry, configuration.values, self.problem)
        workspace_bytes = variant.workspace_bytes(configuration.values, self.problem)
        if compiled.launch is not None:
            launches = [(compiled.launch.symbol, compiled.launch.applied(launches[-1][1]))]
            workspace_bytes = compiled.launch.workspace_bytes(launches[-1][1])
        launch = launches[-1][1]
        self._check_shared(launch)
        workspace = self._workspace(workspace_bytes)
        passed = self.kernel.passed(self.problem)
        letters = "".join(
            np.dtype(argument.dtype_for(self.problem)).char if isinstance(argument, Scalar) else "P"
            for argument in passed
        )
        values = [self._value(argument) for argument in passed]
        scratch = [] if workspace is None else [workspace.address]
        if compiled.launch is not None:
            scratch = [*scratch, 0, 0][:HIDDEN_ADDRESSES]
        letters, values = letters + "P" * len(scratch), [*values, *scratch]
        packing = variant.packing_launches(self.kernel.entry, configuration.values, self.problem)
        kept_bytes = variant.kept_bytes(self.problem)
        kept: Any = self.device.allocate(kept_bytes) if kept_bytes else None
        if kept is not None:
            letters, values = letters + "P", [*values, int(kept)]
        with self.device.launching():
            module, stream = DriverModule(compiled.cubin), self.device.stream.handle
            functions = [self._function(compiled, module, *step) for step in launches]
            registers = functions[-1].attribute("NUM_REGS")
            shared_bytes = functions[-1].attribute("SHARED_SIZE_BYTES") + launch.shared_bytes
            declared = list(variant.tensor_maps(configuration.values, self.problem))
            arguments = letters, values, stream, self._maps(declared)
            steps = [f.bound(step, *arguments) for f, (_, step) in zip(functions, launches, strict=True)]
            packs = [self._function(compiled, module, *step).bound(step[1], *arguments) for step in packing]
            sizes = {tensor: tensor.size_bytes(self.problem) for tensor in self.kernel.constants}
            constants = [(t.name, module.constant(t.symbol, size), size) for t, size in sizes.items()]

        def enqueue() -> None:
            for step in steps:
                step()

        def fill() -> None:
            for name, address, size in constants:
                self.device.copy(address, self.arrays.addresses[name], size)

        def pack() -> None:
            self.device.fill(int(kept), KEPT_SUMMARY_BYTES, 0)
            for step in packs:
                step()

        with self.device.launching():  # what is kept is there from here on
            pack_ms = None if kept is None else min(self.device.times_ms(pack, _PACKS))
        resources = Resources(
            registers=registers,
            shared_bytes=shared_bytes,
            spill_bytes=compiled.resources.spill_bytes,
            occupancy=occupancy(registers, shared_bytes, launch.threads, self.device.model.limits),
            pack_ms=pack_ms,
        )
        executable = self.executable(enqueue, resources, compiled.compile_ms)
        executable.workspace, executable.kept, executable.fill = workspace, kept, fill
        executable.configuration = configuration
        executable.enqueue_with = partial(self._enqueue_with, functions, launches, arguments[:3], declared)
        executable.pack = None if kept is None else pack
        return executable

    def _enqueue_with(
        self,
        functions: Sequence[DriverFunction],
        launches: Sequence[tuple[str, Launch]],
        arguments: tuple[str, list[float], int],
        declared: Sequence[TensorMap],
        scalars: Mapping[str, float],
        shared: tuple[Tensor, Tensor] | None,
    ) -> None:
        """Launches once with other scalars, or with one array for two."""
        letters, values, stream = arguments
        changed = list(values)
        for place, argument in enumerate(self.kernel.passed(self.problem)):
            if isinstance(argument, Scalar):
                changed[place] = scalars[argument.name]
            elif shared is not None and argument is shared[1]:
                changed[place] = self.arrays.passed(shared[0].name)
        maps = self._maps(declared, shared)
        for function, (_, step) in zip(functions, launches, strict=True):
            function.bound(step, letters, changed, stream, maps)()

    def _function(self, compiled: Compiled, own: DriverModule, entry: str, launch: Launch) -> DriverFunction:
        """The function, from its own module or from one that configurations share and that stays loaded."""
        cubin, symbol = compiled.function(entry)
        if cubin == compiled.shared and cubin not in self._shared_modules:
            self._shared_modules[cubin] = DriverModule(cubin)
        return self._shared_modules.get(cubin, own).function(symbol, launch.shared_bytes)

    def _maps(self, declared: Iterable[TensorMap], shared: tuple[Tensor, Tensor] | None = None) -> MapCells:
        maps = MapCells(self.kernel, self.problem, declared)
        addresses = dict(self.arrays.addresses)
        if shared is not None:
            addresses[shared[1].name] = addresses[shared[0].name]
        maps.encode(list(addresses.values()))
        return maps

    def executable(
        self, enqueue: Callable[[], None], resources: Resources | None = None, compile_ms: float = 0.0
    ) -> CudaExecutable:
        """The executable for anything that launches on the device's stream."""
        executable = CudaExecutable(enqueue, resources or Resources(), compile_ms)
        self._executables.append(executable)
        return executable

    def verify(self, executable: Executable) -> Verification:
        """One launch on poisoned outputs, with the next kind of inputs; other writes are TrialFailure(WRONG_RESULT).

        With a workspace the worse of two: the second launch finds what the first has left there.
        """
        kind = self.arrays.next_kind()
        while not self._is_fair(kind, _mine(executable)):
            kind = self.arrays.next_kind()
        return self._verify_with(kind, _mine(executable))

    def verify_timed(self, executable: Executable) -> Verification:
        """The same with the inputs that are timed, for the library's calls: it has algorithms of its own."""
        return self._verify_with(self.arrays.kinds[0], _mine(executable))

    def verify_each_kind(self, executable: Executable, part: KindsPart = ALL_KINDS) -> tuple[Verification, ...] | None:
        """One verification for each kind of inputs; None for a library's call whose result is not the kernel's."""
        if not _mine(executable).is_comparable:
            return None
        mine, verifications = _mine(executable), list[Verification]()
        for kind in part.of_all(self.arrays.kinds):
            if self._is_fair(kind, mine):
                verification = self._verify_with(kind, mine)
                limit_s = _REPEATED_S if part == ALL_KINDS else _REPEATED_S / _OFTEN
                verifications.append(verification if verifications else self._repeated(mine, verification, limit_s))
        return tuple(verifications)

    def _is_fair(self, kind: str, mine: CudaExecutable) -> bool:
        """Whether a result with these inputs counts, and can be had: the library's call has fixed scalars."""
        if mine.enqueue_with is None and scalar_values(self.kernel, self.problem, kind) != self.scalars:
            return False
        self._use(kind)
        return self.arrays.case.counts

    def _repeated(self, mine: CudaExecutable, verification: Verification, limit_s: float) -> Verification:
        """The worst of further launches with the same inputs, for so long; of a configuration alone."""
        end, count = time.monotonic() + limit_s, 0
        while mine.configuration is not None and count < _MOST_REPEATED and time.monotonic() < end:
            verification, count = worse(verification, self._verify_launch(mine)), count + 1
        return verification

    def _verify_with(self, kind: str, mine: CudaExecutable) -> Verification:
        self._use(kind)
        verification = self._verify_launch(mine)
        return verification if mine.workspace is None else worse(verification, self._verify_launch(mine))

    def _use(self, kind: str) -> None:
        with self.device.launching():
            self.arrays.use(kind)
        if self._trusted is not None and not self.arrays.case.is_settled:
            self.arrays.expect(self._expected_by(self._trusted))

        if self.problem.is_half and not self.arrays.case.admits_library:
            self._admit_library()

    def _admit_library(self) -> None:
        """Widens the bound for the inputs in use to the error of the library's own call, and a quarter more.

        Tensor cores cut off what they add: in half types a long sum is off by more than its roundings.
        """
        self.arrays.case.admits_library = True
        if self.arrays.scalars() != self.scalars:
            return  # the library's call passes the usual ones
        with self.device.launching():
            call = self._made_library().plain() if has_same_result(self.kernel.name) else None
            if call is None:
                return
            self.arrays.reset_written()
            self.device.synchronize()
            try:
                call.enqueue()
            except LibraryError:
                return  # it cannot do this problem
            ratio = self.arrays.inspect().verification.bound_ratio
            self.arrays.case.widen_bound(library_widening(ratio))

    def _expected_by(self, configuration: Configuration) -> Expected:
        """The configuration's outputs as expected values, for kernels without a reference; raises OwnFunctionError."""
        try:
            executable = self.compile(configuration)
            with self.device.launching():
                self.arrays.reset_written()
                executable.fill()
                self._launch_of(executable)()
                outputs = self.kernel.written_by(configuration, self.problem, self.arrays.outputs())
        except TrialFailure as failure:
            raise untrusted(
                self.kernel, configuration, f"ended as {failure.outcome}: {first_error(failure.log)}"
            ) from failure
        self.forget(executable)
        return expected_by(self.kernel, self.problem, configuration, outputs)

    def _launch_of(self, mine: CudaExecutable) -> Callable[[], None]:
        """The executable's launch with the scalars of the inputs in use, on one array where these are one."""
        scalars = self.arrays.scalars()
        shared = shared_pair(self.kernel, self.problem) if self.arrays.case.kind == SHARED else None
        if mine.enqueue_with is None or (scalars == self.scalars and shared is None):
            return mine.enqueue
        return partial(mine.enqueue_with, scalars, shared)

    def _verify_launch(self, mine: CudaExecutable) -> Verification:
        with self.device.launching():
            if mine.pack is not None:
                mine.pack()
            self.arrays.reset_written()
            mine.fill()
            self.device.synchronize()
            mine.launch_ms = self.device.times_ms(self._launch_of(mine), 1)[0]
            mine.is_loaded = True
            inspection = self.arrays.inspect(mine.configuration)
            trespasses = inspection.trespasses() + (mine.workspace.trespasses() if mine.workspace else [])
            if trespasses:
                self.arrays.reset_all()
                if mine.workspace:
                    mine.workspace.reset()
                raise TrialFailure(Outcome.WRONG_RESULT, "out of bounds: " + "; ".join(trespasses))
        return replace(inspection.verification, launch_ms=mine.launch_ms)

    def sample(self, executable: Executable, l2: L2, count: int) -> list[float]:
        """Times of one launch, ms. Cold: after a read of twice the L2 cache, each launch by itself."""
        mine = _mine(executable)
        with self.device.launching():
            self.arrays.use(self.arrays.kinds[0])  # power, and so the clock, depends on the numbers
            mine.fill()
            return self._sampler.cold_ms(mine, count) if l2 == "cold" else self._sampler.warm_ms(mine, count)

    def library(self, *, at_any_size: bool = False) -> CudaExecutable | None:
        """The fastest library call on the same arrays; calls are timed when it is first asked for.

        `at_any_size`: cublasLt's own choice.
        """
        call = self._library_call(at_any_size=at_any_size)
        if call is None:
            return None
        executable = self.executable(call.enqueue)
        executable.is_comparable = call.is_comparable
        return executable

    def library_name(self, *, at_any_size: bool = False) -> str | None:
        """The library call's name, such as "cuBLAS 13.1.0 (cublasSgemm, FP32)"; None where there is no call."""
        call = self._library_call(at_any_size=at_any_size)
        if call is None:
            return None
        return of_any_size(call.name) if at_any_size else call.name

    def state(self) -> DeviceState:
        """Clock and temperature by NVML."""
        return nvml.state(self.device.uuid)

    def output(self) -> HostArray:
        """The current contents of the output, on the host; of several outputs the first."""
        return self.arrays.output(self.kernel.output)

    def forget(self, executable: Executable) -> None:
        """Unloads the configuration before `close` does."""
        mine = _mine(executable)
        mine.close()
        self._executables.remove(mine)

    def close(self) -> None:
        """Frees the arrays; executables of this bench must not be launched any more."""
        self.device.synchronize()
        for executable in self._executables:
            executable.close()
        self._executables.clear()
        if self._library is not None:
            self._library.close()
            self._library = None
        self.arrays.close()
        del self.arrays, self._sampler

    def _check_shared(self, launch: Launch) -> None:
        """Raises TrialFailure for more than a block may have, which only the compiler knew."""
        most = self.device.model.limits.max_shared_bytes
        if launch.shared_bytes > most:
            reason = f"it takes {launch.shared_bytes} bytes of shared memory, and a block here has {most} at most"
            raise TrialFailure(Outcome.LAUNCH_FAILED, reason)

    def _workspace(self, size_bytes: int) -> Workspace | None:
        if size_bytes == 0:
            return None
        try:
            with self.device.launching():
                return Workspace(self.device, self.arrays.checks, size_bytes)
        except OutOfMemoryError as error:
            raise TrialFailure(Outcome.LAUNCH_FAILED, f"workspace: {error}") from error

    def _value(self, argument: Argument) -> float:
        return self.scalars[argument.name] if isinstance(argument, Scalar) else self.arrays.passed(argument.name)

    def _library_call(self, *, at_any_size: bool) -> LibraryCall | None:
        if not has_library(self.kernel.name):
            return None
        with self.device.launching():
            library = self._made_library()
            return library.own_choice() if at_any_size else library.fastest()

    def _made_library(self) -> CudaLibrary:
        if self._library is None:
            self._library = CudaLibrary(self)
        return self._library


def _mine(executable: Executable) -> CudaExecutable:
    if not isinstance(executable, CudaExecutable):
        raise TypeError(f"not an executable of this bench: {executable}")
    return executable
