"""Launches of a program: all are counted, some are looked at, which means described and timed.

What a library's hook does at every launch is to find its `Launches` and to count `left` down; it comes here at 0.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

FIRST, SHARE, LONGEST = 4, 2, 2048
"""The first launches are all looked at, then one in half of those that were, and at least one in so many."""

MOST_GRIDS = 64
"""Grids of one function that are counted each by itself: a program may compute a new grid for every launch."""

_CONSTANT = re.compile(r"__constant__[^;={}()]*?\b(\w+)\s*(?:\[[^\]]*\]\s*)*;")

Geometry = tuple[Any, Any, int]


class Library(Protocol):
    """The recorder's view of the library that launches."""

    name: str
    errors: tuple[type[Exception], ...]

    def event(self) -> Any:
        """A new event that has a time."""

    def is_over(self, event: Any) -> bool:
        """Whether the GPU has passed the event."""

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Milliseconds between two events that the GPU has passed."""

    def synchronize(self) -> None:
        """Waits for the GPU."""

    def described(self, argument: Any) -> dict[str, Any]:
        """The argument's description: its `kind` (tensor, scalar or else), its `dtype`, its `shape` or `value`."""

    def contents(self, argument: Any) -> Any:
        """A copy of the contents that it points to, as NumPy's array; None where it is no array."""

    def constant(self, owner: Any, symbol: str) -> Any:
        """The bytes of a symbol of the function's module; None where they cannot be read."""


class Row:
    """Launches of a function that look the same: in geometry, and in the kinds, dtypes and shapes of arguments."""

    def __init__(self, geometry: Geometry, arguments: list[dict[str, Any]], facts: Mapping[str, Any]) -> None:
        self.geometry, self.arguments, self.facts = geometry, arguments, facts
        self.looked_at, self.timed, self.time_ms = 0, 0, 0.0  # each weighted by the launches that a look stands for
        self.constants: dict[str, str] = {}
        self.has_contents = False


