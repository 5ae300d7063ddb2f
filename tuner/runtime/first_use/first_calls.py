"""The first calls of a launcher: the library's own call and ours take turns where nobody has measured both here."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Protocol

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.first_use.chooses import Chooses
from tilewright.tuner.runtime.memory.workspaces import capture_id
from tilewright.tuner.turns import turns
from tilewright.tuner.turns.contest import Verdict
from tilewright.tuner.turns.opponents import Opponent, opponent
from tilewright.tuner.turns.turns import Run, Turns, held

ONE_SIZE = -1
"""The size that stands for the only one of a launcher."""


class Launches(Protocol):
    """A launcher, of one problem or of every size of an axis."""

    kernel: Kernel

    def posed(self, *arrays: Any) -> tuple[Problem, str]:
        """The problem that such arrays pose, and their device, resolved."""

    def choice_for(self, problem: Problem, device: str) -> Choice:
        """The configuration for the problem on a resolved device."""

    def loading_of(self, problem: Problem, device: str) -> Callable[[], None] | None:
        """A function for a thread that makes ours ready; None where it is ready."""

    def range_of(self, problem: Problem, device: str) -> Hashable:
        """A key shared by problems whose first calls decide together."""

    def takes_turns(self, choice: Choice) -> bool:
        """Whether the first calls decide between the choice and a library's call."""


def first_calls(
    launcher: Launches, choices: Chooses, stated: Problem, arrays: Sequence[Any], device: str
) -> FirstCalls | None:
    """The first calls for arrays of these layouts; None where calls decide nothing, or no library call is known."""
    if not turns.has_events(device) or not choices.checks_first_use:
        return None
    defaults = {one.name: one.default for one in launcher.kernel.options}
    found = opponent(stated, defaults, arrays)
    return None if found is None else FirstCalls(launcher, choices, found)


class FirstCalls:
    """The computing side, ours or the library's, for each size of arrays that otherwise lie alike."""

    def __init__(self, launcher: Launches, choices: Chooses, library: Opponent) -> None:
        self._launcher, self._choices, self._opponent = launcher, choices, library
        self._runs: dict[int, Run] = {}
        self._is_refused = False  # by the library: ours runs from then on

    def __call__(
        self, size: int, arrays: Sequence[Any], scalars: tuple[float, ...], stream: int, ours: Callable[[], object]
    ) -> None:
        """Launches ours or the library's call; raises what ours does."""
        if turns.wants_ours() or self._is_refused or not self._opponent.fits(arrays, scalars):
            ours()
            return
        run = self._runs.get(size) or self._begun(size, *self._launcher.posed(*arrays))
        if run is _ours or not capture_id(stream):
            run((arrays, scalars, ours))
            return
        with held():
            run((arrays, scalars, ours))

    def is_ours(self, size: int) -> bool:
        """Whether that is decided, once for all."""
        return self._runs.get(size) is _ours

    def _begun(self, size: int, problem: Problem, device: str) -> Run:
        """The run of this size from now on; the caller's thread finds the configuration, as that may warn or raise."""
        self._runs[size] = _ours
        choice = self._launcher.choice_for(problem, device)
        if not self._launcher.takes_turns(choice):
            return _ours
        library, kernel, range_of = self._opponent.name, self._launcher.kernel, self._launcher.range_of(problem, device)
        told = partial(self._choices.claim_times, kernel, problem, device, choice)
        contest = self._choices.contests.of((library, device, range_of), prefers_ours=not choice.is_behind, told=told)

        def decided(verdict: Verdict) -> None:
            self._runs[size] = _ours if verdict.is_ours else self._library

        run = self._runs[size] = Turns(
            _ours,
            self._library,
            contest,
            load=self._launcher.loading_of(problem, device),
            decided=decided,
            event=self._opponent.event,
            expected_ms=choice.time_ms or 1.0,
        )
        return run

    def _library(self, given: Sequence[Any]) -> None:
        """Makes the library's call; ours where the library refuses such arrays, which it does before it writes."""
        try:
            self._opponent.call(given[0], given[1])
        except (RuntimeError, TypeError, ValueError):
            self._is_refused = True
            _ours(given)


def _ours(given: Sequence[Any]) -> None:
    given[2]()
