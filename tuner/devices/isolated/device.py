"""A device behind a child process, and the benches that call it there; process.py explains how failures end."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.compilation import Compilation, Compiled, Compiler, arch_of
from tilewright.tuner.devices.device import Bench
from tilewright.tuner.devices.isolated.child import LoadedExecutable
from tilewright.tuner.devices.isolated.process import ChildFailedError, Deadlines, DeviceProcess
from tilewright.tuner.errors import DeviceLostError, TrialFailure
from tilewright.tuner.loop.measure import DEFAULT_PLAN, Clock, MeasurementPlan
from tilewright.tuner.outcome import (
    ALL_KINDS,
    L2,
    DeviceState,
    Evaluation,
    Executable,
    KindsPart,
    Resources,
    Verification,
)


class IsolatedDevice(DeviceProcess):
    """Any device, behind the same protocol. With a pool, configurations are compiled there; `close` closes it too."""

    def bench(self, kernel: Kernel, problem: Problem, seed: int) -> IsolatedBench:
        """The problem set up in the child; raises OutOfMemoryError, and DeviceLostError after two losses."""
        kind = PrecompilingBench if self.pool is not None and self.model.kind == "cuda" else IsolatedBench
        try:
            return kind(self, kernel, problem, seed)
        except TrialFailure:
            # Lost while setting up, before any configuration of ours ran: once is bad luck.
            try:
                return kind(self, kernel, problem, seed)
            except TrialFailure as failure:
                raise DeviceLostError(failure.log) from failure


@dataclass(eq=False)
class IsolatedExecutable:
    """An executable in the child, with what another child needs to make it again."""

    configuration: Configuration | None  # None: the library's call
    resources: Resources
    compile_ms: float
    number: int
    generation: int
    compiled: Compiled | None = field(default=None, repr=False)
    at_any_size: bool = False  # of the library's calls which one


class IsolatedBench(Bench):
    """See `device.Bench`; set up again, with the same inputs, whenever its device has a new child."""

    def __init__(self, device: DeviceProcess, kernel: Kernel, problem: Problem, seed: int) -> None:
        self._device, self._kernel, self._problem, self._seed = device, kernel, problem, seed
        self._number = self._generation = 0
        self._dropped: list[tuple[int, int]] = []
        self._ready()

    def compile(self, configuration: Configuration) -> IsolatedExecutable:
        """The configuration, compiled in the child process."""
        return self._new(configuration, self._compiled(configuration))

    def evaluate(
        self,
        configuration: Configuration,
        ranking_l2: str,
        plan: MeasurementPlan = DEFAULT_PLAN,
        incumbent_ms: float | None = None,
        *,
        clock: Clock = time.monotonic,  # noqa: ARG002 - the child reads its own
    ) -> Evaluation:
        """The whole trial in the child by one call: a call there and back takes as long as a short kernel.

        Nothing that the configuration breaks is left broken here; the child's deadlines hold for each of its steps.
        """
        return self.begin(configuration, ranking_l2, plan, incumbent_ms)()

    def begin(
        self, configuration: Configuration, ranking_l2: str, plan: MeasurementPlan, incumbent_ms: float | None
    ) -> Callable[[], Evaluation]:
        """Sends the trial, which the child starts after the one before; a function that waits for its end."""
        compiled: Compiled | None = None

        def send() -> Future[Evaluation]:
            self._ready()
            arguments = (configuration, compiled, ranking_l2, plan, incumbent_ms)
            return self._device.begin("evaluate", self._number, *arguments)

        def wait() -> Evaluation:
            try:
                try:
                    return self._evaluation(sent)
                except CancelledError:  # the trial before has ended the child
                    return self._evaluation(send())
            except TrialFailure as failure:
                return failed(failure)

        def failed(failure: TrialFailure) -> Evaluation:
            return Evaluation(
                failure.outcome,
                ranking_l2="cold" if ranking_l2 == "cold" else "warm",
                resources=compiled.resources if compiled else Resources(),
                compile_ms=compiled.compile_ms if compiled else None,
                log=failure.log,
            )

        try:
            compiled = self._compiled(configuration)
            sent = send()
        except TrialFailure as failure:
            evaluation = failed(failure)
            return lambda: evaluation
        return wait

    def _evaluation(self, sent: Future[Evaluation]) -> Evaluation:
        evaluation: Evaluation = self._device.answer(sent)
        return evaluation

    def verify(self, executable: Executable) -> Verification:
        """Verifies in the child; raises TrialFailure(TIMED_OUT) after the deadline."""
        verification: Verification = self._device.call("verify", self._loaded(executable))
        return verification

    def verify_each_kind(self, executable: Executable, part: KindsPart = ALL_KINDS) -> tuple[Verification, ...] | None:
        """Verifies in the child; raises TrialFailure(TIMED_OUT) after the deadline."""
        number = self._loaded(executable)
        verifications: tuple[Verification, ...] | None = self._device.call("verify_each_kind", number, part)
        return verifications

    def sample(self, executable: Executable, l2: L2, count: int) -> list[float]:
        """Takes samples in the child; raises TrialFailure(TIMED_OUT) after the deadline."""
        samples: list[float] = self._device.call("sample", self._loaded(executable), l2, count)
        return samples

    def renew(self, turn: int) -> None:
        """Changes the child to other inputs of the same kind; raises TrialFailure(TIMED_OUT) after the deadline."""
        self._ready()
        self._device.call("renew", self._number, turn)

    def library(self, *, at_any_size: bool = False) -> IsolatedExecutable | None:
        """The library's call, which the child process makes; None where the library cannot compute the problem."""
        self._ready()
        loaded: LoadedExecutable | None = self._device.call("library", self._number, at_any_size)
        if loaded is None:
            return None
        executable = self._executable(None, None, loaded)
        executable.at_any_size = at_any_size
        return executable

    def library_name(self, *, at_any_size: bool = False) -> str | None:
        """The name of the library's call, which the child tells."""
        self._ready()
        name: str | None = self._device.call("library_name", self._number, at_any_size)
        return name

    def state(self) -> DeviceState:
        """The device's state, which the child tells."""
        self._ready()
        state: DeviceState = self._device.call("state", self._number)
        return state

    def close(self) -> None:
        """Frees the child's arrays; the child stays for the next bench."""
        if self._number and self._generation == self._device.generation and self._device.child_pid is not None:
            with contextlib.suppress(TrialFailure):  # a process that is gone, or was killed for hanging, holds nothing
                self._device.call("close_bench", self._number)
        self._number = 0

    def _ready(self) -> None:
        """Ensures that a child has this bench, and frees there the executables that are no longer used."""
        self._device.ensure_child()
        if self._generation != self._device.generation:
            kernel = self._kernel
            arguments = (kernel.name, kernel.folder, kernel.source_hashes, self._problem, self._seed)
            self._number = self._device.call("bench", *arguments)
            self._generation = self._device.generation
        dropped = [number for generation, number in self._dropped if generation == self._generation]
        self._dropped.clear()
        if dropped:
            self._device.call("forget", dropped)

    def _compiled(self, configuration: Configuration) -> Compiled | None:  # noqa: ARG002 - for those that have a pool
        """The cubin for the child; None where the child compiles itself."""
        return None

    def _new(self, configuration: Configuration, compiled: Compiled | None) -> IsolatedExecutable:
        self._ready()
        return self._executable(configuration, compiled, self._load(configuration, compiled))

    def _load(
        self, configuration: Configuration | None, compiled: Compiled | None, *, at_any_size: bool = False
    ) -> LoadedExecutable:
        if configuration is None:
            call = self._device.call("library", self._number, at_any_size)
        elif compiled is None:
            call = self._device.call("compile", self._number, configuration)
        else:
            call = self._device.call("load", self._number, configuration, compiled)
        loaded: LoadedExecutable = call
        return loaded

    def _loaded(self, executable: Executable) -> int:
        """The executable's number in the present child, in which it is loaded first if that child is new."""
        if not isinstance(executable, IsolatedExecutable):
            raise TypeError(f"not an executable of this bench: {executable}")
        self._ready()
        if executable.generation != self._generation:
            executable.number = self._load(
                executable.configuration, executable.compiled, at_any_size=executable.at_any_size
            )[0]
            executable.generation = self._generation
            weakref.finalize(executable, self._dropped.append, (self._generation, executable.number))
        return executable.number

    def _executable(
        self, configuration: Configuration | None, compiled: Compiled | None, loaded: LoadedExecutable
    ) -> IsolatedExecutable:
        number, resources, compile_ms = loaded
        made = IsolatedExecutable(configuration, resources, compile_ms, number, self._generation, compiled)
        weakref.finalize(made, self._dropped.append, (self._generation, number))
        return made


