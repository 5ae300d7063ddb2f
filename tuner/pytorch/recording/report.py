"""A recording's calls, its report, and its demand: questions and messages to the service."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from tilewright.kernels.problem import Problem
from tilewright.tuner.errors import TunerError
from tilewright.tuner.runtime.known.local_service import local_address
from tilewright.tuner.runtime.known.service import ApiCalls
from tilewright.tuner.runtime.launches.devices import place_of, resolved
from tilewright.tuner.runtime.runtime import default_runtime

LIMIT_S = 30.0
MOST_SHAPES = 250
"""The most shapes of one request: their answers, a kilobyte or two each, stay below the limit of a response."""

MOST_ROWS = 40
MOST_PREDICTED = 20
"""The longest entries that are predicted from shipped records: each prediction takes half a second."""

Question = tuple[str, str, tuple[tuple[str, bool | str], ...], str]
"""Kernel, dtype, options and device model: what the shapes of one request have in common."""


class NoServiceError(TunerError):
    """There is no service: set TILEWRIGHT_URL to the address of one."""


def report(recording: RecordedCalls) -> str:
    """A table of calls, the longest first, and below it the reasons for missing answers."""
    entries, remark, answers = list(recording), "", dict[tuple[Problem, str], Mapping[str, Any]]()
    try:
        answers = _answers(_api(), entries)
    except (TunerError, OSError, HTTPException, ValueError) as error:
        answers = _shipped(entries[:MOST_PREDICTED])
        of_shipped = "are those of the measurements that come with Tilewright" if answers else "are missing"
        remark = f"\nPredicted times {of_shipped}: {error or error.__doc__}"
    rows = [_HEAD, *(_row(recording, one, answers) for one in entries[:MOST_ROWS])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    left_out = f"\n{len(entries) - MOST_ROWS} more took less time." if len(entries) > MOST_ROWS else ""
    gain_ms = sum(filter(None, (gain(one, answers) for one in entries)))
    total = f"\nIn all {recording.total_ms:.4g} ms; tuning could gain {gain_ms:.4g} ms of them." if answers else ""
    return "\n".join(lines) + left_out + total + remark


def send_demand(recording: RecordedCalls) -> int:
    """How many problems the service was told of, in proportion to their calls; raises TunerError or OSError.

    It counts what it is asked for, so each is asked for as often as it was called, scaled down to what one request
    holds. A key that may only read counts once a minute for each problem.
    """
    api, problems = _api(), 0
    for question, weights in _weighted(recording).items():
        scale = min(1.0, MOST_SHAPES / sum(weights.values()))
        shapes = [problem.stated_shape for problem, calls in weights.items() for _ in range(max(1, int(calls * scale)))]
        for start in range(0, len(shapes), MOST_SHAPES):
            _ask(api, question, shapes[start : start + MOST_SHAPES])
        problems += len(weights)
    return problems


def gain(entry: Recorded, answers: Mapping[tuple[Problem, str], Mapping[str, Any]]) -> float | None:
    """Milliseconds that the service's configuration would save over all calls, by its time; None where unknown."""
    predicted_ms = _predicted_ms(entry, answers)
    return None if predicted_ms is None else max(0.0, entry.time_ms - entry.calls * predicted_ms)


_HEAD = ("operator", "tensors", "calls", "ms a call", "share", "kernel", "predicted ms", "could gain", "found by")


def _row(
    recording: RecordedCalls, entry: Recorded, answers: Mapping[tuple[Problem, str], Mapping[str, Any]]
) -> tuple[str, ...]:
    predicted_ms, saved_ms = _predicted_ms(entry, answers), gain(entry, answers)
    found_by = str(_answer(entry, answers).get("match", "")) if entry.problem else entry.reason
    return (
        entry.operator,
        entry.call,
        str(entry.calls),
        f"{entry.mean_ms:.4g}",
        f"{100 * recording.share(entry):.1f} %",
        entry.problem.kernel if entry.problem else "",
        "" if predicted_ms is None else f"{predicted_ms:.4g}",
        "" if saved_ms is None else f"{saved_ms:.4g} ms",
        found_by,
    )


def _answer(entry: Recorded, answers: Mapping[tuple[Problem, str], Mapping[str, Any]]) -> Mapping[str, Any]:
    return answers.get((entry.problem, entry.device), {}) if entry.problem else {}


def _predicted_ms(entry: Recorded, answers: Mapping[tuple[Problem, str], Mapping[str, Any]]) -> float | None:
    """The time of the service's configuration for this very problem; None where it is another shape's."""
    answer = _answer(entry, answers)
    return answer.get("time_ms") if answer.get("match") in {"exact", "range", "predicted"} else None


def _api() -> ApiCalls:
    url = os.environ.get("TILEWRIGHT_URL") or local_address()
    if not url:
        raise NoServiceError(NoServiceError.__doc__)
    return ApiCalls(url, os.environ.get("TILEWRIGHT_KEY") or None, LIMIT_S)


