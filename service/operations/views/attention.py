"""Problems that need attention: results that are stale, regressed, improvable or behind, failing jobs, untuned
requests.

Sorted by what tuning may be worth: the requests that are known of, times the share of the time that may be saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from uuid import UUID

from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.service.operations import registry
from tilewright.service.operations.answers import Answer, Match, Page, ProblemAnswer
from tilewright.service.operations.best_cache.current_answers import Answers
from tilewright.service.operations.demand.answers import AnsweredDemand, answered, open_jobs
from tilewright.service.operations.demand.demand import DemandAnswer, TunedDemand, demand, tune_one
from tilewright.service.operations.pages import cursor_of, row_id_of
from tilewright.service.operations.requests import DemandJobs
from tilewright.service.operations.views.attention_kind import AttentionKind
from tilewright.service.operations.views.attention_rows import (
    STAND_IN,
    AttentionReason,
    KnownPairs,
    Pair,
    gains_over_default,
    known_pairs,
)
from tilewright.service.store import models

ASSUMED_GAIN = 0.05
"""The gain that is assumed where nothing else is known: the margin within which a study counts as solved."""

MOST_REQUESTED = 200
"""Requested problems that are looked at, the most requested ones."""


ANSWERED_WITH = {
    Match.EXACT: "what was tuned meanwhile",
    Match.RANGE: "a table's range",
    Match.PREDICTED: "a prediction",
    Match.NEAREST: "the nearest shape's configuration",
    Match.TRANSFERRED: "another device model's configuration",
    Match.ESTIMATED: "a far shape's configuration",
    Match.DEFAULT: "the kernel's default",
}


class AttentionItem(Answer):
    """A problem on a device model, and why it needs attention."""

    problem: ProblemAnswer
    device_model: str
    reasons: list[AttentionReason]
    requests: int = Field(description="Requests while it was not tuned; exact answers are not counted.")
    expected_gain: float | None = Field(description="Share of its time that tuning may save; null where nothing tells.")
    weight: float = Field(description="Requests, at least 1, times the expected gain, or 0.05 where that is null.")
    study_id: int | None
    job_id: UUID | None = Field(description="An open job for exactly this.")
    is_served: bool = Field(description="Whether a worker with a device of the model is running.")


class AttentionPage(Page[AttentionItem]):
    """One page, the most worthwhile first; counts cover the whole list, whichever kind is shown."""

    total: int
    counts: dict[AttentionKind, int]


@dataclass(frozen=True)
class AttentionFilter:
    """The part of the list that is wanted."""

    kind: AttentionKind | None = None
    kernel: str | None = None
    device_model: str | None = None
    least_slowdown: float | None = None
    """Regressions by less than this share of the time before are left out."""


def attention(
    session: Session,
    chosen: AttentionFilter | None = None,
    *,
    limit: int = 50,
    cursor: str | None = None,
    known: Answers | None = None,
    ordered: Callable[[list[Pair]], list[Pair]] | None = None,
) -> AttentionPage:
    """One page of the list, in another order where one is given.

    A cursor holds a place: what was tuned meanwhile moves the rest up.
    """
    wanted = chosen or AttentionFilter()
    found = _found(session, wanted, known)
    start = 0 if cursor is None else row_id_of(cursor)
    items = ordered(found.items) if ordered else found.items
    shown = items[start : start + limit]
    jobs = open_jobs(session, {pair.problem_hash for pair in shown})
    served = _served(session)
    return AttentionPage(
        items=[_item(pair, jobs, is_served=pair.device_model in served) for pair in shown],
        next_cursor=cursor_of(start + limit) if len(found.items) > start + limit else None,
        total=found.total if wanted.kind is None else found.counts[wanted.kind],
        counts=found.counts,
    )


def tune_attention(
    session: Session, request: DemandJobs, chosen: AttentionFilter, *, top: int, known: Answers | None = None
) -> list[TunedDemand]:
    """A job for each of the `top` most worthwhile whose device model a worker serves; sent again, it joins them.

    Raises CeilingError like `request_job`: then nothing is queued.
    """
    served = _served(session)
    ranked = (pair for pair in _found(session, chosen, known).items if pair.device_model in served)
    return [tune_one(session, request, pair.problem, pair.device_model, pair.requests) for pair in islice(ranked, top)]


def _served(session: Session) -> set[str]:
    """The device models that a running worker serves."""
    return {device.model for device in registry.devices(session) if device.alive}


def weight(pair: Pair) -> float:
    """The estimated worth of tuning it, to sort by."""
    return max(pair.requests, 1) * (ASSUMED_GAIN if pair.gain is None else pair.gain)


def requested(session: Session, chosen: AttentionFilter) -> list[DemandAnswer]:
    """The requested problems to consider, without those for a stand-in of a GPU and families."""
    model = models.DeviceModel
    stand_ins = set(session.scalars(select(model.slug).where(model.kind == STAND_IN)))
    rows = demand(session, kernel=chosen.kernel, device_model=chosen.device_model, limit=MOST_REQUESTED).items
    return [row for row in rows if row.device_model not in stand_ins and not row.problem.is_family]


def _found(session: Session, chosen: AttentionFilter, known: Answers | None) -> KnownPairs:
    """The problems that pass the filter, the most worthwhile first, and the counts of all kinds."""
    stored = known_pairs(
        session,
        kernel=chosen.kernel,
        device_model=chosen.device_model,
        kind=chosen.kind,
        least_slowdown=chosen.least_slowdown or 0.0,
    )
    by_place = {(pair.problem_hash, pair.device_model): pair for pair in stored.items}
    gains, new, count = gains_over_default(session), 0, 0
    for row in answered(session, requested(session, chosen), known):
        pair = _requested(row, gains)
        if pair is None:
            continue
        place = (pair.problem_hash, pair.device_model)
        failing = by_place.get(place)  # its job failed: then it has both reasons
        by_place[place] = pair if failing is None else replace(pair, reasons=(*failing.reasons, *pair.reasons))
        new, count = new + (failing is None), count + 1
    return KnownPairs(
        sorted(
            (
                pair
                for pair in by_place.values()
                if chosen.kind is None or chosen.kind in {reason.kind for reason in pair.reasons}
            ),
            key=lambda pair: (-weight(pair), pair.problem_hash, pair.device_model),
        ),
        stored.total + new,
        {kind: {**stored.counts, AttentionKind.REQUESTED: count}[kind] for kind in AttentionKind},
    )


def _requested(row: AnsweredDemand, gains: Mapping[str, float]) -> Pair | None:
    """The demand's row; None where the kernel no longer admits it, so that nobody can tune it."""
    problem_hash, asked = row.problem_hash, row.demand
    if problem_hash is None or (row.match is None and not row.pending):
        return None
    answer = ANSWERED_WITH[row.match] if row.match else "a prediction that is being computed"
    loss = row.expected_loss
    gain = loss / (1 + loss) if loss else None
    if row.match is Match.DEFAULT:
        gain = _saved(gains.get(asked.problem.kernel))
    times = "once" if asked.count == 1 else f"{asked.count:,} times"
    return Pair(
        problem=asked.problem.single,
        problem_hash=problem_hash,
        device_model=asked.device_model,
        reasons=(AttentionReason(kind=AttentionKind.REQUESTED, text=f"{times}; answered with {answer}"),),
        requests=asked.count,
        gain=gain,
    )


def _saved(ratio: float | None) -> float | None:
    """The share of time that is saved by being so many times as fast."""
    return None if ratio is None else max(1 - 1 / ratio, 0.0)


def _item(pair: Pair, jobs: Mapping[tuple[str | None, str], UUID], *, is_served: bool) -> AttentionItem:
    return AttentionItem(
        problem=pair.problem,
        device_model=pair.device_model,
        reasons=list(pair.reasons),
        requests=pair.requests,
        expected_gain=pair.gain,
        weight=weight(pair),
        study_id=pair.study_id,
        job_id=jobs.get((pair.problem_hash, pair.device_model)),
        is_served=is_served,
    )
