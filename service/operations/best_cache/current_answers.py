"""How problems are answered now: what `best` says of each, from memory where that holds it, else by few queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from tilewright.kernels.errors import InvalidProblemError
from tilewright.service.errors import InvalidRequestError, NoConfigurationError, NotFoundError
from tilewright.service.operations.answers import Match, ProblemAnswer
from tilewright.service.operations.best.find import MAX_SHAPES, find_best_batch
from tilewright.service.operations.best_cache.memory import BestMemory

AskedProblem = tuple[ProblemAnswer, str]
"""A problem and the slug of a device model."""

Group = tuple[str, str, str, str]


@dataclass(frozen=True)
class CurrentAnswer:
    """How a problem is answered, how much slower than tuned that is expected to be, and from which shipped records."""

    match: Match
    expected_loss: float | None
    shipped: str | None = None


def current_answers(
    session: Session, asked: Sequence[AskedProblem], memory: BestMemory | None = None
) -> list[CurrentAnswer | str]:
    """The answer for each, in order; a text says why there is none."""
    current: dict[int, CurrentAnswer | str] = {}
    groups: dict[Group, list[int]] = {}
    for place, (problem, slug) in enumerate(asked):
        named = (problem.kernel, slug, problem.shape, problem.dtype, problem.options)
        kept = memory.find(*named) if memory is not None else None
        if kept is not None:
            current[place] = CurrentAnswer(kept.match, kept.expected_loss, kept.shipped)
        else:
            options = str(sorted(problem.options.items()))
            groups.setdefault((problem.kernel, slug, problem.dtype, options), []).append(place)
    for places in groups.values():
        for start in range(0, len(places), MAX_SHAPES):
            current |= _looked_up(session, asked, places[start : start + MAX_SHAPES])
    return [current[place] for place in range(len(asked))]


def _looked_up(
    session: Session, asked: Sequence[AskedProblem], places: Sequence[int]
) -> dict[int, CurrentAnswer | str]:
    """The answers at those places, which differ only in shape; where one is refused, each is asked for alone."""
    problem, slug = asked[places[0]]
    shapes = [asked[place][0].shape for place in places]
    try:
        found = find_best_batch(session, problem.kernel, slug, shapes, problem.dtype, problem.options)
    except (InvalidProblemError, InvalidRequestError, NoConfigurationError, NotFoundError) as error:
        if len(places) == 1 or isinstance(error, NotFoundError):  # of a kernel that is not here none has an answer
            return dict.fromkeys(places, str(error))
        return {key: value for place in places for key, value in _looked_up(session, asked, [place]).items()}
    return {
        place: CurrentAnswer(answer.match, answer.expected_loss, answer.shipped)
        for place, answer in zip(places, found, strict=True)
    }
