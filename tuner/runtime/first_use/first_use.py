"""Answers that are checked at their first use, the checks' findings, and their consequences.

A check belongs to a subject, which today is one problem on one device model; an answer for a range of sizes has that
range as its subject, so that one check settles all of its sizes. What else the first calls of a subject can tell, such
as the times of turns, hangs on the same `FirstUse`. A process has one of each, whatever the number of its runtimes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from weakref import WeakMethod

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.runtime.choice import Choice, TargetDevice
from tilewright.tuner.runtime.errors import WrongResultWarning, warn
from tilewright.tuner.runtime.words import problem_words, tune_command
from tilewright.tuner.switches import is_on

SETTING = "TILEWRIGHT_FIRST_USE"

UNVERIFIED = frozenset({"predicted", "nearest", "transferred", "estimated"})
"""Matches of answers that were not verified at the problem's shape."""

State = Literal["waiting", "under way", "right", "wrong", "unchecked"]


class Subject(NamedTuple):
    """The configuration and problem of one check."""

    problem: str  # its canonical text
    device_model: str


class Finding(NamedTuple):
    """A check's result: how many components are wrong, and the first of them, if any."""

    wrong: int = 0
    where: tuple[int, ...] = ()
    got: float | None = None
    expected: float | None = None

    def __str__(self) -> str:
        """The verdict in words, to stand behind a colon."""
        if not self.wrong:
            return "rows of the result are within their bounds"
        first = f", first at {self.where}: got {self.got:.9g}, expected {self.expected:.9g}" if self.where else ""
        return f"{self.wrong} components of the rows that were checked are out of bounds{first}"


@dataclass(frozen=True)
class CheckedUse:
    """A line of `Runtime.first_uses`: a configuration that was not verified at its shape, and what its check said."""

    problem: Problem
    device_model: str
    choice: Choice
    state: State
    reason: str


class FirstUse:
    """One configuration at its first use. It is checked by one launch, however many contexts and threads use it."""

    def __init__(self, kernel: Kernel, problem: Problem, place: TargetDevice, choice: Choice) -> None:
        self.kernel, self.problem, self.place, self.choice = kernel, problem, place, choice
        self.state: State = "waiting"
        self.reason = "no call that could be checked yet"
        self._listeners: list[WeakMethod[Callable[[FirstUse, Finding], None]]] = []
        self._lock = ForkSafeLock()

    def __str__(self) -> str:
        chosen = f"{self.choice.configuration} ({self.choice.match}, from {self.choice.origin})"
        states = {"right": "checked", "wrong": "withdrawn", "unchecked": "not checked"}
        return f"{states.get(self.state, self.state)}: {chosen}: {self.reason}"

    def take(self) -> bool:
        """Takes the check for the caller; false where another caller has it."""
        with self._lock:
            is_free = self.state == "waiting"
            if is_free:
                self.state, self.reason = "under way", "nobody has seen the verdict yet"
            return is_free

    def release(self, reason: str = "the launch that was to be checked failed") -> None:
        """Gives the check back, which could not be made: another call may take it."""
        with self._lock:
            if self.state == "under way":
                self.state, self.reason = "waiting", reason

    def give_up(self, reason: str) -> None:
        """Ends the check: nothing can make it, and earlier findings stand."""
        with self._lock:
            if self.state not in {"right", "wrong"}:
                self.state, self.reason = "unchecked", reason

    def listen(self, method: Callable[[FirstUse, Finding], None]) -> None:
        """Calls this bound method, as long as its object lives, if the configuration turns out to be wrong."""
        with self._lock:
            self._listeners = [one for one in self._listeners if one() is not None]
            if all(one() != method for one in self._listeners):
                self._listeners.append(WeakMethod(method))

    def settle(self, finding: Finding) -> None:
        """The check's finding; a wrong configuration is withdrawn at once, in the whole process."""
        with self._lock:
            was_wrong = self.state == "wrong"
            if was_wrong:
                return
            self.state, self.reason = "wrong" if finding.wrong else "right", str(finding)
            listeners = [*(one() for one in self._listeners), *LISTENERS]
        if not finding.wrong:
            return
        for listener in listeners:
            if listener is not None:
                listener(self, finding)
        warn(  # at last: a warning may be an error
            f"{problem_words(self.kernel, self.problem)} on {self.place.slug}: {self.choice.configuration} "
            f"({self.choice.match}, from {self.choice.origin}) was wrong at its first use and is not used again in "
            f"this process: {finding}. Results of its calls until now stay as they are. Tune the problem: "
            f"{tune_command(self.kernel, self.problem, self.place)}",
            WrongResultWarning,
            through=("tilewright.", "torch."),
        )


LISTENERS: list[Callable[[FirstUse, Finding], None]] = []
"""Called with every configuration of this process that turns out to be wrong."""


class FirstUses:
    """The first uses of one runtime, whose `withdrawn` is called for wrong ones. `is_on` None: as the setting says."""

    def __init__(self, withdrawn: Callable[[FirstUse, Finding], None], *, is_on: bool | None = None) -> None:
        self.is_on = is_enabled() if is_on is None else is_on
        self._withdrawn = WeakMethod(withdrawn)
        self._own: dict[_Key, FirstUse] = {}

    def of(self, kernel: Kernel, problem: Problem, place: TargetDevice, choice: Choice) -> FirstUse | None:
        """The first use of this choice; None if it was verified at its shape, or nothing is to be checked."""
        is_of_another_code = choice.match == "range" and not problem.at_launch  # verified with its size at launch
        if not self.is_on or not (choice.match in UNVERIFIED or is_of_another_code):
            return None
        key = _key(kernel, problem, place, choice)
        with _LOCK:
            use = self._own[key] = _USES.setdefault(key, FirstUse(kernel, problem, place, choice))
        withdrawn = self._withdrawn()
        if withdrawn is not None:
            use.listen(withdrawn)
        return use

    def is_withdrawn(self, kernel: Kernel, problem: Problem, place: TargetDevice, choice: Choice) -> bool:
        """Whether the choice was wrong in this process."""
        use = _USES.get(_key(kernel, problem, place, choice)) if self.is_on and _USES else None
        return use is not None and use.state == "wrong"

    def listed(self) -> list[CheckedUse]:
        """Every configuration that was not verified at its shape, in the order of first use."""
        uses = list(self._own.values())
        return [CheckedUse(use.problem, use.place.slug, use.choice, use.state, use.reason) for use in uses]


_Key = tuple[int, Subject, str]

_USES: dict[_Key, FirstUse] = {}
_LOCK = ForkSafeLock()


def _key(kernel: Kernel, problem: Problem, place: TargetDevice, choice: Choice) -> Any:
    # A kernel of that name in another catalogue has another source. Its number is no other's: the first use keeps it.
    return id(kernel), Subject(problem.canonical, place.slug), str(choice.configuration)


def forget() -> None:
    """Makes everything a first use again, for tests: withdrawn configurations may be used."""
    with _LOCK:
        _USES.clear()


def is_enabled() -> bool:
    """Whether the setting, which is on unless it says otherwise, is on."""
    return is_on(SETTING, unset="true")


def _release_all() -> None:
    """Releases every use in a forked child, as the threads that were checking are not there."""
    for use in _USES.values():
        use.release("a process that was forked meanwhile began to check it")


os.register_at_fork(after_in_child=_release_all)
