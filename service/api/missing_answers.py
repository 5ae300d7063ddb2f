"""A thread that has the answers computed which nobody waits for: those of cells of pages, and outdated ones."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy.exc import SQLAlchemyError

from tilewright.kernels.errors import InvalidProblemError, UnknownNameError
from tilewright.kernels.problem import Problem
from tilewright.service.api.best_answers import keep, slice_of
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.best.find import Asked
from tilewright.service.operations.best.rows import EnvironmentFilter
from tilewright.service.operations.best_cache.asked_shelves import Name
from tilewright.service.operations.best_cache.memory import BestMemory
from tilewright.service.operations.best_pool.pool import BestPool
from tilewright.service.operations.best_pool.process import Answers
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.views.open_cells import open_cells

logger = logging.getLogger(__name__)

EVERY_S = 0.5
"""How often it looks for what is missing."""

CHANGED_EVERY_S = 2.0
"""How often the cells of the pages are gone through at most, while results change."""


class MissingAnswers:
    """A thread that has the pool compute, behind all that is urgent, what is missing in the memory."""

    def __init__(self, memory: BestMemory, pool: BestPool) -> None:
        self._memory, self._pool = memory, pool
        self._under_way: set[tuple[Name, Problem, bool]] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen, self._looked_s = -1, 0.0

    @property
    def under_way(self) -> int:
        """Answers that are being computed, or wait for it."""
        return len(self._under_way)

    def start(self) -> None:
        """Starts the thread."""
        self._stopping.clear()
        self._pool.start()
        self._thread = threading.Thread(target=self._loop, name="missing answers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, and the processes of the pool."""
        self._stopping.set()
        self._pool.close()
        if self._thread is not None:
            self._thread.join(5.0)

    def _loop(self) -> None:
        while not self._stopping.wait(EVERY_S):
            try:
                self.look()
            except DatabaseUnavailableError as error:
                logger.warning("Answers of pages wait to be computed: %s", error)
            except SQLAlchemyError:
                logger.exception("Answers of pages wait to be computed.")  # tables of another version, say

    def look(self) -> None:
        """Asks the pool for what is missing now."""
        changes, now_s = self._memory.changes, time.monotonic()
        if changes != self._seen and now_s - self._looked_s >= CHANGED_EVERY_S:
            self._seen, self._looked_s = changes, now_s
            self._note_cells()
        for is_whole in (False, True):
            for name, problems in self._memory.take_missed(is_whole=is_whole).items():
                alike: dict[tuple[object, ...], list[Problem]] = {}
                for problem in problems:
                    alike.setdefault((problem.dtype, problem.option_items), []).append(problem)
                for some in alike.values():
                    self._compute(name, some, is_whole=is_whole)

    def _note_cells(self) -> None:
        with transaction() as session:
            cells = list(open_cells(session))
        declared = catalogue().by_name
        for problem, slug in cells:
            if self._stopping.is_set():
                return
            kernel = declared.get(problem.kernel)
            if kernel is None:
                continue
            try:
                asked = kernel.problem(problem.shape, problem.dtype, problem.options)
            except (InvalidProblemError, UnknownNameError):
                continue  # of an option or a shape that the kernel no longer has
            named = kernel.name, slug, asked
            if self._memory.outlook(*named) is None and self._memory.refusal(*named) is None:
                self._memory.miss(*named, is_whole=False)
            time.sleep(0)  # requests have their turn

    def _compute(self, name: Name, problems: Sequence[Problem], *, is_whole: bool) -> None:
        kernel, state = catalogue().by_name.get(name[0]), self._memory.state_of(*name)
        with self._lock:
            new = [problem for problem in problems if (name, problem, is_whole) not in self._under_way]
            if kernel is None or state is None or not new:
                return
            self._under_way |= {(name, problem, is_whole) for problem in new}

        def told(made: Answers) -> None:
            keep(state, new, made)
            ended = [new[place] for place in made] or new  # none at the end of a work that failed
            with self._lock:
                self._under_way -= {(name, problem, is_whole) for problem in ended}

        asked = Asked(kernel, name[1], tuple(new), EnvironmentFilter())
        if not self._pool.ask_later(replace(slice_of(asked, new), is_rough=not is_whole), None, told):
            told({})
