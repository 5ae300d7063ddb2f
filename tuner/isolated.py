"""A device behind a child process, the only one with a context on it: what hangs or crashes there ends there.

A hung call is ended by SIGKILL of the child at its deadline; a crash and a sticky failure end the child as well. Each
is that trial's outcome, and the next call starts a new child and sets the bench up anew, with the same seed. Two losses
with no successful call between them (opening the device counts as one) raise DeviceLostError.

The child dies with the thread that started it (PR_SET_PDEATHSIG): use a device from one long-lived thread.
"""

from __future__ import annotations

import signal
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.child import Child, UnkillableError
from tilewright.tuner.compile import Compilation, Compiled, Compiler, arch_of
from tilewright.tuner.compile_pool import CompilePool
from tilewright.tuner.device import L2, DeviceModel, DeviceState, Environment, Executable, Verification
from tilewright.tuner.errors import DeviceLostError, TrialFailure, TunerError
from tilewright.tuner.isolated_child import Answer, FindKernel, Loaded, OpensDevice, find_kernel, serve
from tilewright.tuner.outcome import Outcome, Resources

_MAX_LOSSES = 2
_LAUNCHES = frozenset({"verify", "sample"})
"""Calls that run the configuration; a child that dies in any other was lost between launches."""


class ChildFailedError(TunerError):
    """The device's process failed in a way that nobody expected; its traceback follows."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds after which a call counts as hung. Those that run a configuration bound what a slow one may take."""

    open: float = 120.0
    bench: float = 900.0  # the float64 reference on the host: 4 s for 8192 cubed on 16 cores, minutes on 2
    compile: float = 180.0
    verify: float = 60.0
    sample: float = 60.0
    other: float = 60.0

    def of(self, call: str) -> float:
        """The deadline of that call."""
        return float(getattr(self, "compile" if call == "load" else call, self.other))


class IsolatedDevice:
    """Any device, behind the same protocol. With a pool, configurations are compiled there; `close` closes it too."""

    def __init__(
        self,
        opener: OpensDevice,
        *,
        deadlines: Deadlines | None = None,
        finder: FindKernel = find_kernel,
        pool: CompilePool | None = None,
    ) -> None:
        self._opener, self._finder, self.pool = opener, finder, pool
        self._deadlines = deadlines or Deadlines()
        self._child: Child | None = None
        self._losses = 0
        self.generation = 0
        self._facts: tuple[str, DeviceModel, Environment] | None = None
        self.ensure_child()

    @property
    def uuid(self) -> str:
        """See `device.Device`."""
        return self._known()[0]

    @property
    def model(self) -> DeviceModel:
        """See `device.Device`; as the first child found it."""
        return self._known()[1]

    @property
    def environment(self) -> Environment:
        """See `device.Device`; as the first child found it."""
        return self._known()[2]

    @property
    def child_pid(self) -> int | None:
        """The process id of the child, where there is one now."""
        return None if self._child is None else self._child.pid

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

    def close(self) -> None:
        """Ends the child; it frees what it holds, or is killed after some seconds."""
        if self._child is not None:
            self._child.close()
            self._child = None
        if self.pool is not None:
            self.pool.close()

    def ensure_child(self) -> None:
        """Starts a child where there is none; raises DeviceLostError when that fails a second time."""
        while self._child is None:
            self.generation += 1
            self._child = Child(serve, (self._opener, self._finder), dies_with_parent=True)
            try:
                facts = self._receive("open")
            except TrialFailure as failure:
                if self._losses >= _MAX_LOSSES:
                    raise DeviceLostError(failure.log) from failure
                continue
            except TunerError:
                self._end()
                raise
            self._facts = self._facts or facts

    def call(self, name: str, *arguments: Any) -> Any:
        """What the child answers; raises what it raises, and TrialFailure when it hangs or dies."""
        if self._child is None:
            raise TrialFailure(Outcome.DEVICE_LOST, "the device's process is gone")
        try:
            self._child.connection.send((name, arguments))
        except OSError:
            raise self._died(name) from None
        return self._receive(name)

    def _receive(self, name: str) -> Any:
        child, deadline_s = self._child, self._deadlines.of(name)
        assert child is not None  # noqa: S101 - both callers have just used it
        try:
            if not child.connection.poll(deadline_s):
                self._end()
                raise TrialFailure(Outcome.TIMED_OUT, f"{name} had not ended after {deadline_s:g} s and was killed")
            answer: Answer = child.connection.recv()
        except (EOFError, OSError):
            raise self._died(name) from None
        kind, value = answer
        if kind == "done":
            self._losses = 0
            return value
        if kind == "unexpected":
            self._end()
            raise ChildFailedError(value)
        if isinstance(value, TrialFailure) and value.sticky:
            self._end()
            # For the caller nothing is broken: the next call finds a new context.
            raise TrialFailure(value.outcome, value.log) from value
        raise value

    def _died(self, name: str) -> TrialFailure:
        status = None if self._child is None else self._child.join(5.0)
        self._end()
        outcome = Outcome.LAUNCH_FAILED if name in _LAUNCHES else Outcome.DEVICE_LOST
        how = signal.Signals(-status).name if status is not None and status < 0 else f"exit status {status}"
        return TrialFailure(outcome, f"the device's process died in {name} ({how})")

    def _end(self) -> None:
        child, self._child = self._child, None
        self._losses += 1
        try:
            if child is not None:
                child.kill()
        except UnkillableError as error:
            raise DeviceLostError(str(error)) from error

    def _known(self) -> tuple[str, DeviceModel, Environment]:
        assert self._facts is not None  # noqa: S101 - the constructor has them or raises
        return self._facts


