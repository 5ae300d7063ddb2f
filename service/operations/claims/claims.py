"""Claims: a client says that a configuration gave wrong results, a worker verifies it, and its outcome counts.

A claim by itself changes nothing, because a client may be mistaken or lie: it queues a job that verifies the one
configuration with all kinds of inputs on a device of the model. Where that job finds it wrong, every best that has the
configuration is withdrawn, and it is neither predicted nor answered for the problem any more. A claim with times, those
of a client's first calls beside its library's, queues a search of the problem, which measures both.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pydantic import Field
from sqlalchemy import ColumnElement, Select, func, select, text
from sqlalchemy.orm import Session, joinedload

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.space import Configuration
from tilewright.service.errors import ConflictError, InvalidRequestError, NotFoundError, TooManyRequestsError
from tilewright.service.operations import DEFAULT_PRIORITY
from tilewright.service.operations.answers import Answer, Page, ProblemAnswer
from tilewright.service.operations.best.answer import BestQuery
from tilewright.service.operations.best.retractions import withdraw_configuration
from tilewright.service.operations.caller import acting, ceilings
from tilewright.service.operations.jobs.add import AcceptedRequest, join_or_add
from tilewright.service.operations.jobs.jobs import OPEN
from tilewright.service.operations.jobs.record_trial import storable
from tilewright.service.operations.jobs.request import accept, check_open_jobs
from tilewright.service.operations.pages import MAX_ROW_ID, newest_first
from tilewright.service.operations.registry import limits_of, problem_answer, problem_row
from tilewright.service.operations.requests import BudgetRequest, ClaimRequest, JobRequest, SeenTimes, StartRequest
from tilewright.service.operations.studies.rows import split_configuration
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store.models import ClaimState, JobState

VERIFIED_WITHIN_S = 600.0
"""Budget of a verification: of its inputs and reference, which take longest."""

MEASURED_WITHIN_S = 30.0
MEASURED_PRIORITY = 1
"""Budget and priority of a search for a claim of times: behind everything that somebody has asked for."""

REFUTED_FOR = timedelta(days=1)
"""How long a refuted claim, or one of times, answers for others of the same configuration: nobody occupies a device by
repeating it."""

DONE = JobState.DONE
UNVERIFIED, MEASURED = "unverified", "measured"


class ClaimAnswer(Answer):
    """A claim and what came of it."""

    id: int
    state: str = Field(
        description="open: not verified yet; confirmed: a worker found the configuration wrong, and it is not answered "
        "for this problem any more; refuted: it is right; measured: the claim was of times, and the problem has been "
        "measured; unverified: the job ended without an outcome.",
        examples=["open"],
    )
    problem: ProblemAnswer
    device_model: str
    driver: str = Field(description="The client's driver.")
    variant: str
    configuration: dict[str, int]
    source_hash: str
    seen: str = Field(description="What the client saw.")
    times: SeenTimes | None = Field(description="Its times there; null: it was wrong there.")
    found: str | None = Field(description="What the worker found.")
    job_id: UUID = Field(description="The job that verifies it, or measures the problem.")
    key_id: UUID | None = Field(description="The client's key; null: this machine.")
    created_at: datetime
    settled_at: datetime | None


def report_claim(session: Session, request: ClaimRequest) -> tuple[ClaimAnswer, bool]:
    """The claim and whether it is new; an equal claim that is open, or was refuted lately, is returned instead.

    Raises InvalidProblemError or InvalidRequestError naming the field, ConflictError where the source is another one
    now, TooManyRequestsError, CeilingError.
    """
    accepted = _accepted(session, request)
    configuration = accepted.starts[0]
    source_hash = accepted.kernel.source_hash(configuration.variant)
    problem = problem_row(session, accepted.problem)
    claim = models.Claim
    same = (
        claim.problem_id == problem.id,
        claim.device_model_id == accepted.model.id,
        claim.configuration == configuration.as_json(),
        claim.source_hash == source_hash,
        *_says_as(request),
    )
    _take_turns(session)
    known = session.scalars(_loaded().where(*same, _still_answers()).order_by(claim.id.desc()).limit(1)).first()
    if known is not None:
        return _answer(known), False
    _check_rate(session)
    check_open_jobs(session, accepted)
    job, _ = join_or_add(session, accepted)
    who = acting()
    row = models.Claim(
        key_id=who.caller.key_id if who else None,
        problem_id=problem.id,
        device_model_id=accepted.model.id,
        driver=request.driver,
        configuration=configuration.as_json(),
        source_hash=source_hash,
        seen=storable(request.seen),
        **({"seen_ms": request.times.model_dump()} if request.times else {}),  # None would be JSON's null
        job_id=job.id,
    )
    session.add(row)
    session.flush()
    return claim_of(session, row.id), True


def claims(
    session: Session, *, state: str | None = None, limit: int = 50, cursor: str | None = None
) -> Page[ClaimAnswer]:
    """A page of claims, newest first; raises InvalidRequestError for an unknown state or cursor."""
    return newest_first(
        session,
        _loaded().where(*_in_state(state)),
        models.Claim.id,
        lambda rows: [_answer(row) for row in rows],
        limit=limit,
        cursor=cursor,
    )


def claim_of(session: Session, claim_id: int) -> ClaimAnswer:
    """One claim; raises NotFoundError."""
    query = _loaded().where(models.Claim.id == claim_id)
    row = session.scalars(query).one_or_none() if 0 < claim_id <= MAX_ROW_ID else None
    if row is None:
        raise NotFoundError("claim", str(claim_id))
    return _answer(row)


def claimed_source(session: Session, job_id: UUID) -> str | None:
    """The hash of the source that a job's claims are about; None where no claim is left."""
    return session.scalar(select(models.Claim.source_hash).where(models.Claim.job_id == job_id).limit(1))


