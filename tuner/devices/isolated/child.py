"""The child's side of an isolated device: opens it, serves calls from the pipe, and dies of what breaks its context."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, Protocol

from tilewright.kernels.catalogue import Catalogue, catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.compilation import Compiled
from tilewright.tuner.devices.device import Bench, Device
from tilewright.tuner.errors import TrialFailure, TunerError
from tilewright.tuner.loop.measure import ContextLostError, MeasurementPlan, evaluate_here
from tilewright.tuner.outcome import L2, DeviceState, Evaluation, Executable, KindsPart, Resources, Verification

ChildMessage = tuple[Literal["done", "broken", "failed", "error", "unexpected", "step"], Any]
"""A message of the child: the answer to a call, or before it the step that begins. "broken": done, but the context is
lost."""
FindKernel = Callable[[str, Path], Kernel]
LoadedExecutable = tuple[int, Resources, float]
"""An executable's number in the child, what it takes, and how long it took to compile."""


class OpensDevice(Protocol):
    """A picklable description of a device (`devices.DeviceSpec`)."""

    def open(self) -> Device:
        """Opens the device in the calling process."""


def find_kernel(name: str, folder: Path) -> Kernel:
    """The kernel of that name: of this package, or declared in `folder`. Kernels hold functions and do not travel."""
    kernel = catalogue().by_name.get(name)
    return kernel if kernel is not None and kernel.folder == folder else Catalogue.load((folder,)).get(name)


def serve(connection: Connection, opener: OpensDevice, finder: FindKernel) -> None:
    """Opens the device, reports its facts, and answers calls until the pipe closes or a failure is sticky."""
    device: Device | None = None

    def open_device() -> tuple[Any, ...]:
        nonlocal device
        device = opener.open()
        return device.uuid, device.model, device.environment

    if not _answer(connection, open_device) or device is None:
        return
    session = _Session(device, finder, connection)
    while True:
        try:
            name, arguments = connection.recv()
        except (EOFError, ConnectionError):
            break
        _answer(connection, lambda: getattr(session, name)(*arguments))  # noqa: B023 - called before the loop goes on
    session.close()


def _answer(connection: Connection, call: Callable[[], Any]) -> bool:
    """Sends the call's result or its failure; tells whether there was a result."""
    try:
        answer: ChildMessage = ("done", call())
    except ContextLostError as lost:
        answer = ("broken", lost.evaluation)
    except TrialFailure as failure:
        answer = ("failed", failure)
    except TunerError as error:
        answer = ("error", error)
    except Exception:
        connection.send(("unexpected", traceback.format_exc()))
        raise
    connection.send(answer)
    if answer[0] == "broken" or (isinstance(answer[1], TrialFailure) and answer[1].sticky):
        # Nothing can be freed in a broken context; trying hangs or aborts. The driver cleans up after the process.
        os._exit(1)
    return answer[0] == "done"


class _Session:
    """Benches and executables by number. Its methods are the calls that the parent makes."""

    def __init__(self, device: Device, finder: FindKernel, connection: Connection) -> None:
        self._device, self._finder, self._connection = device, finder, connection
        self._benches: dict[int, Bench] = {}
        self._executables: dict[int, tuple[Bench, Executable]] = {}
        self._last = 0

    def bench(self, name: str, folder: Path, hashes: Mapping[str, str], problem: Problem, seed: int) -> int:
        kernel, number = self._finder(name, folder), self._next()
        if not hashes.items() <= kernel.source_hashes.items():  # the caller's kernel may have some of the variants only
            raise TunerError(f"The sources of {name} were edited while this ran. Run it again to measure the new ones.")
        self._benches[number] = self._device.bench(kernel, problem, seed)
        return number

    def close_bench(self, bench: int) -> None:
        closing = self._benches.pop(bench)
        self._executables = {n: pair for n, pair in self._executables.items() if pair[0] is not closing}
        closing.close()

    def compile(self, bench: int, configuration: Configuration) -> LoadedExecutable:
        return self._keep(self._benches[bench], self._benches[bench].compile(configuration))

    def load(self, bench: int, configuration: Configuration, compiled: Compiled) -> LoadedExecutable:
        return self._keep(self._benches[bench], self._benches[bench].load(configuration, compiled))

    def evaluate(
        self,
        bench: int,
        configuration: Configuration,
        compiled: Compiled | None,
        ranking_l2: str,
        plan: MeasurementPlan,
        incumbent_ms: float | None,
    ) -> Evaluation:
        steps = _Steps(self._benches[bench], compiled, lambda name: self._connection.send(("step", name)))
        evaluation = evaluate_here(steps, configuration, ranking_l2, plan, incumbent_ms)
        steps.forget()
        return evaluation

    def library(self, bench: int, at_any_size: bool) -> LoadedExecutable | None:
        executable = self._benches[bench].library(at_any_size=at_any_size)
        return None if executable is None else self._keep(self._benches[bench], executable)

    def forget(self, numbers: list[int]) -> None:
        for number in numbers:
            bench, executable = self._executables.pop(number)
            bench.forget(executable)

    def verify(self, number: int) -> Verification:
        bench, executable = self._executables[number]
        return bench.verify(executable)

    def verify_each_kind(self, number: int, part: KindsPart) -> tuple[Verification, ...] | None:
        bench, executable = self._executables[number]
        return bench.verify_each_kind(executable, part)

    def sample(self, number: int, l2: L2, count: int) -> list[float]:
        bench, executable = self._executables[number]
        return bench.sample(executable, l2, count)

    def renew(self, bench: int, turn: int) -> None:
        self._benches[bench].renew(turn)

    def library_name(self, bench: int, at_any_size: bool) -> str | None:
        return self._benches[bench].library_name(at_any_size=at_any_size)

    def state(self, bench: int) -> DeviceState:
        return self._benches[bench].state()

    def close(self) -> None:
        for bench in list(self._benches):
            self.close_bench(bench)
        self._device.close()

    def _keep(self, bench: Bench, executable: Executable) -> LoadedExecutable:
        number = self._next()
        self._executables[number] = (bench, executable)
        return number, executable.resources, executable.compile_ms

    def _next(self) -> int:
        self._last += 1
        return self._last


class _Steps:
    """A bench for one trial that reports each step as it begins, and loads a cubin compiled elsewhere."""

    def __init__(self, bench: Bench, compiled: Compiled | None, say: Callable[[str], None]) -> None:
        self._bench, self._compiled, self._say = bench, compiled, say
        self._executable: Executable | None = None
        self._step = ""

    def compile(self, configuration: Configuration) -> Executable:
        self._begin("compile")
        if self._compiled is None:
            self._executable = self._bench.compile(configuration)
        else:
            self._executable = self._bench.load(configuration, self._compiled)
        return self._executable

    def verify(self, executable: Executable) -> Verification:
        self._begin("verify")
        return self._bench.verify(executable)

    def sample(self, executable: Executable, l2: L2, count: int) -> list[float]:
        self._begin("sample")
        return self._bench.sample(executable, l2, count)

    def state(self) -> DeviceState:
        return self._bench.state()

    def _begin(self, step: str) -> None:
        if step != self._step:
            self._step = step
            self._say(step)

    def forget(self) -> None:
        if self._executable is not None:
            self._bench.forget(self._executable)
