"""Contests: the first calls in a range of sizes decide which of two calls is the faster one there.

A range is what problems of one kernel have alike besides the size of one axis: of a family's table one of its ranges,
and without a family one octave with the configuration that serves it. Times are compared after division by what is
expected at their size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple, Protocol

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.loop.statistics import is_tie, median

MOST_CALLS = 20
"""The calls that take turns; after them the records stay in force if too few could be timed."""

FEWEST_PAIRS = 3
CLEAR_RATIO = 1.5
"""The ratio of times from which the slower call is given up after `FEWEST_PAIRS`."""


class Event(Protocol):
    """An event on the stream, as `torch.cuda.Event`."""

    def record(self) -> None:
        """Records the event behind what has been enqueued."""

    def query(self) -> bool:
        """Whether the GPU has reached the event."""

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds from this event to another; both have been reached."""


class Timed(NamedTuple):
    """A call between two events, with the expected time of ours at its size, in ms."""

    is_ours: bool
    begin: Event
    end: Event
    expected_ms: float


@dataclass(frozen=True)
class Verdict:
    """The winner of a contest. Times are medians over what was expected of ours; None where too few were taken."""

    is_ours: bool
    calls: int = 0  # of each that were timed
    ours: float | None = None
    library: float | None = None


class Contest:
    """The turns of one range. `prefers_ours`: what the records say, which a tie leaves in force.

    `told`: called once with a verdict that has times.
    """

    def __init__(self, *, prefers_ours: bool, told: Callable[[Verdict], None] = lambda _verdict: None) -> None:
        self.prefers_ours, self._told = prefers_ours, told
        self.verdict: Verdict | None = None
        self._calls = {True: 0, False: 0}
        self._pending: deque[Timed] = deque()
        self._times: dict[bool, list[float]] = {True: [], False: []}
        self._lock = Lock()

    @property
    def is_for_ours(self) -> bool:
        """Whether ours runs where nothing takes turns: by the verdict, or else by the records."""
        return self.prefers_ours if self.verdict is None else self.verdict.is_ours

    @property
    def keeps_ours(self) -> bool:
        """Whether ours may still run, so that its code is needed at another size."""
        return self.verdict is None or self.verdict.is_ours

    def next_is_ours(self) -> tuple[bool, bool]:
        """Whether ours is the next to run, and whether that is one of the turns."""
        with self._lock:
            if sum(self._calls.values()) >= MOST_CALLS:
                return self.prefers_ours, False
            is_ours = self._calls[True] <= self._calls[False]
            self._calls[is_ours] += 1
            return is_ours, True

    def add(self, call: Timed) -> None:
        """Adds a call whose time counts once it is over."""
        with self._lock:
            self._pending.append(call)

    def settle(self) -> Verdict | None:
        """The verdict, if the times so far are enough for one or no more will come; does not wait."""
        with self._lock:
            while self._pending and self._pending[0].end.query():
                one = self._pending.popleft()
                self._times[one.is_ours].append(one.begin.elapsed_time(one.end) / one.expected_ms)
            verdict, is_new = self.verdict, False
            if verdict is None:
                verdict = self.verdict = self._verdict()
                is_new = verdict is not None and verdict.ours is not None
        if is_new and verdict is not None:
            self._told(verdict)
        return verdict

    def _verdict(self) -> Verdict | None:
        ours, library = self._times[True], self._times[False]
        pairs = min(len(ours), len(library))
        is_over = sum(self._calls.values()) >= MOST_CALLS and not self._pending
        if pairs < FEWEST_PAIRS:
            return Verdict(self.prefers_ours) if is_over else None
        is_clear = not 1 / CLEAR_RATIO < median(ours) / median(library) < CLEAR_RATIO
        if not (is_over or is_clear):
            return None
        is_ours = median(ours) < median(library)
        if not is_clear and is_tie(ours[:pairs], library[:pairs]):
            is_ours = self.prefers_ours
        return Verdict(is_ours, pairs, median(ours), median(library))


Range = tuple[str, str, Hashable]


class Contests:
    """The contests of a process by range: the caller, the device, and the key that the problems share."""

    def __init__(self) -> None:
        self._by_range: dict[Range, Contest] = {}
        self._lock = Lock()

    def of(self, key: Range, *, prefers_ours: bool, told: Callable[[Verdict], None] = lambda _verdict: None) -> Contest:
        """The contest of a range, which begins with the first of its problems."""
        with self._lock:
            return self._by_range.setdefault(key, Contest(prefers_ours=prefers_ours, told=told))

    def are_open(self) -> bool:
        """Whether one of them is undecided, though no call is under way."""
        return any(contest.settle() is None for contest in list(self._by_range.values()))

    def verdicts(self, device: str) -> dict[tuple[str, Hashable], Verdict]:
        """The verdicts on that device, by caller and problems; undecided ranges are left to the records."""
        found = [(key, one) for key, one in list(self._by_range.items()) if key[1] == device]
        return {(who, what): one.verdict or Verdict(one.prefers_ours) for (who, _, what), one in found}

    def adopt(self, verdicts: Mapping[tuple[str, Hashable], Verdict], device: str) -> None:
        """Replaces its own verdicts on that device by these; without one, the records decide."""
        for (who, what), verdict in verdicts.items():
            self.of((who, device, what), prefers_ours=verdict.is_ours).verdict = verdict
        for (who, where, what), contest in list(self._by_range.items()):
            if where == device and (who, what) not in verdicts:
                contest.verdict = Verdict(contest.prefers_ours)

    def verdict(self, key: Range) -> Verdict | None:
        """The verdict on a range; None while it is undecided."""
        contest = self._by_range.get(key)
        return None if contest is None else contest.verdict


def octave_of(kernel: Kernel, problem: Problem, configuration: Configuration) -> Hashable:
    """A key shared by the problems of a range; for a kernel whose sizes are all compiled in, the problem itself."""
    axis = kernel.launch_axes[0] if kernel.launch_axes else None
    octave = problem.shape[axis].bit_length() if axis is not None else 0
    rest = tuple(one for one in (*problem.axes, *problem.chosen_axes) if one[0] != axis)
    return kernel.name, problem.dtype, problem.option_items, rest, octave, configuration
