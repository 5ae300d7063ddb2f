"""A CPU on which calls take turns: events have a clock that tests move, and every call counts, as on a busy GPU."""

from __future__ import annotations

import pytest

from tilewright.tuner.turns import turns


class Clock:
    """Milliseconds so far; the events of it in pairs, of which the GPU has reached all but the newest."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.newest: list[Event] = []

    def spend(self, time_ms: float) -> None:
        """What a call takes."""
        self.now_ms += time_ms

    def event(self, **_named: object) -> Event:
        """A new one."""
        one = Event(self)
        self.newest = [*self.newest[-1:], one]
        return one


class Event:
    """As PyTorch's."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self.at_ms = clock, 0.0

    def record(self, _stream: object) -> None:
        self._clock.spend(0.1)
        self.at_ms = self._clock.now_ms

    def query(self) -> bool:
        begin, *end = self._clock.newest
        return not (self is begin and end and self.at_ms < end[0].at_ms)

    def elapsed_time(self, end: Event) -> float:
        return end.at_ms - self.at_ms


def time_calls(patch: pytest.MonkeyPatch, torch: object) -> Clock:
    """Calls on the CPU take turns from now on, by this clock."""
    clock = Clock()
    patch.setattr(turns, "has_events", lambda _device: True)
    patch.setattr(torch.cuda, "Event", clock.event)
    patch.setattr(torch.cuda, "current_stream", lambda device: device)
    return clock
