"""The current best configurations that a process keeps in memory, shelf by shelf as they are asked for.

A shelf is a kernel on a device model. Its content is never older than BELIEVED_S: the thread that keeps it
up to date (watch.py) calls `confirm` after every check for changes. Where no `confirm` comes, nothing is answered from
memory and callers ask the database, which gives the same answers (`find_best`).
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tilewright.kernels.errors import InvalidProblemError, UnknownNameError
from tilewright.kernels.problem import OptionValue, Problem
from tilewright.service.errors import InvalidRequestError, NoConfigurationError
from tilewright.service.operations.answers import Match
from tilewright.service.operations.best.rows import full_rows
from tilewright.service.operations.best.stored import StoredBest, stored_best
from tilewright.service.operations.best_cache.asked_shelves import Name
from tilewright.service.operations.best_cache.packed import Packer
from tilewright.service.operations.best_cache.shelf import CachedAnswer, Model, Shelf, Version
from tilewright.service.operations.registry import catalogue, default_device_model, limits_of
from tilewright.service.operations.staleness.standing import is_current
from tilewright.service.store import models

logger = logging.getLogger(__name__)

BELIEVED_S = 1.0
"""Every process sees a new best within this time, even where the message about it was lost."""

PIECE = 500
"""Rows that are read at once: some milliseconds, in which no request is answered."""

MOST_MISSED = 20_000
"""Problems noted as missing, until somebody takes them to have them computed."""

EXPECTED_FOR_S = 600.0
"""The longest wait at a start for recently asked shelves: one that cannot be read must not stop the rest."""


class ShelfState(NamedTuple):
    """A shelf, and its version at some moment."""

    shelf: Shelf
    version: Version

    def keep(self, problem: Problem, answer: CachedAnswer | str | None) -> None:
        """Keeps a computed answer, or what stands for it, with the database's state at that time."""
        self.shelf.keep(problem, answer, self.version)


