"""The current best configurations of one kernel on one device model, in memory: by problem, and by distance."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic_core import to_json

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, OptionValue, Problem
from tilewright.service.operations.answers import Match
from tilewright.service.operations.best_answer import Asked, predicted_answer, standing_of, stored_fields
from tilewright.service.operations.best_rows import MAX_RANKED, preferred
from tilewright.service.operations.nearby import Near, Nearby
from tilewright.service.operations.packed_best import Packer
from tilewright.service.operations.predictions import Remembered
from tilewright.service.operations.staleness import Standing
from tilewright.service.operations.stored_best import StoredBest

Manner = tuple[str, tuple[tuple[str, OptionValue], ...]]
"""A dtype with every option and its value."""


@dataclass(frozen=True)
class Model:
    """What a question needs to know of a device model."""

    id: int
    slug: str
    limits: Limits


@dataclass(frozen=True)
class Found:
    """An answer as the fields of BestAnswer, in their order, which nobody needs to check again."""

    match: Match
    problem: Problem
    fields: Mapping[str, Any]

    @property
    def device_model(self) -> str:
        """The model that it was measured on."""
        return str(self.fields["device_model"])

    def as_json(self) -> bytes:
        """The same bytes as those of the BestAnswer."""
        return to_json(self.fields)


@dataclass
class Shelf:
    """Rows by problem. One thread puts and takes away; any may look up."""

    kernel: Kernel
    model: Model
    packer: Packer
    _records: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict)  # several: of as many environments
    _manners: dict[Manner, int] = field(default_factory=dict)
    _nearby: dict[int, Nearby] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._key = struct.Struct(f"<H{len(self.kernel.axes)}i")

    def __len__(self) -> int:
        return len(self._records)

    def find(self, problem: Problem) -> Found | None:
        """The answer that `find_best` gives; None where the database must be asked."""
        manner = self._manners.get((problem.dtype, problem.option_items))
        if manner is None:
            return None
        asked = Asked(self.kernel, problem, self.model.slug, self.model.limits)
        rows = self._rows(self._key.pack(manner, *(size for _, size in problem.axes)), problem)
        if rows:
            best = preferred(self.kernel, [row for row, _ in rows])
            standing = next(standing for row, standing in rows if row is best)
            if standing is not None:
                return Found(Match.EXACT, problem, stored_fields(asked, best, Match.EXACT, standing))
        nearby = self._nearby.get(manner)
        return None if nearby is None else self._without_exact(asked, nearby)

    def _without_exact(self, asked: Asked, nearby: Nearby) -> Found | None:
        is_known, prediction = nearby.predicted.answer(asked.problem)
        if not is_known:
            return None
        if prediction is not None:
            return Found(Match.PREDICTED, asked.problem, dict(predicted_answer(asked, prediction)))
        for place in nearby.nearest(asked.problem):
            row_id = nearby.ids[place]
            for row, _ in self._rows(nearby.keys[place], asked.problem):
                if row.id == row_id and asked.is_member(row.configuration):
                    fields = stored_fields(asked, row, Match.NEAREST, standing_of(asked, row))
                    return Found(Match.NEAREST, asked.problem, fields)
        return None

    def _rows(self, key: bytes, like: Problem) -> list[tuple[StoredBest, Standing | None]]:
        """The rows of the problem of that key, which has the dtype and options of `like`, with their standings."""
        records = self._records.get(key, ())
        shape = dict(zip(self.kernel.axes, self._key.unpack(key)[1:], strict=True))
        return [self.packer.unpack(record, shape, like.dtype, like.options) for record in records]

    def _packed(self, row: StoredBest, problem: Problem) -> bytes:
        asked = Asked(self.kernel, problem, self.model.slug, self.model.limits)
        return self.packer.pack(row, standing_of(asked, row) if asked.is_member(row.configuration) else None)

    def fill(self, rows: Iterable[StoredBest]) -> None:
        """Puts many rows in; by distance they are found after `arrange`."""
        for row in rows:
            problem = self._problem_of(row)
            if problem is not None:
                key = self._key_of(problem)
                self._records[key] = (*self._records.get(key, ()), self._packed(row, problem))

    def arrange(self) -> None:
        """Makes everything findable by distance."""
        found: dict[int, list[Near]] = {number: [] for number in self._manners.values()}
        for key, records in self._records.items():
            near = (Near(self.packer.row_id(r), key, self.packer.time_ms(r)) for r in records)
            found[self._key.unpack(key)[0]].extend(near)
        for manner, rows in found.items():
            newest = sorted(rows, key=lambda row: -row.row_id)[:MAX_RANKED]
            sizes = [self._sizes(row.key) for row in newest]
            self._nearby[manner] = Nearby.of(newest, sizes, self._remembered([row.row_id for row in newest]))

    def replace(self, row: StoredBest, *, is_current: bool) -> None:
        """Puts the row in where it is current, else takes it away."""
        problem = self._problem_of(row)
        if problem is None:
            return
        key = self._key_of(problem)
        before = self._records.get(key, ())
        kept = tuple(record for record in before if self.packer.row_id(record) != row.id)
        after = (*kept, self._packed(row, problem)) if is_current else kept
        if after:
            self._records[key] = after
        else:
            self._records.pop(key, None)
        if len(before) != len(after):
            self._rearrange(Near(row.id, key, row.time_ms), is_new=is_current)

    def _rearrange(self, row: Near, *, is_new: bool) -> None:
        manner = self._key.unpack(row.key)[0]
        nearby = self._nearby.get(manner)
        if nearby is None or len(nearby.keys) >= MAX_RANKED:
            self.arrange()
        elif is_new:
            ids = np.sort(np.append(nearby.ids, row.row_id))[::-1]
            self._nearby[manner] = nearby.with_row(row, self._sizes(row.key), self._remembered(ids))
        else:
            ids = nearby.ids[nearby.ids != row.row_id]
            self._nearby[manner] = nearby.without_row(row.row_id, self._remembered(ids))

    def _remembered(self, ids: Iterable[int]) -> Remembered:
        return Remembered(self.kernel, self.model.limits, ids)

    def _problem_of(self, row: StoredBest) -> Problem | None:
        """The row's problem; None where nobody can ask for it any more, as the kernel is declared now."""
        if set(row.options) != {option.name for option in self.kernel.options}:
            return None
        try:
            return self.kernel.problem(row.shape, row.dtype, row.options)
        except InvalidProblemError:
            return None

    def _key_of(self, problem: Problem) -> bytes:
        number = self._manners.setdefault((problem.dtype, problem.option_items), len(self._manners))
        return self._key.pack(number, *(size for _, size in problem.axes))

    def _sizes(self, key: bytes) -> tuple[int, ...]:
        return self._key.unpack(key)[1:]
