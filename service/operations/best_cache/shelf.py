"""The current best configurations of one kernel on one device model, in memory: by problem, and by distance."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple

from pydantic_core import to_json

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import MAX_AXIS, Kernel
from tilewright.kernels.problem import Limits, OptionValue, Problem
from tilewright.service.operations.answers import Match
from tilewright.service.operations.best.answer import BestQuery, default_answers, predicted_answer, standing_of
from tilewright.service.operations.best.far import COMPARED, choose, is_near
from tilewright.service.operations.best.predictions import RememberedPredictions
from tilewright.service.operations.best.rows import MAX_RANKED, preferred
from tilewright.service.operations.best.shipped import shipped_records
from tilewright.service.operations.best.stored import StoredBest
from tilewright.service.operations.best_cache.nearby import DEFAULT, NearbyRow, NearbyShapes
from tilewright.service.operations.best_cache.packed import Packer
from tilewright.service.operations.best_cache.rendered import Template, Templates, keep, template
from tilewright.service.operations.staleness.standing import Standing
from tilewright.tuner.predict.tiles import Tiles

Manner = tuple[str, tuple[tuple[str, OptionValue], ...]]
"""A dtype with every option and its value."""


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


@dataclass
class Change:
    """Rows added and removed among those with one dtype and the same options, by row id."""

    new: dict[int, NearbyRow] = field(default_factory=dict)
    gone: dict[int, NearbyRow] = field(default_factory=dict)


@dataclass
class Shelf:
    """Rows by problem. One thread puts and takes away; any may look up."""

    kernel: Kernel
    model: Model
    packer: Packer
    templates: Templates
    retracted: int = 0  # bests, as `count_retracted` counts them
    _templates: dict[int, dict[Hashable, Template]] = field(default_factory=dict)
    _of_defaults: dict[str, int] = field(default_factory=dict)
    _records: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict)  # several: of as many environments
    _manners: dict[Manner, int] = field(default_factory=dict)
    _nearby: dict[int, NearbyShapes] = field(default_factory=dict)
    _tiles: dict[int, Tiles] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._key = struct.Struct(f"<H{len(self.kernel.axes)}i")
        self._slug_as_json = to_json(self.model.slug)
        self._running = [variant for variant in self.kernel.variants if variant.runs_on(self.model.limits)]
        self._defaults = tuple((option.name, option.default) for option in self.kernel.options if not option.unstated)
        self._unstated = tuple((option.name, option.default) for option in self.kernel.options if option.unstated)

    def __len__(self) -> int:
        return len(self._records)

    def find_plain(self, sizes: Sequence[int], dtype: str) -> CachedAnswer | None:
        """The answer for these sizes, in the order of the axes, with every option at its default."""
        manner = self._of_defaults.get(dtype)
        if manner is None or min(sizes) < 1 or max(sizes) > MAX_AXIS:
            return None
        axes = tuple(zip(self.kernel.axes, sizes, strict=True))
        optional = self.kernel.optional_axes
        problem = Problem(
            self.kernel.name, axes, dtype, self._defaults, optional_axes=optional, unstated_options=self._unstated
        )
        return self._find(problem, sizes, manner)

    def find(self, problem: Problem) -> CachedAnswer | None:
        """The answer that `find_best` gives; None where the database must be asked."""
        manner = None if problem.chosen_axes else self._manners.get((problem.dtype, problem.option_items))
        return None if manner is None else self._find(problem, [size for _, size in problem.axes], manner)

    def _find(self, problem: Problem, sizes: Sequence[int], manner: int) -> CachedAnswer | None:
        records = self._records.get(self._key.pack(manner, *sizes))
        if records is not None:
            record = records[0] if len(records) == 1 else self._preferred(records, problem)
            if self.packer.standing(record) is not None:
                return self._exact(problem, sizes, manner, record)
        nearby = self._nearby.get(manner)
        return None if nearby is None else self._without_exact(self._asked(problem), sizes, manner, nearby)

    def _exact(self, problem: Problem, sizes: Sequence[int], manner: int, record: bytes) -> CachedAnswer:
        kept, shared = self._templates[manner], self.packer.shared(record)
        made = kept.get(shared)
        if made is None:
            row, standing = self.packer.unpack(record, problem.shape, problem.dtype, problem.options)
            made = template(self._asked(problem), Match.EXACT, row, standing or Standing())
            keep(kept, shared, made)
        text = made.filled(problem, (*sizes, *sizes), self.packer.figures(record), self._slug_as_json)
        return CachedAnswer(Match.EXACT, problem, self.model.slug, 0.0, text)

    def _without_exact(
        self, asked: BestQuery, sizes: Sequence[int], manner: int, nearby: NearbyShapes
    ) -> CachedAnswer | None:
        is_known, prediction = nearby.predicted.answer(asked.problem)
        if not is_known:
            return None
        if prediction is not None:
            answer = predicted_answer(asked, prediction)
            text = answer.model_dump_json().encode()
            return CachedAnswer(
                Match.PREDICTED, asked.problem, asked.slug, prediction.expected_loss, text, answer.shipped
            )
        place = nearby.chosen.get(tuple(sizes))
        if place is not None:
            return self._from_afar(asked, sizes, manner, nearby, place)
        fitting = self._fitting(asked, nearby, nearby.nearest(sizes))
        first = next(fitting, None)
        if first is None:
            return None
        tuned = self._sizes(nearby.keys[first[0]])
        if is_near(sizes, tuned):
            return self._stored(Match.NEAREST, asked, sizes, manner, first[1], tuned)
        place = self._choose(asked, manner, nearby, [first, *islice(fitting, COMPARED - 1)])
        nearby.keep_choice(sizes, place)
        return self._from_afar(asked, sizes, manner, nearby, place)

    def _fitting(self, asked: BestQuery, nearby: NearbyShapes, places: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """The places whose configuration fits the requested problem, with their records."""
        for place in places:
            key, row_id = nearby.keys[place], nearby.ids[place]
            for record in self._records.get(key, ()):
                if self.packer.row_id(record) == row_id and asked.is_member(self.packer.configuration(record)):
                    yield place, record

    def _choose(self, asked: BestQuery, manner: int, nearby: NearbyShapes, fitting: Sequence[tuple[int, bytes]]) -> int:
        """The place of the row that should be fastest, or DEFAULT."""
        rows = [self._unpacked(record, self._sizes(nearby.keys[place]), asked.problem) for place, record in fitting]
        chosen = choose(asked, rows, self._tiles.setdefault(manner, Tiles(self.kernel)))
        return next((place for (place, _), row in zip(fitting, rows, strict=True) if row is chosen), DEFAULT)

    def _from_afar(
        self, asked: BestQuery, sizes: Sequence[int], manner: int, nearby: NearbyShapes, place: int
    ) -> CachedAnswer | None:
        """The answer from the row that an estimate chose; None where that row is just being removed."""
        if place == DEFAULT:
            text = default_answers([asked])[asked.problem.hash].model_dump_json().encode()
            return CachedAnswer(Match.DEFAULT, asked.problem, asked.slug, None, text)
        for _, record in self._fitting(asked, nearby, [place]):
            return self._stored(Match.ESTIMATED, asked, sizes, manner, record, self._sizes(nearby.keys[place]))
        return None

    def _stored(
        self, match: Match, asked: BestQuery, sizes: Sequence[int], manner: int, record: bytes, tuned: Sequence[int]
    ) -> CachedAnswer:
        """The answer from a record of another problem."""
        problem, kept = asked.problem, self._templates[manner]
        # The standing depends on the variants that the asked problem admits.
        shared = match, self.packer.shared(record), tuple([variant.name for variant in asked.usable_variants])
        made = kept.get(shared)
        if made is None:
            row = self._unpacked(record, tuned, problem)
            made = keep(kept, shared, template(asked, match, row, standing_of(asked, row)))
        text = made.filled(problem, (*sizes, *tuned), self.packer.figures(record), self._slug_as_json)
        return CachedAnswer(match, problem, asked.slug, None, text)

    def _unpacked(self, record: bytes, tuned: Sequence[int], like: Problem) -> StoredBest:
        shape = dict(zip(self.kernel.axes, tuned, strict=True))
        return self.packer.unpack(record, shape, like.dtype, like.options)[0]

    def _asked(self, problem: Problem) -> BestQuery:
        return BestQuery(self.kernel, problem, self.model.slug, self.model.limits, self._running)

    def _preferred(self, records: Sequence[bytes], problem: Problem) -> bytes:
        """The record to use, of several environments' records of this problem."""
        rows = [self.packer.unpack(r, problem.shape, problem.dtype, problem.options)[0] for r in records]
        best = preferred(self.kernel, rows)
        return next(record for record, row in zip(records, rows, strict=True) if row is best)

    def _packed(self, row: StoredBest, problem: Problem) -> bytes:
        asked = self._asked(problem)
        return self.packer.pack(row, standing_of(asked, row) if asked.is_member(row.configuration) else None)

    def fill(self, rows: Iterable[StoredBest]) -> None:
        """Adds many rows; they can be found by distance only after `arrange`."""
        for row in rows:
            problem = self._problem_of(row)
            if problem is not None:
                key = self._key_of(problem)
                self._records[key] = (*self._records.get(key, ()), self._packed(row, problem))

    def arrange(self) -> None:
        """Makes everything findable by distance."""
        by_manner: dict[int, list[tuple[int, bytes, bytes]]] = {number: [] for number in self._manners.values()}
        for key, records in self._records.items():
            by_manner[self._manner(key)].extend((self.packer.row_id(record), key, record) for record in records)
        for manner, rows in by_manner.items():
            self._arrange(manner, rows)

    def _arrange(self, manner: int, rows: list[tuple[int, bytes, bytes]]) -> None:
        """Makes these rows, all of a manner, findable by distance: ids with keys and records."""
        rows.sort(reverse=True)
        newest = [NearbyRow(row_id, key, self.packer.time_ms(record)) for row_id, key, record in rows[:MAX_RANKED]]
        sizes = [self._sizes(row.key) for row in newest]
        if newest:
            self._nearby[manner] = NearbyShapes.of(newest, sizes, self._remembered([row.row_id for row in newest]))
        else:  # the last of them was taken away
            self._nearby.pop(manner, None)

    def replace(self, rows: Iterable[tuple[StoredBest, bool]]) -> None:
        """Adds the rows marked as current and removes the others.

        New rows are added before old ones are removed, so that a lookup in between finds one of them.
        """
        changes: dict[int, Change] = defaultdict(Change)
        for row, is_current in rows:
            problem = self._problem_of(row)
            if problem is None:
                continue
            key = self._key_of(problem)
            before = self._records.get(key, ())
            others = tuple(record for record in before if self.packer.row_id(record) != row.id)
            is_known = len(others) < len(before)
            if is_current:
                self._records[key] = (*others, self._packed(row, problem))
            if is_current == is_known:
                continue
            change = changes[self._manner(key)]
            (change.new if is_current else change.gone)[row.id] = NearbyRow(row.id, key, row.time_ms)
        for manner, change in changes.items():
            self._rearrange(manner, change)
            for near in change.gone.values():
                self._take_away(near)

    def forget_predictions(self, retracted: int) -> None:
        """Drops the predictions that were made before the latest retraction."""
        self.retracted = retracted
        for manner, nearby in list(self._nearby.items()):
            self._nearby[manner] = nearby.changed((), [], [], self._remembered)

    def _take_away(self, near: NearbyRow) -> None:
        kept = tuple(record for record in self._records[near.key] if self.packer.row_id(record) != near.row_id)
        if kept:
            self._records[near.key] = kept
        else:
            del self._records[near.key]

    def _rearrange(self, manner: int, change: Change) -> None:
        """Makes the changed rows of a manner findable by distance; reads all its rows only where it must.

        Beyond MAX_RANKED rows the older ones are not ranked; they matter only once newer ones are removed.
        """
        nearby = self._nearby.get(manner)
        oldest = -1 if nearby is None or len(nearby.keys) < MAX_RANKED else int(nearby.ids[-1])
        new = [near for near in change.new.values() if near.row_id > oldest]
        gone = [row_id for row_id in change.gone if row_id >= oldest]
        if nearby is not None and (oldest < 0 or len(new) >= len(gone)):
            if new or gone:
                sizes = [self._sizes(near.key) for near in new]
                self._nearby[manner] = nearby.changed(gone, new, sizes, self._remembered)
            return
        rows = (
            (self.packer.row_id(record), key, record)
            for key, records in self._records.items()
            if self._manner(key) == manner
            for record in records
        )
        self._arrange(manner, [row for row in rows if row[0] not in change.gone])

    def _remembered(self, ids: Iterable[int]) -> RememberedPredictions:
        shipped = partial(shipped_records, self.kernel, self.model.slug, self.model.limits)
        return RememberedPredictions(self.kernel, self.model.limits, self.retracted, ids, shipped)

    def _problem_of(self, row: StoredBest) -> Problem | None:
        """The row's problem; None for batches and views, which are rare enough to be asked of the database.

        None too where nobody can ask for it any more, as the kernel is declared now.
        """
        known = {option.name for option in self.kernel.options}
        if not {name for name, _ in self._defaults} <= set(row.options) <= known:
            return None
        try:
            problem = self.kernel.problem(row.shape, row.dtype, row.options)
        except InvalidProblemError:
            return None
        return None if problem.chosen_axes else problem

    def _key_of(self, problem: Problem) -> bytes:
        number = self._manners.get((problem.dtype, problem.option_items))
        if number is None:
            number = len(self._manners)
            self._templates[number] = self.templates.of((problem.kernel, problem.dtype, problem.option_items))
            if problem.option_items == self._defaults:
                self._of_defaults[problem.dtype] = number
            self._manners[problem.dtype, problem.option_items] = number
        return self._key.pack(number, *(size for _, size in problem.axes))

    def _manner(self, key: bytes) -> int:
        number: int = self._key.unpack(key)[0]
        return number

    def _sizes(self, key: bytes) -> tuple[int, ...]:
        return self._key.unpack(key)[1:]