class BestMemory:
    """Shelves, device models, and the shelves that are wanted. One thread changes it, any may read."""

    def __init__(self, most_rows: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`most_rows`: once so many rows are kept, no further shelf is filled and the database is asked."""
        self._most_rows, self._clock = most_rows, clock
        self._confirmed_at = -math.inf
        self._shelves: dict[Name, Shelf] = {}
        self._models: dict[str, Model] = {}
        self._default: str | None = None  # the device model that is meant where none is named
        self._wanted: dict[Name, None] = {}
        self._filling: Name | None = None
        self._too_large: set[Name] = set()
        self._packer = Packer()
        self._expected: dict[Name, None] | None = {}
        self._expected_since = -math.inf
        self.asked: set[Name] = set()
        """Shelves that were asked about, until somebody writes them down and takes them out."""
        self._missed: dict[bool, dict[Name, dict[Problem, None]]] = {True: {}, False: {}}  # whole answers, outlooks
        self.changes = 0
        """How often something was learnt that may change an answer."""

    def find(
        self,
        kernel: str,
        device_model: str | None,
        shape: Mapping[str, int],
        dtype: str,
        options: Mapping[str, OptionValue],
    ) -> CachedAnswer | None:
        """The answer of `find_best`; None where the database must be asked, also for the right error."""
        shelf = self._shelf(kernel, device_model)
        if shelf is None:
            return None
        try:
            answer = shelf.find(shape, dtype, options)
        except (InvalidProblemError, NoConfigurationError):
            return None
        return self._renewed(shelf, answer)

    def find_of(self, kernel: str, device_model: str | None, problem: Problem) -> CachedAnswer | None:
        """The answer of `find_best` for a problem; None where the database must be asked."""
        shelf = self._shelf(kernel, device_model)
        try:
            return None if shelf is None else self._renewed(shelf, shelf.find_of(problem))
        except NoConfigurationError:
            return None

    def _renewed(self, shelf: Shelf, answer: CachedAnswer | None) -> CachedAnswer | None:
        """The answer; a prediction from before the last change is noted, to be made anew."""
        if answer is not None and answer.match is Match.PREDICTED and shelf.is_outdated(answer.problem):
            self.miss(shelf.kernel.name, shelf.slug, answer.problem)
        return answer

    def outlook(self, kernel: str, device_model: str, problem: Problem) -> CachedAnswer | None:
        """How the problem is answered; an outlook from before the last change is noted, to be made anew."""
        whole = self.find_of(kernel, device_model, problem)
        shelf = self._shelf(kernel, device_model) if whole is None else None
        known = None if shelf is None else shelf.outlook(problem)
        if known is None:
            return whole
        if not known[1]:
            self.miss(kernel, device_model, problem, is_whole=False)
        return known[0]

    def miss(self, kernel: str, device_model: str, problem: Problem, *, is_whole: bool = True) -> bool:
        """Notes that the problem's answer, or an outlook on it, should be computed, without anybody waiting.

        False where none could be kept.
        """
        is_kept, missed = self._shelf(kernel, device_model) is not None, self._missed[is_whole]
        if is_kept and sum(map(len, list(missed.values()))) < MOST_MISSED:
            missed.setdefault((kernel, device_model), {})[problem] = None
        return is_kept

    def is_predictable(self, kernel: str, device_model: str, problem: Problem) -> bool:
        """Whether memory knows that no look-up answers the problem, so that it is predicted."""
        shelf = self._shelf(kernel, device_model)
        return shelf is not None and shelf.is_predictable(problem)

    def refusal(self, kernel: str, device_model: str, problem: Problem) -> str | None:
        """Why the problem has no answer, where that was computed."""
        shelf = self._shelf(kernel, device_model)
        return None if shelf is None else shelf.refusal(problem)

    def is_awaited(self, kernel: str, device_model: str, problem: Problem) -> bool:
        """Whether the problem's answer is being computed, because no look-up has it."""
        shelf = self._shelf(kernel, device_model)
        return shelf is not None and shelf.is_awaited(problem)

    def take_missed(self, *, is_whole: bool = True) -> dict[Name, list[Problem]]:
        """The noted problems, each once, which are then forgotten."""
        missed, self._missed[is_whole] = self._missed[is_whole], {}
        return {name: list(problems) for name, problems in missed.items()}

    def state_of(self, kernel: str, device_model: str) -> ShelfState | None:
        """The shelf with its present version, for `keep` to compare with; None where it is not up to date."""
        shelf = self._shelf(kernel, device_model)
        return None if shelf is None else ShelfState(shelf, shelf.version)

    def _shelf(self, kernel: str, device_model: str | None) -> Shelf | None:
        """The shelf, if it is up to date; a missing one is queued to be filled."""
        if self._clock() - self._confirmed_at > BELIEVED_S:
            return None
        slug = self._default if device_model is None else device_model
        name = (kernel, slug or "")
        shelf = self._shelves.get(name)
        if shelf is None:
            self._want(name)
        else:
            self.asked.add(name)
        return shelf

    def _want(self, name: Name) -> None:
        if name == self._filling or name in self._too_large:
            return
        if name[1] in self._models and len(self._wanted) <= len(self._models) * 64:
            self._wanted[name] = None

    def __len__(self) -> int:
        return sum(len(shelf) for shelf in list(self._shelves.values()))

    def confirm(self) -> None:
        """Notes that the content was up to date a moment ago."""
        self._confirmed_at = self._clock()

    def forget(self) -> None:
        """Drops everything: changes may have been missed."""
        self._confirmed_at = -math.inf
        self._shelves, self._models, self._default = {}, {}, None
        self._filling = None
        self._packer = Packer()
        self._too_large.clear()

    def prepare(self) -> None:
        """Begins a start: recently asked shelves count as missing until `expect` names them."""
        self._expected, self._expected_since = None, self._clock()

    def expect(self, names: Sequence[Name]) -> None:
        """Queues these shelves, which were asked for recently, to be filled."""
        for name in names:
            self._want(name)
        self._expected = dict.fromkeys(name for name in names if name in self._wanted)

    def what_is_missing(self) -> str | None:
        """One sentence about the recently asked shelves that are not loaded yet, or None when all are."""
        expected = self._expected
        if self._clock() - self._expected_since > EXPECTED_FOR_S:
            return None
        if expected is None:
            return "It has not asked the database yet which results to load into memory."
        left = [name for name in list(expected) if name == self._filling or name in self._wanted]
        if not left:
            return None
        return f"It is loading results into memory: {len(left)} of {len(expected)} kernels on device models are left."

    def wanted(self) -> Name | None:
        """The next shelf to fill: one that was asked for and is missing, or one that must be filled again."""
        return next(iter(list(self._wanted)), None)

    def filled(self, session: Session, name: Name, meanwhile: Callable[[], None]) -> Shelf | None:
        """A shelf filled from one moment's rows; None where it cannot be. `meanwhile` is called between pieces."""
        self._filling = name  # who asks for it meanwhile does not want it once more
        self._wanted.pop(name, None)
        shelf = None
        try:
            shelf = self._shelf_of(session, name, meanwhile)
        finally:
            if shelf is None:
                self._filling = None
        return shelf

    def _shelf_of(self, session: Session, name: Name, meanwhile: Callable[[], None]) -> Shelf | None:
        model = self._models.get(name[1])
        try:
            kernel = catalogue().get(name[0])
        except UnknownNameError:
            return None
        if model is None or not self._has_room(session, name, model):
            return None
        shelf = Shelf(kernel, model, self._packer)
        for rows in _pieces(session, *name):
            shelf.fill(rows)
            meanwhile()
        return shelf

    def put(self, name: Name, shelf: Shelf) -> None:
        """Answers from this shelf from now on."""
        self._shelves[name] = shelf
        self._filling = None
        self.changes += 1

    def _has_room(self, session: Session, name: Name, model: Model) -> bool:
        kept = sum(len(shelf) for other, shelf in self._shelves.items() if other != name)
        best = models.BestConfiguration
        query = select(func.count()).select_from(best).join(best.problem).join(models.Problem.kernel)
        count = session.scalar(
            query.where(is_current(), best.device_model_id == model.id, models.Kernel.name == name[0])
        )
        has_room = kept + (count or 0) <= self._most_rows
        if not has_room:
            self._shelves.pop(name, None)
            self._too_large.add(name)
            logger.warning("No room in memory for %d results of %s on %s: TILEWRIGHT_BEST_KEPT.", count, *name)
        return has_room

    def follow(self, session: Session, notifications: Sequence[str]) -> None:
        """Brings the shelves up to date after these notifications of the database (revision 0009)."""
        of: dict[str, set[int]] = {"best": set(), "study": set(), "model": set()}
        for message in notifications:
            kind, _, ids = message.partition(" ")
            of[kind].update(int(i) for i in ids.split(","))
        self.changes += 1
        if of["model"]:
            self.learn_models(session)
            again = [name for name, shelf in self._shelves.items() if shelf.model.id in of["model"]]
            self._wanted.update(dict.fromkeys(again))
            self._too_large.clear()
        if self._shelves and (of["best"] or of["study"]):
            self._replace(session, of["best"] | _bests_of(session, of["study"]))

    def renew(self) -> None:
        """Drops the shelves of kernels that were reloaded from their folders, and queues them to be filled again."""
        declared = catalogue().by_name
        for name, shelf in list(self._shelves.items()):
            if declared.get(name[0]) is not shelf.kernel:
                del self._shelves[name]
                self._wanted[name] = None

    def learn_models(self, session: Session) -> None:
        """Reads the device models as they are now."""
        rows = session.scalars(select(models.DeviceModel))
        self._models = {row.slug: Model(row.id, row.slug, limits_of(row)) for row in rows}
        with suppress(InvalidRequestError):
            self._default = None
            self._default = default_device_model(session)

    def _replace(self, session: Session, ids: Collection[int]) -> None:
        changed: dict[Name, list[tuple[StoredBest, bool]]] = defaultdict(list)
        with_retracted: set[Name] = set()
        for kernel, row, current, retracted in _rows_now(session, ids):
            changed[kernel, row.device_model].append((row, current))
            if retracted:
                with_retracted.add((kernel, row.device_model))
        kernels = {kernel for kernel, _ in changed}
        for name, other in list(self._shelves.items()):
            if name not in changed and name[0] in kernels:
                other.others_changed()
        for name, rows in changed.items():
            shelf = self._shelves.get(name)
            if shelf is not None:
                shelf.replace(rows)
                if name in with_retracted:
                    shelf.forget_predictions()


def _pieces(session: Session, kernel: str, slug: str) -> Iterator[list[StoredBest]]:
    """The current rows of a kernel on a device model, some at a time, of one moment."""
    query = (
        full_rows()
        .join(models.Kernel, models.Kernel.id == models.Problem.kernel_id)
        .where(models.Kernel.name == kernel, models.DeviceModel.slug == slug)
        .execution_options(stream_results=True, yield_per=PIECE)
    )
    for rows in session.execute(query).partitions():
        yield [stored_best(row) for row in rows]


def _rows_now(session: Session, ids: Collection[int]) -> Iterator[tuple[str, StoredBest, bool, bool]]:
    """Kernel, row, whether it is current, and whether it was retracted; those that are gone are left out."""
    best = models.BestConfiguration
    query = full_rows(models.Kernel.name, is_current(), best.retracted_at.is_not(None), current=False)
    query = query.join(models.Kernel, models.Kernel.id == models.Problem.kernel_id)
    for row in session.execute(query.where(best.id.in_(ids))):
        yield row[-3], stored_best(row), row[-2], row[-1]


def _bests_of(session: Session, studies: Collection[int]) -> set[int]:
    """Ids of the current rows of these studies."""
    if not studies:
        return set()
    best, study = models.BestConfiguration, models.Study
    same = (best.problem_id == study.problem_id, best.device_model_id == study.device_model_id)
    query = select(best.id).join(study, (same[0]) & (same[1]) & (best.environment_id == study.environment_id))
    return set(session.scalars(query.where(study.id.in_(studies), is_current())))