@dataclass(eq=False)
class IsolatedExecutable:
    """An executable of the child's, and what it takes to make it again in another child."""

    configuration: Configuration | None  # None: the library's call
    resources: Resources
    compile_ms: float
    number: int
    generation: int
    compiled: Compiled | None = field(default=None, repr=False)


class IsolatedBench:
    """See `device.Bench`; set up again, with the same inputs, whenever its device has a new child."""

    def __init__(self, device: IsolatedDevice, kernel: Kernel, problem: Problem, seed: int) -> None:
        self._device, self._kernel, self._problem, self._seed = device, kernel, problem, seed
        self._number = self._generation = 0
        self._dropped: list[tuple[int, int]] = []
        self._ready()

    def compile(self, configuration: Configuration) -> IsolatedExecutable:
        """Compiled in the child."""
        return self._new(configuration, None)

    def verify(self, executable: Executable) -> Verification:
        """In the child; TrialFailure(TIMED_OUT) after the deadline."""
        verification: Verification = self._device.call("verify", self._loaded(executable))
        return verification

    def sample(self, executable: Executable, l2: L2, count: int) -> list[float]:
        """In the child; TrialFailure(TIMED_OUT) after the deadline."""
        samples: list[float] = self._device.call("sample", self._loaded(executable), l2, count)
        return samples

    def library(self) -> IsolatedExecutable | None:
        """In the child."""
        self._ready()
        loaded: Loaded | None = self._device.call("library", self._number)
        return None if loaded is None else self._executable(None, None, loaded)

    def library_name(self) -> str | None:
        """In the child."""
        self._ready()
        name: str | None = self._device.call("library_name", self._number)
        return name

    def state(self) -> DeviceState:
        """In the child."""
        self._ready()
        state: DeviceState = self._device.call("state", self._number)
        return state

    def close(self) -> None:
        """Frees the child's arrays; the child stays for the next bench."""
        if self._number and self._generation == self._device.generation and self._device.child_pid is not None:
            self._device.call("close_bench", self._number)
        self._number = 0

    def _ready(self) -> None:
        """A child that has this bench; told at this point what is no longer used."""
        self._device.ensure_child()
        if self._generation != self._device.generation:
            arguments = (self._kernel.name, self._kernel.folder, self._problem, self._seed)
            self._number = self._device.call("bench", *arguments)
            self._generation = self._device.generation
        dropped = [number for generation, number in self._dropped if generation == self._generation]
        self._dropped.clear()
        if dropped:
            self._device.call("forget", dropped)

    def _new(self, configuration: Configuration | None, compiled: Compiled | None) -> IsolatedExecutable:
        self._ready()
        return self._executable(configuration, compiled, self._load(configuration, compiled))

    def _load(self, configuration: Configuration | None, compiled: Compiled | None) -> Loaded:
        if configuration is None:
            call = self._device.call("library", self._number)
        elif compiled is None:
            call = self._device.call("compile", self._number, configuration)
        else:
            call = self._device.call("load", self._number, configuration, compiled)
        loaded: Loaded = call
        return loaded

    def _loaded(self, executable: Executable) -> int:
        """The executable's number in the present child, where it is loaded again if that child is new."""
        if not isinstance(executable, IsolatedExecutable):
            raise TypeError(f"not an executable of this bench: {executable}")
        self._ready()
        if executable.generation != self._generation:
            executable.number = self._load(executable.configuration, executable.compiled)[0]
            executable.generation = self._generation
            weakref.finalize(executable, self._dropped.append, (self._generation, executable.number))
        return executable.number

    def _executable(
        self, configuration: Configuration | None, compiled: Compiled | None, loaded: Loaded
    ) -> IsolatedExecutable:
        number, resources, compile_ms = loaded
        made = IsolatedExecutable(configuration, resources, compile_ms, number, self._generation, compiled)
        weakref.finalize(made, self._dropped.append, (self._generation, number))
        return made


class PrecompilingBench(IsolatedBench):
    """Compiles in the device's pool, so that a killed child costs no compiling; `tune.CompilesAhead`."""

    def __init__(self, device: IsolatedDevice, kernel: Kernel, problem: Problem, seed: int) -> None:
        super().__init__(device, kernel, problem, seed)
        if device.pool is None:
            raise ValueError("a device without a pool cannot compile ahead")
        self._pool = device.pool
        self._futures: dict[Configuration, Future[Compiled]] = {}

    def compile_ahead(self, configurations: Sequence[Configuration]) -> None:
        """Starts compiling these in the pool; `compile` waits for them, and their failures show there."""
        for configuration in configurations:
            if configuration not in self._futures:
                self._futures[configuration] = self._pool.submit(self._compilation(configuration))

    def compile(self, configuration: Configuration) -> IsolatedExecutable:
        """Compiled in the pool, loaded in the child."""
        self.compile_ahead([configuration])
        compiled = self._futures.pop(configuration).result()
        return self._new(configuration, compiled)

    def _compilation(self, configuration: Configuration) -> Compilation:
        compiler: Compiler = "pycuda" if self._device.environment.compiler == "pycuda" else "nvrtc"
        arch = arch_of(self._device.model.limits.compute_capability)
        return Compilation.of(self._kernel, self._problem, configuration, arch, compiler)
