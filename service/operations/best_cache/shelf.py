"""The current best configurations of one kernel on one device model, in memory, as find_best reads them."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, OptionValue, Problem
from tilewright.kernels.space import Configuration
from tilewright.service.operations.answers import BestAnswer, Match
from tilewright.service.operations.best.answer import BestQuery
from tilewright.service.operations.best.find import find_in
from tilewright.service.operations.best.predictions import RememberedPredictions
from tilewright.service.operations.best.rows import MAX_RANKED, NOTHING_TUNED, TunedShapes, preferred
from tilewright.service.operations.best.shipped import shipped_records
from tilewright.service.operations.best.stored import StoredBest
from tilewright.service.operations.best_cache.packed import Packer
from tilewright.tuner.predict.predictor import Prediction
from tilewright.tuner.predict.tiles import Tiles

MOST_ANSWERS = 4096
"""Answers that a shelf keeps as bytes, of 2 to 3 kB."""

Question = tuple[tuple[tuple[str, int], ...], str, tuple[tuple[str, OptionValue], ...]]
"""A shape, a dtype and options, as they were asked."""


class AskDatabaseError(Exception):
    """What an answer needs is not in memory."""


@dataclass(frozen=True)
class Model:
    """The facts about a device model that a question needs."""

    id: int
    slug: str
    limits: Limits


class CachedAnswer(NamedTuple):
    """A BestAnswer as JSON bytes, with the fields that metrics and demand count."""

    match: Match
    problem: Problem
    device_model: str
    expected_loss: float | None
    as_json: bytes
    shipped: str | None = None

    @classmethod
    def of(cls, problem: Problem, slug: str, answer: BestAnswer) -> CachedAnswer:
        """That answer to a question about the problem on the device model."""
        text = answer.model_dump_json().encode()
        return cls(answer.match, problem, slug, answer.expected_loss, text, answer.shipped)


@dataclass(frozen=True)
class RankedShapes:
    """The rows with one dtype and the same options by distance, the newest first, and predictions made from them."""

    tuned: TunedShapes
    predictions: RememberedPredictions


@dataclass
class Shelf:
    """Rows by problem. One thread puts and takes away; any may look up."""

    kernel: Kernel
    model: Model
    packer: Packer
    retracted: int = 0  # bests, as `count_retracted` counts them
    wrong: Mapping[str, Collection[Configuration]] = field(default_factory=dict)  # as `wrong_configurations` has them
    _ids: dict[bytes, tuple[int, ...]] = field(default_factory=dict)  # by key; several: of as many environments
    _rows: dict[int, tuple[bytes, float, bytes]] = field(default_factory=dict)  # key, time, packed row
    _kinds: dict[tuple[str, object], int] = field(default_factory=dict)  # of a dtype with options: its number
    _ranked: dict[int, RankedShapes] = field(default_factory=dict)
    _tiles: dict[int, Tiles] = field(default_factory=dict)
    _answers: dict[Question, CachedAnswer] = field(default_factory=dict)

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
            answer = self.find_of(self.kernel.problem(shape, dtype, options))
            if answer is not None:
                if len(answers) >= MOST_ANSWERS:
                    answers.clear()
                answers[question] = answer
        return answer

    def find_of(self, problem: Problem) -> CachedAnswer | None:
        """The same for a problem; not kept."""
        if problem.chosen_axes or (problem.dtype, problem.option_items) not in self._kinds:
            return None
        try:
            return CachedAnswer.of(problem, self.slug, find_in(self, [problem])[0])
        except AskDatabaseError:
            return None

    @property
    def limits(self) -> Limits:
        """See BestRows."""
        return self.model.limits

    def query(self, problem: Problem, limits: Limits) -> BestQuery:
        """See BestRows."""
        return BestQuery(self.kernel, problem, self.slug, limits, self._running)

    def exact(self, problems: Sequence[Problem]) -> Iterator[tuple[Problem, StoredBest, Limits]]:
        """See BestRows."""
        for problem in problems:
            ids = self._ids.get(self._key_of(problem))
            if ids is not None:
                yield problem, preferred(self.kernel, list(self.by_id(ids).values())), self.limits

    def tuned(self, like: Problem, *, transferred: bool) -> TunedShapes:
        """See BestRows. Raises AskDatabaseError for other device models."""
        if transferred:
            raise AskDatabaseError
        ranked = self._ranked.get(self._kind(like))
        return NOTHING_TUNED if ranked is None else ranked.tuned

    def by_id(self, ids: Collection[int]) -> dict[int, StoredBest]:
        """See BestRows. Raises AskDatabaseError where one of them is just being replaced."""
        try:
            rows = {row_id: self._rows[row_id] for row_id in ids}
        except KeyError:
            raise AskDatabaseError from None
        return {row_id: self.packer.unpack(packed, self._shape(key)) for row_id, (key, _, packed) in rows.items()}

    def predicted(self, tuned: TunedShapes, asked: Sequence[BestQuery]) -> dict[Problem, Prediction]:
        """See BestRows. Raises AskDatabaseError where the prediction has not been made yet."""
        found = {}
        for query in asked:
            ranked = self._ranked.get(self._kind(query.problem))
            if ranked is None or ranked.tuned is not tuned:
                raise AskDatabaseError
            is_known, prediction = ranked.predictions.answer(query.problem)
            if not is_known:
                raise AskDatabaseError
            if prediction is not None:
                found[query.problem] = prediction
        return found

    def tiles(self, like: Problem) -> Tiles:
        """See BestRows."""
        return self._tiles.setdefault(self._kind(like), Tiles(self.kernel))

    def from_other_models(self, asked: Sequence[BestQuery]) -> dict[str, BestAnswer]:  # noqa: ARG002
        """See BestRows. Only the database knows."""
        raise AskDatabaseError

    def fill(self, rows: Iterable[StoredBest]) -> None:
        """Adds many rows; they can be found by distance only after `arrange`."""
        for row in rows:
            problem = self._problem_of(row)
            if problem is not None:
                self._put(self._key_of(problem, is_new=True), row)

    def arrange(self) -> None:
        """Makes everything findable by distance, and drops the answers that were made before."""
        for kind in range(len(self._kinds)):
            self._rank(kind)
        self._answers = {}

    def replace(self, rows: Iterable[tuple[StoredBest, bool]]) -> None:
        """Adds the rows marked as current and removes the others.

        New rows are added before old ones are removed, so that a lookup in between finds one of them.
        """
        new: dict[int, list[int]] = defaultdict(list)
        gone: dict[int, list[int]] = defaultdict(list)
        for row, is_current in rows:
            problem = self._problem_of(row)
            if problem is None or not (is_current or row.id in self._rows):
                continue
            key = self._key_of(problem, is_new=True)
            if not is_current:
                gone[self._kind(problem)].append(row.id)
                continue
            if row.id not in self._rows:
                new[self._kind(problem)].append(row.id)
            self._put(key, row)
        for kind in {*new, *gone}:
            self._rerank(kind, new[kind], gone[kind])
            for row_id in gone[kind]:
                self._take_away(row_id)
        self._answers = {}

    def forget_predictions(self, retracted: int) -> None:
        """Drops the predictions that were made before the latest retraction."""
        self.retracted = retracted
        for kind, ranked in list(self._ranked.items()):
            self._ranked[kind] = RankedShapes(ranked.tuned, self._remembered(ranked.tuned.ids))
        self._answers = {}

    def _put(self, key: bytes, row: StoredBest) -> None:
        is_known = row.id in self._rows
        self._rows[row.id] = key, row.time_ms, self.packer.pack(row)
        if not is_known:
            self._ids[key] = (*self._ids.get(key, ()), row.id)

    def _take_away(self, row_id: int) -> None:
        key = self._rows[row_id][0]
        left = tuple(other for other in self._ids[key] if other != row_id)
        if left:
            self._ids[key] = left
        else:
            del self._ids[key]
        del self._rows[row_id]

    def _rerank(self, kind: int, new: Sequence[int], gone: Sequence[int]) -> None:
        """Ranks the kind's rows after a change; looks at all of them only where older ones must move up."""
        before = self._ranked.get(kind)
        after = None if before is None else _changed(before.tuned, self._measured(new), gone)
        if after is None:
            self._rank(kind, gone)
        else:
            self._set(kind, after)

    def _rank(self, kind: int, gone: Collection[int] = ()) -> None:
        """Ranks the newest rows of the kind, but for those that go."""
        without = set(gone)
        of = [i for i, (key, _, _) in self._rows.items() if self._key.unpack(key)[0] == kind and i not in without]
        self._set(kind, self._measured(sorted(of, reverse=True)[:MAX_RANKED]))

    def _set(self, kind: int, tuned: TunedShapes) -> None:
        if len(tuned.ids):
            self._ranked[kind] = RankedShapes(tuned, self._remembered(tuned.ids))
        else:  # the last of them was taken away
            self._ranked.pop(kind, None)

    def _measured(self, ids: Sequence[int]) -> TunedShapes:
        """These rows' sizes and times, in that order."""
        rows = [self._rows[row_id] for row_id in ids]
        sizes = np.array([self._key.unpack(key)[1:] for key, _, _ in rows], np.float64)
        return TunedShapes(
            np.array(ids, np.int64),
            np.log(sizes.reshape(len(ids), len(self.kernel.axes))),
            np.zeros(len(ids)),
            np.array([time_ms for _, time_ms, _ in rows], np.float64),
        )

    def _remembered(self, ids: Iterable[int]) -> RememberedPredictions:
        shipped = partial(shipped_records, self.kernel, self.slug, self.limits)
        return RememberedPredictions(self.kernel, self.limits, self.retracted, ids, shipped)

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


def _changed(before: TunedShapes, new: TunedShapes, gone: Collection[int]) -> TunedShapes | None:
    """The newest MAX_RANKED of both without those that go; None where rows that were not ranked must move up.

    Beyond MAX_RANKED rows the older ones are not ranked; they matter only once newer ones are removed.
    """
    kept = np.flatnonzero(np.isin(before.ids, list(gone), invert=True))
    added = np.arange(len(new.ids))
    if len(before.ids) >= MAX_RANKED:
        added = np.flatnonzero(new.ids > before.ids[-1])
        if len(kept) + len(added) < MAX_RANKED:
            return None
    ids = np.concatenate((before.ids[kept], new.ids[added]))
    order = np.argsort(-ids)[:MAX_RANKED]
    return TunedShapes(
        ids[order],
        np.concatenate((before.log_shapes[kept], new.log_shapes[added]))[order],
        np.zeros(len(order)),
        np.concatenate((before.times_ms[kept], new.times_ms[added]))[order],
    )
