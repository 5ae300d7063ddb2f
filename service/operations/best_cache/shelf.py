"""The current best configurations of one kernel on one device model, in memory, and answers computed elsewhere.

A problem that was tuned itself is answered from its row. Every other answer is decided by `find_in`, in a process of
the pool or by a look-up, and kept here until a row changes.
"""

from __future__ import annotations

import struct
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, OptionValue, Problem
from tilewright.service.operations.answers import BestAnswer, Match
from tilewright.service.operations.best.answer import BestQuery, first_usable
from tilewright.service.operations.best.rows import in_preference
from tilewright.service.operations.best.stored import StoredBest
from tilewright.service.operations.best_cache.packed import Packer
from tilewright.tuner.predict.record import enough

MOST_ANSWERS = 4096
"""Answers that a shelf keeps as bytes, of 2 to 3 kB, and as many that were computed elsewhere."""

Question = tuple[tuple[tuple[str, int], ...], str, tuple[tuple[str, OptionValue], ...]]
"""A shape, a dtype and options, as they were asked."""


@dataclass(frozen=True)
class Model:
    """The facts about a device model that a question needs."""

    id: int
    slug: str
    limits: Limits


class CachedAnswer(NamedTuple):
    """A BestAnswer as JSON bytes, with the fields that metrics and demand count.

    Without JSON it is an outlook: how the problem will be answered, for a page that shows no more.
    """

    match: Match
    problem: Problem
    device_model: str
    expected_loss: float | None
    as_json: bytes
    shipped: str | None = None
    pending: bool = False

    @classmethod
    def of(cls, problem: Problem, slug: str, answer: BestAnswer) -> CachedAnswer:
        """The cached answer for the problem on the device model."""
        text = answer.model_dump_json().encode()
        return cls(answer.match, problem, slug, answer.expected_loss, text, answer.shipped, answer.pending)


Version = tuple[int, int]
"""How often rows of the shelf have changed, and rows of its kernel on other device models."""

FOREIGN = frozenset({Match.TRANSFERRED, Match.DEFAULT})
"""Answers that another device model's results may change."""


class Computed(NamedTuple):
    """An answer from the pool, or its error, with the version of the shelf that it was computed from.

    None: no look-up answers the problem, and its answer is being computed.
    """

    version: Version
    answer: CachedAnswer | str | None