class PrecompilingBench(IsolatedBench):
    """Compiles ahead in the device's pool, so that a killed child costs no compiling."""

    compiles_ahead = True

    def __init__(self, device: DeviceProcess, kernel: Kernel, problem: Problem, seed: int) -> None:
        if device.pool is None:
            raise ValueError("a device without a pool cannot compile ahead")
        self._pool = device.pool
        self._pool.start()  # meanwhile the child sets the problem up
        self._futures: dict[Configuration, Future[Compiled]] = {}
        super().__init__(device, kernel, problem, seed)

    def compile_ahead(self, configurations: Sequence[Configuration]) -> None:
        """Starts compiling these in the pool; `compile` waits for them, and their failures show there."""
        for configuration in configurations:
            if configuration not in self._futures:
                self._futures[configuration] = self._pool.submit(self._compilation(configuration))

    @property
    def compilers(self) -> int:
        """The number of compiling processes in the pool."""
        return self._pool.workers

    @property
    def compilations(self) -> int:
        """The number of workers in the pool."""
        return self._pool.workers

    def ready(self, configurations: Sequence[Configuration], *, wait: bool) -> list[Configuration]:
        """The configurations whose compilation has ended, in the order given; `compile_ahead` was told of all."""
        if wait:
            wait_for([self._futures[configuration] for configuration in configurations], return_when=FIRST_COMPLETED)
        return [configuration for configuration in configurations if self._futures[configuration].done()]

    def drop(self, configurations: Sequence[Configuration]) -> None:
        """Takes these back from the pool where their compilation has not begun."""
        for configuration in configurations:
            dropped = self._futures.pop(configuration, None)
            if dropped is not None:
                dropped.cancel()

    def _compiled(self, configuration: Configuration) -> Compiled:
        self.compile_ahead([configuration])
        return self._futures.pop(configuration).result()

    def _compilation(self, configuration: Configuration) -> Compilation:
        compiler: Compiler = "pycuda" if self._device.environment.compiler == "pycuda" else "nvrtc"
        arch = arch_of(self._device.model.limits.compute_capability)
        return Compilation.of(self._kernel, self._problem, configuration, arch, compiler)


__all__ = ["ChildFailedError", "Deadlines", "IsolatedBench", "IsolatedDevice", "PrecompilingBench"]