def settle_claims(session: Session, job_id: UUID, *, is_wrong: bool, found: str) -> None:
    """Records what the job found. A wrong configuration is withdrawn, and every API process hears of it."""
    open_ones = select(models.Claim).where(models.Claim.job_id == job_id, models.Claim.state == ClaimState.OPEN)
    rows = session.scalars(open_ones.with_for_update()).all()
    for row in rows:
        row.state = ClaimState.CONFIRMED if is_wrong else ClaimState.REFUTED
        row.found, row.settled_at = storable(found), func.now()
    session.flush()
    if is_wrong and rows:
        withdraw_configuration(session, rows[0], f"Claim {rows[0].id} was confirmed: {storable(found)}")
        session.execute(
            text("SELECT pg_notify('tilewright_best', :model)"), {"model": f"model {rows[0].device_model_id}"}
        )


def _accepted(session: Session, request: ClaimRequest) -> AcceptedRequest:
    """The verification that the claim asks for; raises InvalidProblemError, InvalidRequestError, ConflictError."""
    is_of_times = request.times is not None
    most_s = MEASURED_WITHIN_S if is_of_times else VERIFIED_WITHIN_S
    seconds = min(s for s in (most_s, settings().max_seconds, ceilings().max_seconds) if s is not None)
    accepted = accept(
        session,
        JobRequest(
            kernel=request.kernel,
            shape={**request.shape},
            dtype=request.dtype,
            options=request.options,
            device_model=request.device_model,
            budget=BudgetRequest(trials=None if is_of_times else 1, seconds=seconds),
            priority=MEASURED_PRIORITY if is_of_times else DEFAULT_PRIORITY,
            starts=[StartRequest(variant=request.variant, configuration=request.configuration)],
            # Other inputs than those that the configuration has passed; claims of times share one search.
            seed=0 if is_of_times else secrets.randbelow(2**31),
        ),
    )
    _check_configuration(accepted, accepted.starts[0], request)
    return replace(accepted, verifies=not is_of_times)


def _check_configuration(accepted: AcceptedRequest, configuration: Configuration, request: ClaimRequest) -> None:
    kernel: Kernel = accepted.kernel
    if dict(configuration.items) != request.configuration:
        missing = ", ".join(sorted(dict(configuration.items).keys() - request.configuration.keys()))
        raise InvalidRequestError("configuration", f"must state every parameter; missing: {missing}.")
    asked = BestQuery(kernel, accepted.problem, accepted.model.slug, limits_of(accepted.model))
    if not asked.is_member(configuration):
        raise InvalidRequestError("configuration", "is not in the search space of this problem, so it is never served.")
    if not kernel.has_source(configuration.variant, request.source_hash):
        raise ConflictError(f"The source of {kernel.name}/{configuration.variant} has changed since that answer.")


