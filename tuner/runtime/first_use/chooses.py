"""The runtime as a launcher sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.runtime.choice import Choice, TargetDevice
from tilewright.tuner.runtime.first_use.first_use import FirstUse
from tilewright.tuner.turns.contest import Contests, Verdict

T = TypeVar("T")


class Chooses(Protocol):
    """The source of configurations: `runtime.Runtime`."""

    def choose(self, kernel: Kernel, problem: Problem, place: TargetDevice, /) -> Choice:
        """The configuration for a problem on a device model."""

    def is_known(self, kernel: Kernel, problem: Problem, place: TargetDevice, /) -> bool:
        """Whether `choose` asks no service and predicts nothing, which takes up to seconds."""

    def look_for(self, kernel: Kernel, problem: Problem, place: TargetDevice, /) -> None:
        """Finds what `choose` then returns, and leaves the interpreter to other threads; raises as `choose`."""

    contests: Contests
    """The first calls of launchers, by range."""

    @property
    def checks_first_use(self) -> bool:
        """Whether first uses are checked, by the setting."""

    def claim_times(self, kernel: Kernel, problem: Problem, device: str, choice: Choice, verdict: Verdict, /) -> None:
        """Tells a service the times of the first calls."""

    def takes_turns(self, choice: Choice, /, *, is_beside: bool) -> bool:
        """Whether the first calls decide between it and a library's call."""

    def loaded(self, kernel: Kernel, problem: Problem, place: TargetDevice, load: Callable[[Choice], T], /) -> T:
        """The result of `load` for the choice, or for the default if the choice cannot be used; raises LaunchError."""

    def first_use(self, kernel: Kernel, problem: Problem, place: TargetDevice, choice: Choice, /) -> FirstUse | None:
        """The check of that choice at its first launch; None where none is needed."""
