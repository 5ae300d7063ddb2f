"""Operators' decisions in this process, with runtime and reason: one for each kind of call, until `use`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.tuner.switches import is_on
from tilewright.tuner.turns.contest import Contests
from tilewright.tuner.turns.turns import held

if TYPE_CHECKING:  # a program that imports the operators and calls none does not wait for the launcher
    from tilewright.kernels.problem import Problem
    from tilewright.tuner.runtime.first_use.first_use import FirstUse
    from tilewright.tuner.runtime.launcher import Launcher
    from tilewright.tuner.runtime.runtime import Runtime


class FallbackWarning(UserWarning):
    """An operator runs as PyTorch's own; the message says why."""


class Decision(NamedTuple):
    """What an operator does for one kind of call, and why. `is_ours`: it launches a tuned kernel.

    `check`: of configurations that were never verified at their shape whether that was checked, is pending, or why one
    was withdrawn; empty where there is nothing to check. `calls_ours` and `calls_pytorch` so far, without those that a
    CUDA graph or compiled code makes; `ours_ms` and `pytorch_ms`: as the turns timed them, else as the records say.
    `fallback`: why PyTorch's call runs, as one word; empty where ours does.
    """

    operator: str
    call: str
    device: str
    is_ours: bool
    reason: str
    check: str = ""
    calls_ours: int = 0
    calls_pytorch: int = 0
    ours_ms: float | None = None
    pytorch_ms: float | None = None
    fallback: str = ""

    @property
    def gained_ms(self) -> float | None:
        """The milliseconds that the calls of ours saved over PyTorch's; None where a time is not known."""
        if self.ours_ms is None or self.pytorch_ms is None:
            return None
        return self.calls_ours * (self.pytorch_ms - self.ours_ms)


class Tally:
    """Calls of one kind so far. With calls in several threads at once a few may be missed."""

    __slots__ = ("ours", "ours_ms", "pytorch", "pytorch_ms")

    def __init__(self) -> None:
        self.ours = self.pytorch = 0
        self.ours_ms: float | None = None
        self.pytorch_ms: float | None = None


class Use(NamedTuple):
    """A configuration that was decided on, and the launcher, problem and device that verify it."""

    use: FirstUse
    launcher: Launcher
    problem: Problem
    device: str


class _Process:
    """The decisions of this process, and the runtime that made them."""

    def __init__(self) -> None:
        self.runtime: Runtime | None = None
        self.decisions: dict[Hashable, Decision] = {}
        self.tallies: dict[Hashable, Tally] = {}
        self.calls_off: Counter[str] = Counter()  # of each operator, while all was off
        self.contests = Contests()
        self.uses: dict[Hashable, list[Use]] = {}  # by the same keys, all that were not verified at their shape
        self.is_listening = False
        self.warned: dict[tuple[str, type[Exception]], Exception] = {}
        self.era = 0  # plans of an earlier one are made anew
        self.is_off = is_on("TILEWRIGHT_OFF")
        self.is_ready = False  # the launcher is imported and its runtime made, which takes a quarter of a second


PROCESS = _Process()


def use(runtime: Runtime | None) -> None:
    """Makes operators take configurations from this runtime; None: from the environment's, as at the start.

    Make it with `only_tuned=True`: otherwise problems without a result run with a kernel's default configuration.
    """
    PROCESS.runtime = runtime
    PROCESS.is_ready = PROCESS.is_ready or runtime is not None
    PROCESS.decisions, PROCESS.uses, PROCESS.warned, PROCESS.contests = {}, {}, {}, Contests()
    look_again()


def look_again() -> None:
    """Makes every plan anew, because the runtime in use knows other configurations now."""
    PROCESS.era += 1


def era() -> int:
    """A number that changes with `look_again` and `use`."""
    return PROCESS.era


def runtime() -> Runtime:
    """The runtime in use; raises TunerError where the environment's settings are wrong."""
    from tilewright.tuner.runtime.runtime import default_runtime  # noqa: PLC0415 - see above

    if not PROCESS.is_listening:
        from tilewright.tuner.runtime.first_use.first_use import LISTENERS  # noqa: PLC0415 - see above

        PROCESS.is_listening = True
        LISTENERS.append(lambda _use, _finding: _withdrawn())
    found = PROCESS.runtime or default_runtime(only_tuned=True)
    PROCESS.is_ready = True
    return found


def _withdrawn() -> None:
    """Starts contests and plans anew for a withdrawn configuration: its replacement may be slower than the library."""
    PROCESS.contests = Contests()
    look_again()


def off() -> None:
    """Makes every operator PyTorch's own from the next call on, and `on` undoes it; `TILEWRIGHT_OFF=1` begins so."""
    PROCESS.is_off = True
    look_again()


def is_off() -> bool:
    """Whether all operators are PyTorch's own now, by `off`."""
    return PROCESS.is_off


def on() -> None:
    """Makes operators launch tuned kernels again."""
    PROCESS.is_off = False
    look_again()


def status() -> list[Decision]:
    """Every kind of call so far, what runs it, how often and how fast, and what was checked."""
    return [_counted(key, decision) for key, decision in list(PROCESS.decisions.items())]


def _counted(key: Hashable, decision: Decision) -> Decision:
    tally = PROCESS.tallies.get(key, Tally())
    return decision._replace(
        check=_checks(key),
        calls_ours=tally.ours,
        calls_pytorch=tally.pytorch,
        ours_ms=tally.ours_ms,
        pytorch_ms=tally.pytorch_ms,
    )


def _checks(key: Hashable) -> str:
    return "; ".join(str(one.use) for one in PROCESS.uses.get(key, ()))


MOST_REPEATS = 8
"""The most repetitions of a function whose configurations turn out wrong one after another."""


def prepare(function: Callable[..., Any] | None = None, *arguments: Any, **named: Any) -> list[Decision]:
    """Calls the function, then verifies the configurations that its operators chose; returns `status()`.

    The function is a model or anything else that calls operators; None: what was decided in calls before. Waits until
    all that was never verified at its shape was launched on random numbers and compared; where something was wrong, and
    so withdrawn, the function is called once more. For programs that capture CUDA graphs, in which nothing is checked.
    """
    from tilewright.tuner.runtime.errors import LaunchError  # noqa: PLC0415 - see above

    for _ in range(MOST_REPEATS):
        if function is not None:
            with held():  # what is decided is decided now
                function(*arguments, **named)
        before = era()
        for one in [use for uses in list(PROCESS.uses.values()) for use in uses if use.use.state not in _SETTLED]:
            with suppress(LaunchError):  # there is no other configuration; the next call runs as PyTorch's own
                one.launcher.prepare_for(one.problem, one.device)
        if function is None or era() == before:
            break
    return status()


_SETTLED = {"right", "wrong"}
