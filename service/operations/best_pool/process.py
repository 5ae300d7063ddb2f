"""A process of the pool: computes answers for some time and hands them back, question by question.

It loads NumPy and the kernels only when it runs, after it has said with how many threads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.service.operations.best.find import Asked

AT_ONCE = 32
"""Shapes that are looked at for one slice: few are predicted in a quarter of a second."""

NICENESS = 5
"""A process of the pool gives way to those that answer, and to a worker's, where all cores are busy."""


@dataclass(frozen=True)
class Slice:
    """A part of a question: as many of these shapes as so many seconds suffice for, one at least.

    With `ranks` the reply says too in which order the shapes should be answered: those near to what is tuned first.
    """

    kernel: str
    device_model: str
    dtype: str
    options: tuple[tuple[str, bool | str], ...]
    driver: str | None
    toolkit: str | None
    shapes: tuple[Mapping[str, int], ...]
    seconds: float
    ranks: bool = False
    is_rough: bool = False  # predictions as Effort.ROUGH has them


@dataclass(frozen=True)
class Made:
    """One answer as JSON, with the fields that are counted; the other side knows its problem.

    A rough prediction has no JSON.
    """

    match: str
    device_model: str
    expected_loss: float | None
    shipped: str | None
    as_json: bytes


Answers = dict[int, Made | Exception]
"""Answers and refusals by the places of their shapes."""


@dataclass(frozen=True)
class Reply:
    """The answers to a slice and, if requested, all places in the order in which to answer them."""

    made: Answers
    order: Sequence[int] = ()


def serve(connection: Connection, database_url: str, shipped_records: Path) -> None:
    """Answers slices until the pipe closes, from the database and the shipped records in that folder."""
    os.nice(NICENESS)
    for library in ("OPENBLAS", "MKL", "OMP"):
        os.environ[f"{library}_NUM_THREADS"] = "1"  # the pool has a process a core
    from tilewright.service.store import session  # noqa: PLC0415

    session.configure(database_url)
    from tilewright.service.operations.best import find  # noqa: PLC0415, F401 - before the first question
    from tilewright.tuner.predict import shipped  # noqa: PLC0415

    shipped.FOLDER = shipped_records
    while True:
        try:
            asked: Slice = connection.recv()
        except (EOFError, ConnectionError):
            return
        try:
            connection.send(_reply(asked))
        except (BrokenPipeError, ConnectionError):
            return


def _reply(asked: Slice) -> Reply:
    from tilewright.kernels.errors import InvalidProblemError, UnknownNameError  # noqa: PLC0415
    from tilewright.service.errors import ServiceError  # noqa: PLC0415

    until = time.monotonic() + asked.seconds
    order: Sequence[int] = range(len(asked.shapes))
    try:
        order = _ranked(asked) if asked.ranks else order
        return Reply(_made(asked, order[:AT_ONCE], until), order)
    except (InvalidProblemError, ServiceError, UnknownNameError) as error:
        if len(order) == 1:
            return Reply({0: error})
    made: Answers = {}
    for place in order:  # which of them is refused, only each alone can tell
        try:
            made |= _made(asked, [place], until)
        except (InvalidProblemError, ServiceError, UnknownNameError) as error:
            made[place] = error
        if time.monotonic() >= until:
            break
    return Reply(made, order)


def _ranked(asked: Slice) -> list[int]:
    from tilewright.service.operations.best.find import nearest_first  # noqa: PLC0415

    question = _question(asked, range(len(asked.shapes)))
    return nearest_first(question.rows(), question.problems)


def _question(asked: Slice, places: Sequence[int]) -> Asked:
    from tilewright.service.operations.best.find import Asked  # noqa: PLC0415

    shapes = [asked.shapes[place] for place in places]
    question = (asked.kernel, asked.device_model, shapes, asked.dtype, dict(asked.options))
    return Asked.of(*question, driver=asked.driver, toolkit=asked.toolkit)


def _made(asked: Slice, places: Sequence[int], until: float) -> Answers:
    from tilewright.service.operations.best.find import find_in  # noqa: PLC0415
    from tilewright.service.operations.best.source import Effort  # noqa: PLC0415

    question = _question(asked, places)
    rows = question.rows(effort=Effort.ROUGH if asked.is_rough else Effort.ALL, until=until)
    found = find_in(rows, question.problems)
    return {
        place: Made(
            *(a.match.value, a.device_model, a.expected_loss, a.shipped),
            b"" if problem in rows.rough else a.model_dump_json().encode(),
        )
        for place, problem in zip(places, question.problems, strict=True)
        if (a := found.get(problem.hash)) is not None
    }