class Launches:
    """Launches of a function with one grid. `left`: how many more are only counted.

    The rest of the geometry is left to the looks: a hook has half a microsecond for a launch.
    """

    __slots__ = ("_calls", "_planned", "left", "rows")

    def __init__(self) -> None:
        self.left = self._planned = 0
        self._calls = 0
        self.rows: dict[Any, Row] = {}

    @property
    def calls(self) -> int:
        """The number of launches."""
        return self._calls + self._planned - self.left

    def look(self, jitter: float) -> int:
        """The number of launches that this one stands for; plans the next look.

        `jitter`: from 0 to 1, so that looks do not fall in step with a rhythm of the program's.
        """
        weight = self._planned - self.left + 1
        self._calls += weight
        every = min(self._calls // SHARE, LONGEST) if self._calls >= FIRST else 0
        self._planned = self.left = round(every * (0.5 + jitter))
        return weight


class Function(dict[Any, Launches]):
    """A function as the program got it; its launches by their grid."""

    def __init__(self, name: str, facts: Mapping[str, Any]) -> None:
        super().__init__()
        self.name, self.facts = name, facts
        self._others = Launches()

    def __missing__(self, key: Any) -> Launches:
        if len(self) >= MOST_GRIDS:
            return self._others
        self[key] = Launches()
        return self[key]

    @property
    def all(self) -> list[Launches]:
        """The launches of all grids."""
        return [*self.values(), self._others]


@dataclass
class Contents:
    """The folder of kept arrays, at most `limit_bytes` in all; with None no array is kept.

    `when_it_ends` writes the rest at the program's end; `refusal` says why no arrays are kept.
    """

    folder: Path
    limit_bytes: int | None
    when_it_ends: Callable[[], None]
    is_awaited: bool = False
    refusal: str = ""
    used_bytes: int = 0
    files: int = 0

    def takes(self, size_bytes: int, name: str) -> bool:
        """Whether there is room; says so once where there is not."""
        if self.limit_bytes is None or self.refusal:
            return False
        if self.used_bytes + size_bytes > self.limit_bytes:
            needed, limit = (self.used_bytes + size_bytes) / 2**20, self.limit_bytes / 2**20
            self.refusal = (
                f"with the arguments of {name} the contents are {needed:.4g} MiB, over the limit of {limit:.4g} MiB: "
                "allow more by --contents-limit"
            )
            return False
        return True

    def save(self, array: Any) -> str:
        """The name of the file that it is written to; "" where it cannot be."""
        self.files += 1
        self.used_bytes += array.nbytes
        name = f"{os.getpid()}-{self.files}.npy"
        try:
            np.save(self.folder / name, array)
        except OSError as error:  # a full disk must not end the program
            self.refusal = f"the contents cannot be written: {error.strerror}"
            return ""
        return name


@dataclass
class Recorder:
    """The record of one library's launches. `is_child`: this process is a fork, of which nothing can be kept."""

    library: Library
    contents: Contents
    is_child: bool = False
    functions: dict[Any, Function] = field(default_factory=dict)
    _pending: deque[tuple[Row, int, Any, Any]] = field(default_factory=deque)
    _random: random.Random = field(default_factory=random.Random)  # the program's own numbers stay as they were

    def function(self, name: str, **facts: Any) -> Function:
        """The function of the same name and facts (source, options), if the program had it before; else a new one."""
        key = (name, *facts.values())
        if key not in self.functions:
            self.functions[key] = Function(name, facts)
        return self.functions[key]

    def look(
        self,
        launches: Launches,
        function: Function,
        geometry: Geometry,
        arguments: Sequence[Any],
        launch: Callable[[Any, Any], Any],
        *,
        owner: Any = None,
        describe: Callable[[], Mapping[str, Any]] = dict,
    ) -> Any:
        """The launch's result. `launch` is called with two events to record, or with None twice.

        `describe`: what else is to be known of such launches, called once for each kind.
        """
        if self.is_child:
            with contextlib.suppress(OSError):  # a process that outlived the capture
                (self.contents.folder / "forked").touch()
            return launch(None, None)
        if not self.contents.is_awaited:  # by now whatever ends the library at the program's end is registered
            self.contents.is_awaited = True
            with contextlib.suppress(OSError):  # what is not there at the end tells of a process that was killed
                (self.contents.folder / "launched").touch()
            atexit.register(self.contents.when_it_ends)
        weight = launches.look(self._random.random())
        row = self._row(launches, geometry, arguments, describe)
        row.looked_at += weight
        before = self._before(function, row, arguments, owner)
        self.settle()
        start, end = self.library.event(), self.library.event()
        result = launch(start, end)
        self._pending.append((row, weight, start, end))
        if before is not None:
            self._keep(row, arguments, before)
        return result

    def _row(
        self,
        launches: Launches,
        geometry: Geometry,
        arguments: Sequence[Any],
        describe: Callable[[], Mapping[str, Any]],
    ) -> Row:
        described = [self.library.described(one) for one in arguments]
        key = (geometry, tuple((one["kind"], one.get("dtype"), one.get("shape")) for one in described))
        if key not in launches.rows:
            launches.rows[key] = Row(geometry, [dict(one) for one in described], describe())
        return launches.rows[key]

    def _before(self, function: Function, row: Row, arguments: Sequence[Any], owner: Any) -> list[Any] | None:
        """The arrays' contents before the launch, if they are to be kept; room for them after it is reserved."""
        if self.contents.limit_bytes is None or row.has_contents:
            return None
        row.has_contents = True
        if not self.contents.takes(2 * sum(one.get("bytes", 0) for one in row.arguments), function.name):
            return None
        self.library.synchronize()
        for symbol in _CONSTANT.findall(function.facts["source"] or ""):
            value = self.library.constant(owner, symbol)
            if value is not None:
                row.constants[symbol] = self.contents.save(value)
        return [self.library.contents(one) for one in arguments]

    def _keep(self, row: Row, arguments: Sequence[Any], before: Sequence[Any]) -> None:
        self.library.synchronize()
        for described, argument, old in zip(row.arguments, arguments, before):  # noqa: B905 - Python 3.9 has no strict
            if old is None:
                continue
            described["before"] = self.contents.save(old)
            new = self.library.contents(argument)
            if new.tobytes() != old.tobytes():
                described["after"] = self.contents.save(new)

    @property
    def is_short_of_times(self) -> bool:
        """Whether launches of unknown time are waiting."""
        return any(row.timed == 0 for row, *_ in self._pending)

    def settle(self, *, wait: bool = False) -> None:
        """Reads the times of launches that are over, or of all after waiting for them."""
        try:
            if wait and self._pending:
                self.library.synchronize()
            while self._pending and self.library.is_over(self._pending[0][3]):
                row, weight, start, end = self._pending.popleft()
                row.time_ms += weight * self.library.elapsed_ms(start, end)
                row.timed += weight
        except self.library.errors:  # the program has given its context back, or captures a graph
            self._pending.clear()

    def enter_child(self) -> None:
        """Notes that this process is a fork: the next launch of any function comes here."""
        self.is_child = True
        for function in self.functions.values():
            for launches in function.all:
                launches.left = 0
