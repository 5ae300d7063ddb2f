"""The bench on which the loop measures configurations: one problem set up on one device."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np

from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.compilation import Compiled
from tilewright.tuner.errors import TunerError
from tilewright.tuner.loop.measure import DEFAULT_PLAN, Clock, MeasurementPlan, evaluate_here
from tilewright.tuner.outcome import ALL_KINDS, L2, DeviceState, Evaluation, Executable, KindsPart, Verification


class DeviceMemory(Protocol):
    """A memory of the device's own, which this process can write and read."""

    def allocate(self, size_bytes: int) -> Any:
        """Memory that is freed with the object; int() of it is the address. Raises OutOfMemoryError."""

    def upload(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copies host memory to the device."""

    def download(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copies from there into `data`."""


class Bench(ABC):
    """One problem set up on one device: inputs uploaded, reference computed once. Not thread-safe.

    A device defines the abstract methods and overrides those of the others that it does better.
    Every method raises TrialFailure for what the configuration did wrong, and TunerError for anything else.
    """

    compiles_ahead: ClassVar[bool] = False
    """Whether `compile_ahead` compiles in the background."""

    @property
    def compilers(self) -> int:
        """The number of configurations that it compiles at a time while it evaluates one; 0 where it does not."""
        return 0

    @property
    def compilations(self) -> int:
        """The number of compilations, under way or waiting, that keeps all compilers busy."""
        return self.compilers

    @property
    def memory(self) -> DeviceMemory | None:
        """The device's memory; None where the device computes in the host's, or is in another process."""
        return None

    @abstractmethod
    def compile(self, configuration: Configuration) -> Executable:
        """The executable; TrialFailure(COMPILE_FAILED) with the compiler's log."""

    @abstractmethod
    def verify(self, executable: Executable) -> Verification:
        """One launch with poisoned outputs, compared with the float64 reference; kinds of inputs take turns."""

    @abstractmethod
    def sample(self, executable: Executable, l2: L2, count: int) -> list[float]:
        """`count` times of one launch, in ms; short kernels are batched inside a sample. No warm-up of its own."""

    @abstractmethod
    def close(self) -> None:
        """Frees the arrays and ends every process of the bench's own."""

    def evaluate(
        self,
        configuration: Configuration,
        ranking_l2: str,
        plan: MeasurementPlan = DEFAULT_PLAN,
        incumbent_ms: float | None = None,
        *,
        clock: Clock = time.monotonic,
    ) -> Evaluation:
        """A whole trial, see `measure.evaluate_here`."""
        return evaluate_here(self, configuration, ranking_l2, plan, incumbent_ms, clock=clock)

    def begin(
        self, configuration: Configuration, ranking_l2: str, plan: MeasurementPlan, incumbent_ms: float | None
    ) -> Callable[[], Evaluation]:
        """Starts a trial before the last one has ended, with several `compilers`; a function that waits for it."""
        return partial(self.evaluate, configuration, ranking_l2, plan, incumbent_ms)

    def verify_each_kind(
        self,
        executable: Executable,  # noqa: ARG002
        part: KindsPart = ALL_KINDS,  # noqa: ARG002
    ) -> tuple[Verification, ...] | None:
        """One verification for each kind of inputs; None where there is one kind, or the result cannot be read."""
        return None

    def renew(self, turn: int) -> None:  # noqa: B027 - a device with one set of inputs has nothing to change
        """Changes what is timed from here on to other inputs of the same kind, by the parity of `turn`."""

    def library(self, *, at_any_size: bool = False) -> Executable | None:  # noqa: ARG002
        """The library's call for this problem (`sample` takes it), or None where the device has none.

        `at_any_size`: the one that launchers can make at other sizes too, not the fastest.
        """
        return None

    def library_name(self, *, at_any_size: bool = False) -> str | None:  # noqa: ARG002
        """The library call's name, such as "cuBLAS 13.0.2 (cublasSgemm, FP32)"; None where there is none."""
        return None

    def state(self) -> DeviceState:
        """Clock and temperature now, where they can be read."""
        return DeviceState()

    def compile_ahead(self, configurations: Sequence[Configuration]) -> None:  # noqa: B027 - nothing is a good default
        """Starts compiling these and returns at once. `compile` waits for them; failures show there."""

    def ready(self, configurations: Sequence[Configuration], *, wait: bool) -> list[Configuration]:
        """The configurations that are known to be compiled or to have failed; with `wait`, at least one to be tried
        next.
        """
        return list(configurations) if wait else []

    def drop(self, configurations: Sequence[Configuration]) -> None:  # noqa: B027 - likewise
        """Takes these back where compiling has not begun: they will not be tried."""

    def load(self, configuration: Configuration, compiled: Compiled) -> Executable:  # noqa: ARG002
        """The executable of a cubin made in another process; TrialFailure where the device refuses it."""
        raise TunerError("this device cannot load cubins")

    def forget(self, executable: Executable) -> None:  # noqa: B027 - likewise
        """Frees what is held for an executable before `close` does."""