def _says_as(request: ClaimRequest) -> list[ColumnElement[bool]]:
    """Conditions for claims that say the same: a wrong configuration, or its times with that driver."""
    claim = models.Claim
    return [claim.seen_ms.is_not(None), claim.driver == request.driver] if request.times else [claim.seen_ms.is_(None)]


def _take_turns(session: Session) -> None:
    """Makes claims of one caller wait for each other, so that they are counted right."""
    lock = func.pg_advisory_xact_lock(func.hashtextextended(f"claims of {_key_name()}", 0))
    session.execute(select(lock))


def _check_rate(session: Session) -> None:
    """Raises TooManyRequestsError where the caller has made as many claims in the last minute as it may."""
    claim, most, minute = models.Claim, settings().claims_per_minute, timedelta(minutes=1)
    of_caller = claim.key_id.is_(None)
    if _key_name() is not None:  # all keys of its name: it may have been rotated
        of_caller = claim.key_id.in_(select(models.ApiKey.id).where(models.ApiKey.name == _key_name()))
    recent = select(claim.created_at).where(of_caller, claim.created_at > func.clock_timestamp() - minute)
    oldest = session.scalars(recent.order_by(claim.created_at.desc()).offset(most - 1).limit(1)).first()
    if oldest is not None:
        now = session.scalar(select(func.clock_timestamp())) or oldest
        raise TooManyRequestsError(max(1, round((oldest + minute - now).total_seconds())), "claims")


def _key_name() -> str | None:
    who = acting()
    return who.caller.key_name if who else None


def _still_answers() -> ColumnElement[bool]:
    """Whether a claim is open with a job at work, was confirmed, or was refuted lately."""
    claim = models.Claim
    is_at_work = claim.job.has(models.TuningJob.state.in_(OPEN))
    is_fresh = (claim.state == ClaimState.REFUTED) & (claim.settled_at > func.now() - REFUTED_FOR)
    is_fresh |= _of_times(DONE) & (claim.created_at > func.now() - REFUTED_FOR)
    return ((claim.state == ClaimState.OPEN) & is_at_work) | (claim.state == ClaimState.CONFIRMED) | is_fresh


def _in_state(state: str | None) -> list[ColumnElement[bool]]:
    if state is None:
        return []
    if state not in {UNVERIFIED, MEASURED, *ClaimState}:
        known = ", ".join([*ClaimState, MEASURED, UNVERIFIED])
        raise InvalidRequestError("state", f"must be one of {known}.", ClaimState.OPEN)
    is_open = models.Claim.job.has(models.TuningJob.state.in_(OPEN))
    wanted = ClaimState.OPEN if state in {UNVERIFIED, MEASURED} else ClaimState(state)
    is_measured = _of_times(DONE)
    of_state = {UNVERIFIED: [~is_open, ~is_measured], MEASURED: [is_measured], ClaimState.OPEN: [is_open]}
    more = of_state.get(state, [])
    return [models.Claim.state == wanted, *more]


def _of_times(state: JobState) -> ColumnElement[bool]:
    """Whether a claim is of times, and its job in that state."""
    return models.Claim.seen_ms.is_not(None) & models.Claim.job.has(models.TuningJob.state == state)


def _loaded() -> Select[Any]:
    claim = models.Claim
    return (
        select(claim)
        .options(
            joinedload(claim.problem).joinedload(models.Problem.kernel),
            joinedload(claim.device_model),
            joinedload(claim.job).load_only(models.TuningJob.state),
        )
        .execution_options(populate_existing=True)
    )


def _answer(row: models.Claim) -> ClaimAnswer:
    variant, values = split_configuration(row.configuration)
    state = row.state.value
    if row.state is ClaimState.OPEN and row.job.state not in OPEN:
        state = MEASURED if row.seen_ms is not None and row.job.state is DONE else UNVERIFIED
    return ClaimAnswer.of_row(
        row,
        state=state,
        problem=problem_answer(row.problem),
        device_model=row.device_model.slug,
        variant=variant,
        configuration=values,
        times=SeenTimes(**row.seen_ms) if row.seen_ms is not None else None,
    )
