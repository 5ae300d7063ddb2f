"""Problems' present answers, as `best` gives them, as far as that takes no prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy.orm import Session

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.problem import OptionValue, Problem
from tilewright.service.errors import InvalidRequestError, NoConfigurationError, NotFoundError
from tilewright.service.operations.answers import BestAnswer, Match, ProblemAnswer
from tilewright.service.operations.best.find import MAX_SHAPES, Asked, find_best, find_in
from tilewright.service.operations.best.source import Effort
from tilewright.service.operations.best_cache.memory import BestMemory, ShelfState
from tilewright.service.operations.best_cache.shelf import CachedAnswer
from tilewright.service.operations.registry import catalogue

AskedProblem = tuple[ProblemAnswer, str]
"""A problem and the slug of a device model."""

Group = tuple[str, str, str, str]


@dataclass(frozen=True)
class CurrentAnswer:
    """A problem's answer in short: its kind, the expected loss against tuning, and its shipped records.

    `match` is None while the answer is being computed.
    """

    match: Match | None
    expected_loss: float | None = None
    shipped: str | None = None


PENDING = CurrentAnswer(None)

LOOKED_UP = 20
"""The most answers that are looked up for a page: each takes some 5 ms, and hundreds are left to the pool."""


class Answers(Protocol):
    """Answers that need no database: those in memory, or those that were computed before."""

    def find(
        self,
        kernel: str,
        device_model: str | None,
        shape: Mapping[str, int],
        dtype: str,
        options: Mapping[str, OptionValue],
    ) -> CachedAnswer | BestAnswer | None:
        """The answer, where it is there."""


class ComputedAnswers:
    """Answers computed by this process, for a command: outside of any transaction, before they are needed in one."""

    def __init__(self, asked: Sequence[AskedProblem]) -> None:
        self._found = {}
        for problem, slug in asked:
            named = (problem.kernel, slug, problem.shape, problem.dtype, problem.options)
            try:
                self._found[_key(*named)] = find_best(*named)
            except (InvalidProblemError, InvalidRequestError, NoConfigurationError, NotFoundError):
                continue  # why, the look-up in the transaction says

    def find(
        self,
        kernel: str,
        device_model: str | None,
        shape: Mapping[str, int],
        dtype: str,
        options: Mapping[str, OptionValue],
    ) -> BestAnswer | None:
        """The answer as `Answers` has it."""
        return self._found.get(_key(kernel, device_model or "", shape, dtype, options))


def _key(
    kernel: str, slug: str, shape: Mapping[str, int], dtype: str, options: Mapping[str, OptionValue]
) -> tuple[object, ...]:
    return kernel, slug, tuple(sorted(shape.items())), dtype, tuple(sorted(options.items()))


def current_answers(
    session: Session, asked: Sequence[AskedProblem], known: Answers | None = None, *, are_whole: bool = False
) -> list[CurrentAnswer | str]:
    """One entry a problem, in order: its answer, or the reason why it has none.

    A problem that must be predicted is PENDING; with a BestMemory it is noted there, so that somebody computes it, and
    so are all answers where more than LOOKED_UP are unknown. `are_whole`: what is noted there is the answer, not an
    outlook on it.
    """
    memory = known if isinstance(known, BestMemory) else None
    current: dict[int, CurrentAnswer | str] = {}
    groups: dict[Group, list[int]] = {}
    pairs = {(problem.kernel, slug) for problem, slug in asked} if memory is not None else set()
    live = {pair for pair in pairs if memory is not None and memory.state_of(*pair) is not None}
    for place, (problem, slug) in enumerate(asked):
        named = (problem.kernel, slug, problem.shape, problem.dtype, problem.options)
        meant = _problem(problem) if memory is not None and not are_whole else None
        if memory is not None and meant is not None:
            kept: CachedAnswer | BestAnswer | None = memory.outlook(problem.kernel, slug, meant)
        else:
            kept = known.find(*named) if known is not None else None
        if kept is not None:
            current[place] = CurrentAnswer(kept.match, kept.expected_loss, kept.shipped)
        elif (problem.kernel, slug) in live and (noted := _noted(memory, problem, slug, is_whole=are_whole)):
            current[place] = noted
        else:
            options = str(sorted(problem.options.items()))
            groups.setdefault((problem.kernel, slug, problem.dtype, options), []).append(place)
    is_many = sum(map(len, groups.values())) > LOOKED_UP
    for (kernel, slug, *_), places in groups.items():
        is_left = is_many and (kernel, slug) in live
        left = [p for p in places if not (is_left and _is_noted(memory, *asked[p], is_whole=are_whole))]
        current |= dict.fromkeys(set(places) - set(left), PENDING)
        for start in range(0, len(left), MAX_SHAPES):
            some = left[start : start + MAX_SHAPES]
            current |= _looked_up(session, asked, some, memory, are_whole=are_whole)
    return [current[place] for place in range(len(asked))]


def _problem(asked: ProblemAnswer) -> Problem | None:
    """The problem; None where its kernel is not here, or no longer admits it."""
    kernel = catalogue().by_name.get(asked.kernel)
    try:
        return None if kernel is None else kernel.problem(asked.shape, asked.dtype, asked.options)
    except InvalidProblemError:
        return None


def _is_noted(memory: BestMemory | None, asked: ProblemAnswer, slug: str, *, is_whole: bool) -> bool:
    """Notes that the answer should be computed, if it could be kept."""
    problem = _problem(asked)
    return memory is not None and problem is not None and memory.miss(asked.kernel, slug, problem, is_whole=is_whole)


def _noted(memory: BestMemory | None, asked: ProblemAnswer, slug: str, *, is_whole: bool) -> CurrentAnswer | str | None:
    """The reason why a problem has no answer, PENDING while that is computed, or None where nothing is known."""
    problem = _problem(asked) if memory is not None else None
    if memory is None or problem is None:
        return None
    if memory.is_awaited(asked.kernel, slug, problem):
        memory.miss(asked.kernel, slug, problem, is_whole=is_whole)  # again: the one before may have failed
        return PENDING
    return memory.refusal(asked.kernel, slug, problem)


def _looked_up(
    session: Session,
    asked: Sequence[AskedProblem],
    places: Sequence[int],
    memory: BestMemory | None,
    *,
    are_whole: bool,
) -> dict[int, CurrentAnswer | str]:
    """The answers at those places, of one kernel; if one shape is refused, each is looked up alone."""
    problem, slug = asked[places[0]]
    shapes = [asked[place][0].shape for place in places]

    def reading() -> nullcontext[Session]:
        return nullcontext(session)

    # Taken before the rows are read: what changes meanwhile makes the answers old, and they are not kept.
    state = memory.state_of(problem.kernel, slug) if memory is not None else None

    try:
        question = Asked.of(problem.kernel, slug, shapes, problem.dtype, problem.options, reading=reading)
        found = find_in(question.rows(reading, Effort.LOOK_UP), question.problems)
    except (InvalidProblemError, InvalidRequestError, NoConfigurationError, NotFoundError) as error:
        if len(places) == 1 or isinstance(error, NotFoundError):  # of a kernel that is not here none has an answer
            return dict.fromkeys(places, str(error))
        each = (_looked_up(session, asked, [place], memory, are_whole=are_whole) for place in places)
        return {place: answer for one in each for place, answer in one.items()}
    if memory is not None:
        for missing in (one for one in question.problems if one.hash not in found):
            memory.miss(question.kernel.name, question.device_model, missing, is_whole=are_whole)
    return {
        place: _current(found.get(problem.hash), question, problem, state)
        for place, problem in zip(places, question.problems, strict=True)
    }


def _current(
    answer: BestAnswer | None, question: Asked, problem: Problem, state: ShelfState | None
) -> CurrentAnswer | str:
    if state is not None:
        state.keep(problem, None if answer is None else CachedAnswer.of(problem, question.device_model, answer))
    return PENDING if answer is None else CurrentAnswer(answer.match, answer.expected_loss, answer.shipped)