def _answers(api: ApiCalls, entries: Sequence[Recorded]) -> dict[tuple[Problem, str], Mapping[str, Any]]:
    """The service's answers for all problems, by problem and device."""
    asked: dict[tuple[Question, str], dict[Problem, None]] = defaultdict(dict)
    for entry, problem, question in _questions(entries):
        asked[question, entry.device][problem] = None
    found: dict[tuple[Problem, str], Mapping[str, Any]] = {}
    for (question, device), problems in asked.items():
        ordered = list(problems)
        for start in range(0, len(ordered), MOST_SHAPES):
            part = ordered[start : start + MOST_SHAPES]
            items = _ask(api, question, [problem.stated_shape for problem in part])
            found |= {(problem, device): item for problem, item in zip(part, items, strict=False)}
    return found


def _shipped(entries: Sequence[Recorded]) -> dict[tuple[Problem, str], Mapping[str, Any]]:
    """The shipped records' predictions for the entries that are problems, where they tell a time."""
    found = dict[tuple[Problem, str], Mapping[str, Any]]()
    try:
        runtime = default_runtime()
    except TunerError:  # a wrong setting, which the report tells of
        return found
    for problem, device in {(one.problem, one.device) for one in entries if one.problem}:
        choice = runtime.predicted(runtime.kernels.get(problem.kernel), problem, place_of(resolved(device)))
        if choice is not None and choice.time_ms is not None:
            found[problem, device] = {"match": choice.match, "time_ms": choice.time_ms}
    return found


def _weighted(entries: RecordedCalls) -> dict[Question, dict[Problem, int]]:
    """Calls by problem, grouped by the other parts of a request: a request has one device model and dtype."""
    weights: dict[Question, dict[Problem, int]] = defaultdict(lambda: defaultdict(int))
    for entry, problem, question in _questions(list(entries)):
        weights[question][problem] += entry.calls
    return weights


def _questions(entries: Sequence[Recorded]) -> Iterator[tuple[Recorded, Problem, Question]]:
    """Each entry that is a problem, with the key of the request that asks for it."""
    for entry in entries:
        if entry.problem is not None:
            problem, model = entry.problem, place_of(resolved(entry.device)).slug
            yield entry, problem, (problem.kernel, problem.dtype, problem.option_items, model)


def _ask(api: ApiCalls, question: Question, shapes: Sequence[Mapping[str, int]]) -> Sequence[Mapping[str, Any]]:
    kernel, dtype, options, model = question
    body = {"shapes": list(shapes), "dtype": dtype, "options": dict(options), "device_model": model}
    items: Sequence[Mapping[str, Any]] = api.call(f"/v1/kernels/{kernel}/best:batch", body).get("items", [])
    return items


MOST_PENDING = 4096
"""Pairs of CUDA events that wait to be read; then the record waits for the GPU, once."""


@dataclass
class Recorded:
    """All calls of one operator with tensors of the same shapes, types and layouts.

    `problem` is None where no kernel computes it, and `reason` says why. Times are those of the GPU for tensors on one,
    else of the calling thread.
    """

    operator: str
    call: str
    device: str
    problem: Problem | None
    reason: str
    calls: int = 0
    time_ms: float = 0.0

    @property
    def mean_ms(self) -> float:
        """Mean time of one call."""
        return self.time_ms / max(self.calls, 1)


@dataclass
class RecordedCalls:
    """The calls seen so far; `total_ms` is the time from the beginning to the end of the record."""

    entries: dict[Hashable, Recorded] = field(default_factory=dict)
    total_ms: float = 0.0
    _pending: list[tuple[Recorded, Any, Any]] = field(default_factory=list)

    def __iter__(self) -> Iterator[Recorded]:
        """The entries, those that took longest first."""
        self.settle()
        return iter(sorted(self.entries.values(), key=lambda one: -one.time_ms))

    def share(self, entry: Recorded) -> float:
        """The share of the whole record's time, 0 to 1."""
        return entry.time_ms / self.total_ms if self.total_ms else 0.0

    def add(self, key: Hashable, make: Callable[[], Recorded]) -> Recorded:
        """The entry of that key, with one call more."""
        entry = self.entries.get(key) or self.entries.setdefault(key, make())
        entry.calls += 1
        return entry

    def note(self, entry: Recorded, begun: Any, ended: Any) -> None:
        """Keeps two CUDA events until they can be read."""
        self._pending.append((entry, begun, ended))
        if len(self._pending) >= MOST_PENDING:
            self.settle()

    def settle(self) -> None:
        """Reads the events that are kept."""
        pending, self._pending = self._pending, []
        for entry, begun, ended in pending:
            ended.synchronize()
            entry.time_ms += begun.elapsed_time(ended)
