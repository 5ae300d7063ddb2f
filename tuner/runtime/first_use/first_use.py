"""Which answers are checked when they are used first, what the checks found, and what follows.

A check belongs to a subject, which today is one problem on one device model; an answer for a range of sizes has that
range as its subject, so that one check settles all of its sizes. What else the first calls of a subject can tell, such
as the times of turns, hangs on the same `FirstUse`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tilewright.kernels.problem import Problem
from tilewright.tuner.runtime.choice import Choice, TargetDevice
from tilewright.tuner.runtime.forks import ForkSafeLock

SETTING = "TILEWRIGHT_FIRST_USE"

UNVERIFIED = frozenset({"predicted", "nearest", "transferred", "estimated"})
"""How an answer matches a problem whose shape it was not verified at."""

State = Literal["waiting", "under way", "right", "wrong", "unchecked"]


class Subject(NamedTuple):
    """What one check is about."""

    problem: str  # its canonical text
    device_model: str


class Finding(NamedTuple):
    """What a check saw: how many components are wrong, and the first of them, if any."""

    wrong: int = 0
    where: tuple[int, ...] = ()
    got: float | None = None
    expected: float | None = None

    def __str__(self) -> str:
        """In words, behind a colon."""
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

    def __init__(
        self, problem: Problem, place: TargetDevice, choice: Choice, settled: Callable[[FirstUse, Finding], None]
    ) -> None:
        self.problem, self.place, self.choice = problem, place, choice
        self.state: State = "waiting"
        self.reason = "no call that could be checked yet"
        self._settled, self._lock = settled, ForkSafeLock()

    def take(self) -> bool:
        """Whether the caller is the one to check; nobody else gets it then."""
        with self._lock:
            is_free = self.state == "waiting"
            if is_free:
                self.state, self.reason = "under way", "nobody has seen the verdict yet"
            return is_free

    def give_up(self, reason: str) -> None:
        """Nothing can check it."""
        self.state, self.reason = "unchecked", reason

    def settle(self, finding: Finding) -> None:
        """What the check found; a wrong configuration is withdrawn at once."""
        self.state, self.reason = "wrong" if finding.wrong else "right", str(finding)
        self._settled(self, finding)


class FirstUses:
    """Those of one runtime. `is_on` None: as the setting says."""

    def __init__(self, withdraw: Callable[[FirstUse, Finding], None], *, is_on: bool | None = None) -> None:
        self.is_on = is_enabled() if is_on is None else is_on
        self._withdraw = withdraw
        self._by_subject: dict[tuple[Subject, str], FirstUse] = {}
        self._lock = ForkSafeLock()

    def of(self, problem: Problem, place: TargetDevice, choice: Choice) -> FirstUse | None:
        """The first use of this answer; None where it was verified at its shape, or nothing is to be checked."""
        if not self.is_on or choice.match not in UNVERIFIED or choice.origin == "pinned":
            return None
        key = Subject(problem.canonical, place.slug), str(choice.configuration)
        with self._lock:
            return self._by_subject.setdefault(key, FirstUse(problem, place, choice, self._settled))

    def is_withdrawn(self, problem: Problem, place: TargetDevice, choice: Choice) -> bool:
        """Whether it was wrong in this process."""
        use = self._by_subject.get((Subject(problem.canonical, place.slug), str(choice.configuration)))
        return use is not None and use.state == "wrong"

    def listed(self) -> list[CheckedUse]:
        """Every configuration that was not verified at its shape, in the order of first use."""
        uses = list(self._by_subject.values())
        return [CheckedUse(use.problem, use.place.slug, use.choice, use.state, use.reason) for use in uses]

    def _settled(self, use: FirstUse, finding: Finding) -> None:
        if finding.wrong:
            self._withdraw(use, finding)


def is_enabled() -> bool:
    """Whether the setting, which is on unless it says otherwise, is on."""
    return os.environ.get(SETTING, "true").lower() in {"1", "true", "yes", "on"}