@dataclass
class Shelf:
    """Rows by problem. One thread adds and removes; any may look up."""

    kernel: Kernel
    model: Model
    packer: Packer
    version: Version = (0, 0)
    _ids: dict[bytes, tuple[int, ...]] = field(default_factory=dict)  # by key; several: of as many environments
    _rows: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)  # key and packed row
    _kinds: dict[tuple[str, object], int] = field(default_factory=dict)  # of a dtype with options: its number
    _counts: Counter[int] = field(default_factory=Counter)  # rows of a kind
    _answers: dict[Question, CachedAnswer] = field(default_factory=dict)
    _computed: dict[Problem, Computed] = field(default_factory=dict)
    _outlooks: dict[Problem, Computed] = field(default_factory=dict)
    _keeping: threading.Lock = field(default_factory=threading.Lock)  # pages keep answers in threads of their own

    def __post_init__(self) -> None:
        self.slug = self.model.slug
        self._key = struct.Struct(f"<H{len(self.kernel.axes)}i")
        self._running = [variant for variant in self.kernel.variants if variant.runs_on(self.model.limits)]

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, shape: Mapping[str, int], dtype: str, options: Mapping[str, OptionValue]) -> CachedAnswer | None:
        """The answer of find_best as bytes, kept until a row changes; None where the database must be asked.

        Raises InvalidProblemError and NoConfigurationError.
        """
        question = tuple(shape.items()), dtype, tuple(options.items())
        answers = self._answers  # those of the rows as they are now: a change replaces them after it replaced rows
        answer = answers.get(question)
        if answer is None:
            problem = self.kernel.problem(shape, dtype, options)
            answer = self.find_of(problem)
            if answer is not None and not (answer.match is Match.PREDICTED and self.is_outdated(problem)):
                if len(answers) >= MOST_ANSWERS:
                    answers.clear()
                answers[question] = answer
        return answer

    def find_of(self, problem: Problem) -> CachedAnswer | None:
        """The answer for a problem as bytes, which are not kept; None where the database must be asked."""
        rows = self._exact(problem)
        if rows:
            asked = BestQuery(self.kernel, problem, self.slug, self.model.limits, self._running)
            answer = first_usable(asked, in_preference(self.kernel, rows), Match.EXACT)
            if answer is not None:
                return CachedAnswer.of(problem, self.slug, answer)
        return self._computed_for(problem)

    def is_predictable(self, problem: Problem) -> bool:
        """Whether so many like problems are tuned that its answer is predicted, not looked up; not for batches."""
        kind = self._kinds.get((problem.dtype, problem.option_items), -1)
        return not problem.chosen_axes and enough(self._counts[kind])

    def keep(self, problem: Problem, answer: CachedAnswer | str | None, version: Version) -> None:
        """Keeps the answer from now on, unless the shelf has changed since that version."""
        computed = Computed(version, answer)
        if not self._is_current(computed):
            return
        is_outlook = isinstance(answer, CachedAnswer) and not answer.as_json
        kept = self._outlooks if is_outlook else self._computed
        with self._keeping:
            kept.pop(problem, None)  # the newest stand last
            kept[problem] = computed
            while len(kept) > MOST_ANSWERS:
                del kept[next(iter(kept))]

    def outlook(self, problem: Problem) -> tuple[CachedAnswer, bool] | None:
        """The problem's answer, and whether it rests on the present rows; None where it is not known.

        Like a prediction it stands until it is made anew.
        """
        outlook = self._outlooks.get(problem)
        if outlook is None or not isinstance(outlook.answer, CachedAnswer):
            return None
        return outlook.answer, self._is_current(outlook)

    def is_outdated(self, problem: Problem) -> bool:
        """Whether what was computed for the problem rests on rows that have changed."""
        computed = self._computed.get(problem)
        return computed is not None and not self._is_current(computed)

    def _is_current(self, computed: Computed) -> bool:
        answer, (own, foreign) = computed.answer, computed.version
        depends_on_others = not isinstance(answer, CachedAnswer) or answer.match in FOREIGN
        return own == self.version[0] and (foreign == self.version[1] or not depends_on_others)

    def _computed_for(self, problem: Problem) -> CachedAnswer | None:
        """A computed answer; after a change only predictions stand, until they are made anew."""
        computed = self._computed.get(problem)
        if computed is None or not isinstance(computed.answer, CachedAnswer):
            return None
        is_right = self._is_current(computed) or computed.answer.match is Match.PREDICTED
        return computed.answer if is_right else None

    def refusal(self, problem: Problem) -> str | None:
        """The reason why there is no answer, if it was found since the last change."""
        computed = self._computed.get(problem)
        if computed is None or not isinstance(computed.answer, str) or not self._is_current(computed):
            return None
        return computed.answer

    def is_awaited(self, problem: Problem) -> bool:
        """Whether no look-up has answered the problem since the last change."""
        computed = self._computed.get(problem)
        return computed is not None and computed.answer is None and self._is_current(computed)

    def _exact(self, problem: Problem) -> list[StoredBest]:
        """The problem's rows in several environments; none that are being replaced."""
        if problem.chosen_axes or (problem.dtype, problem.option_items) not in self._kinds:
            return []
        ids = self._ids.get(self._key_of(problem), ())
        rows = [row for row_id in ids if (row := self._rows.get(row_id)) is not None]
        return [self.packer.unpack(packed, self._shape(key)) for key, packed in rows]

    def fill(self, rows: Iterable[StoredBest]) -> None:
        """Adds these rows; a row without a usable problem is left out."""
        for row in rows:
            problem = self._problem_of(row)
            if problem is not None:
                self._put(self._key_of(problem, is_new=True), row)

    def replace(self, rows: Iterable[tuple[StoredBest, bool]]) -> None:
        """Adds the rows marked as current and removes the others.

        New rows are added before old ones are removed, so that a lookup in between finds one of them.
        """
        gone = []
        for row, is_current in rows:
            problem = self._problem_of(row)
            if problem is None or not (is_current or row.id in self._rows):
                continue
            if is_current:
                self._put(self._key_of(problem, is_new=True), row)
            else:
                gone.append(row.id)
        for row_id in gone:
            self._take_away(row_id)
        self.version = self.version[0] + 1, self.version[1]
        self._answers = {}

    def others_changed(self) -> None:
        """Drops answers that rest on another device model's results, which have changed."""
        self.version = self.version[0], self.version[1] + 1
        self._answers = {}

    def forget_predictions(self) -> None:
        """Drops answers computed before the latest retraction: they may rest on what was retracted."""
        self.version = self.version[0] + 1, self.version[1]
        self._computed, self._outlooks = {}, {}
        self._answers = {}

    def _put(self, key: bytes, row: StoredBest) -> None:
        is_known = row.id in self._rows
        self._rows[row.id] = key, self.packer.pack(row)
        if not is_known:
            self._ids[key] = (*self._ids.get(key, ()), row.id)
            self._counts[self._key.unpack(key)[0]] += 1

    def _take_away(self, row_id: int) -> None:
        key = self._rows[row_id][0]
        left = tuple(other for other in self._ids[key] if other != row_id)
        if left:
            self._ids[key] = left
        else:
            del self._ids[key]
        del self._rows[row_id]
        self._counts[self._key.unpack(key)[0]] -= 1

    def _problem_of(self, row: StoredBest) -> Problem | None:
        """The row's problem; None for batches and views, which are rare enough to be asked of the database.

        None too where nobody can ask for it any more, as the kernel is declared now.
        """
        known = {option.name for option in self.kernel.options}
        if not {option.name for option in self.kernel.options if not option.unstated} <= set(row.options) <= known:
            return None
        try:
            problem = self.kernel.problem(row.shape, row.dtype, row.options)
        except InvalidProblemError:
            return None
        return None if problem.chosen_axes else problem

    def _kind(self, problem: Problem) -> int:
        return self._kinds[problem.dtype, problem.option_items]

    def _key_of(self, problem: Problem, *, is_new: bool = False) -> bytes:
        if is_new:
            self._kinds.setdefault((problem.dtype, problem.option_items), len(self._kinds))
        return self._key.pack(self._kind(problem), *(size for _, size in problem.axes))

    def _shape(self, key: bytes) -> dict[str, int]:
        return dict(zip(self.kernel.axes, self._key.unpack(key)[1:], strict=True))
