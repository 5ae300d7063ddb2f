"""A program's process that is timed, and whose launches are looked at: what is timed is what is verified.

Process, arguments and memory are the same for both. Every process first computes with inputs that it has not seen, on
poisoned outputs, and is timed at that; then come the launches that rank it, in batches, each on outputs that were
poisoned anew, and what the last one has left must be right too. Repeated launches that are much faster than those with
new inputs have not computed what these did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.kernels.kernel import Arrays
from tilewright.tuner.devices.cpu.process import Conversation
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.loop.expected import Expected
from tilewright.tuner.outcome import Outcome

MOST_RATIO, SLACK_S = 4.0, 2e-5
"""A launch with new inputs, the fastest of some, may take so many times as long as one of many, and that much longer:
code, page tables and branches are cold, and other programs take the caches. A sample is one launch or five and more, so
that one which computes once in a sample is farther off."""


@dataclass(frozen=True)
class Case:
    """Inputs of one kind, in files by name, with what integer outputs hold before; and what outputs must be."""

    sources: dict[str, Path]
    expected: Expected
    scalars: dict[str, float]

    def counts(self, kind: str) -> bool:
        """See `Expected`."""
        return self.expected.counts(kind)

    @property
    def can_be_loaded(self) -> bool:
        """Whether a process that has begun can load these inputs: not where two arrays share memory."""
        return not any(str(path).startswith("=") for path in self.sources.values())


@dataclass(frozen=True)
class Inspection:
    """The bench's part in inspecting launches: inputs, outputs, kinds and deadlines.

    `case_of`: the inputs of a kind. `outputs`: those in the files with that number, 0 or 1, of a process. `first`:
    kinds to begin with, of which the last is the one that is timed. `more`: further kinds. `constants`: the symbols of
    arrays in constant memory, by name.
    """

    case_of: Callable[[str], Case]
    outputs: Callable[[int], Arrays]
    first: tuple[str, ...]
    more: Callable[[], Iterator[str]]
    constants: Mapping[str, str]
    deadline_s: Callable[[int], float]


class InspectedProgram:
    """A `Conversation` with a host program (host/runner.cpp describes the words)."""

    def __init__(self, conversation: Conversation, inspection: Inspection) -> None:
        self.conversation, self._inspection = conversation, inspection
        self._fresh_s: list[float] = []
        self._loaded, self._seen = "", set[str]()
        self._unseen: Iterator[str] | None = None
        self._finite = 0x7B

    def sample(self, kind: str, count: int, min_s: float, evicted_bytes: int) -> list[float]:
        """Seconds of one launch with inputs of that kind, `count` times.

        Raises TrialFailure(WRONG_RESULT) where a launch computes what is wrong, or repeated ones do less than others.
        """
        if not self._fresh_s:
            for first in self._inspection.first:
                self._compute(first)
        if kind not in self._seen:
            self._compute(kind)
        elif self._loaded != kind:
            self._load(kind)
        deadline_s = self._inspection.deadline_s(count + 2)
        *words, verdict = self.conversation.ask(f"sample {count} {min_s} {evicted_bytes}", count + 1, deadline_s)
        samples = [float(word) for word in words]
        if verdict != "same":
            self._look(kind, 1)
        self._compare(min(samples))
        return samples

    def _compute(self, kind: str) -> None:
        """One launch with those inputs, inspected and timed."""
        self._load(kind)
        (answer,) = self.conversation.ask("fresh", 1, self._inspection.deadline_s(2))
        self._seen.add(kind)
        self._look(kind, 0)
        self._fresh_s.append(float(answer))

    def _load(self, kind: str) -> None:
        self._finite ^= 0xBA  # 0x7B and 0xC1 in turn, neither of which makes a NaN
        self.conversation.tell(_words(self._inspection.case_of(kind), self._finite, self._inspection.constants))
        self._loaded = kind

    def _look(self, kind: str, number: int) -> None:
        verification = self._inspection.case_of(kind).expected.compare(self._inspection.outputs(number))
        if not verification.is_right:
            what = "repeated with the same inputs" if number else "in the process that is timed, with new inputs"
            message = replace(verification, inputs=kind).message()
            raise TrialFailure(Outcome.WRONG_RESULT, f"a launch {what}: {message}")

    def _compare(self, repeated_s: float) -> None:
        """Raises TrialFailure where launches with new inputs take much longer than those that were timed."""
        most_s, kind = MOST_RATIO * repeated_s + SLACK_S, self._loaded
        if min(self._fresh_s) <= most_s:
            return
        if self._unseen is None:
            self._unseen = self._inspection.more()
        for unseen in (kind for kind in self._unseen if kind not in self._seen):
            self._compute(unseen)
            if self._fresh_s[-1] <= most_s:
                self._load(kind)
                return
        raise TrialFailure(
            Outcome.WRONG_RESULT,
            f"a launch with new inputs takes {min(self._fresh_s) * 1e3:.3g} ms, and one of many with the same inputs "
            f"{repeated_s * 1e3:.3g} ms: it does not compute each time",
        )


def _words(case: Case, finite: int, constants: Mapping[str, str]) -> str:
    fields = [f"s:{value!r}" for value in case.scalars.values()]
    for name, path in case.sources.items():
        fields.append(f"c:{constants[name]}:{path}" if name in constants else f"a:{name}:{path}")
    return "\t".join([f"load {finite}", *fields])
