"""Accepts a tuning job: checks every field, joins an identical open job, else stores a row and enqueues it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from tilewright.kernels.errors import UnknownNameError
from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.service.errors import CeilingError, ConflictError, InvalidRequestError
from tilewright.service.operations import DEFAULT_PRIORITY
from tilewright.service.operations.answers import JobAnswer
from tilewright.service.operations.caller import Scope, acting, ceilings
from tilewright.service.operations.jobs.add import AcceptedRequest, join_or_add, open_job, sha256
from tilewright.service.operations.jobs.jobs import job
from tilewright.service.operations.jobs.quotas import check_new_job
from tilewright.service.operations.jobs.starts import checked_starts
from tilewright.service.operations.registry import catalogue, has_device, limits_of, only_slug, problem_row, tuned_for
from tilewright.service.operations.requests import JobRequest
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.tuner.search.searcher import SAMPLERS


def request_job(session: Session, request: JobRequest, *, idempotency_key: str | None = None) -> tuple[JobAnswer, bool]:
    """The job and whether it is new: an identical open job is joined, a known idempotency key returns its job.

    Raises InvalidProblemError or InvalidRequestError naming the field, ConflictError for a key with another body.
    """
    body_hash = sha256(
        request.model_dump(mode="json", exclude={"dry_run"} if request.starts else {"dry_run", "starts"})
    )
    known = _job_of_key(session, idempotency_key, body_hash)
    if known is not None:
        return job(session, known), False
    accepted = accept(session, request)
    check_open_jobs(session, accepted)
    made, is_new = join_or_add(session, accepted)
    if idempotency_key is not None:
        session.execute(
            insert(models.IdempotencyKey)
            .values(owner=_owner(), key=idempotency_key, body_hash=body_hash, job_id=made.id)
            .on_conflict_do_nothing()
        )
        # Another request with this key may have come first and was waited for: its job counts.
        winner = _job_of_key(session, idempotency_key, body_hash)
        if winner != made.id:
            raise ConflictError(
                f"The idempotency key {idempotency_key!r} is in use by another request right now; send this one again."
            )
    return made, is_new


def dry_run(session: Session, request: JobRequest) -> dict[str, Any]:
    """The job's search space and estimated time; null seconds if the kernel was never tuned on the model."""
    accepted = accept(session, request)
    space = accepted.kernel.space(accepted.problem, limits_of(accepted.model), request.variants)
    by_variant = {part.variant: 0 for part in space.spaces}
    for configuration in space.feasible:
        by_variant[configuration.variant] += 1
    trials = min(len(space), request.budget.trials or len(space))
    trial_s = _seconds_per_trial(session, accepted)
    estimated_s = None if trial_s is None else trials * trial_s
    if request.budget.seconds is not None:
        estimated_s = request.budget.seconds if estimated_s is None else min(request.budget.seconds, estimated_s)
    return {
        "problem": accepted.stated,
        "device_model": accepted.model.slug,
        "space_size": len(space),
        "space_by_variant": by_variant,
        "trials": trials,
        "estimated_seconds": estimated_s,
    }


def check_job(session: Session, request: JobRequest) -> tuple[models.Problem, models.DeviceModel, models.Device | None]:
    """The rows that the job would refer to; refuses like request_job. A new problem gets its row."""
    accepted = accept(session, request)
    return problem_row(session, accepted.asked), accepted.model, accepted.device


def check_place(session: Session, request: JobRequest) -> tuple[models.DeviceModel, models.Device | None]:
    """Device model and device of the job; refuses what is wrong whatever the problem."""
    model, device = _device(session, request)
    _check_choices(model, request)
    return model, device


def accept(session: Session, request: JobRequest) -> AcceptedRequest:
    """The request with the rows that it refers to; raises InvalidProblemError, InvalidRequestError, CeilingError."""
    try:
        kernel = catalogue().get(request.kernel)
    except UnknownNameError as error:
        known = ", ".join(error.known)
        raise InvalidRequestError(
            "kernel", f"there is no kernel {request.kernel!r}; kernels here: {known}.", "gemm"
        ) from error
    asked = tuned_for(kernel, request.shape, request.dtype, request.options)
    problem = asked.largest if isinstance(asked, Family) else asked
    model, device = _device(session, request)
    needed = kernel.memory_bytes(problem)
    if needed > model.memory_bytes:
        example = ",".join(f"{axis}={size}" for axis, size in kernel.example_shape.items())
        raise InvalidRequestError(
            "shape",
            f"the arrays take {needed:,} bytes and {model.slug} has {model.memory_bytes:,}; choose a smaller shape.",
            example,
        )
    usable = [variant.name for variant in kernel.usable_variants(problem, limits_of(model))]
    _check_variants(kernel, model, usable, request.variants)
    starts = checked_starts(kernel, request.variants or usable, request.starts or ())
    _check_choices(model, request)
    if isinstance(asked, Family):
        _check_family(request)
    return AcceptedRequest(request, kernel, asked, model, device, starts)


def _check_family(request: JobRequest) -> None:
    """Raises InvalidRequestError for fields that suit single problems only."""
    given = {
        "variants": request.variants is not None,
        "budget.target_ms": request.budget.target_ms is not None,
        "sampler": request.sampler != SAMPLERS[0],
    }
    for field, is_given in given.items():
        if is_given:
            raise InvalidRequestError(field, "is for a single problem; leave it out where a size is a range.")


def _device(session: Session, request: JobRequest) -> tuple[models.DeviceModel, models.Device | None]:
    if request.device is None and request.device_model is not None:
        named = select(models.DeviceModel).where(models.DeviceModel.slug == request.device_model)
        model = session.scalars(named).one_or_none()
        if model is not None:
            return model, None
    rows_with_device = session.execute(select(models.DeviceModel, has_device()).order_by(models.DeviceModel.slug)).all()
    rows = [row for row, _ in rows_with_device]
    slugs = [row.slug for row in rows]
    if not rows:
        only_slug(slugs)  # which raises
    device = None
    if request.device is not None:
        device = session.scalars(select(models.Device).where(models.Device.uuid == request.device)).one_or_none()
        if device is None:
            raise InvalidRequestError(
                "device", f"no worker has registered a device {request.device!r}.", _a_device(session)
            )
    if request.device_model is not None and request.device_model not in slugs:
        raise InvalidRequestError(
            "device_model",
            f"there is no device model {request.device_model!r}; device models here: {', '.join(slugs)}.",
            slugs[0],
        )
    if device is not None:
        model = next(row for row in rows if row.id == device.model_id)
        if request.device_model not in {None, model.slug}:
            raise InvalidRequestError(
                "device", f"this device is a {model.slug}, not a {request.device_model}.", device.uuid
            )
        return model, device
    slug = request.device_model or only_slug([row.slug for row, has_one in rows_with_device if has_one])
    return next(row for row in rows if row.slug == slug), None


def _a_device(session: Session) -> str | None:
    return session.scalar(select(models.Device.uuid).order_by(models.Device.id).limit(1))


def _check_variants(
    kernel: Kernel, model: models.DeviceModel, usable: Sequence[str], variants: Sequence[str] | None
) -> None:
    refused = [name for name in variants or () if name not in usable]
    if refused:
        raise InvalidRequestError(
            "variants",
            f"{kernel.name} has no variant {refused[0]!r} for this problem on {model.slug}; "
            f"variants for it: {', '.join(usable) or 'none'}.",
            usable[0] if usable else None,
        )
    if not usable:
        raise InvalidRequestError("shape", f"no variant of {kernel.name} can compute this problem on {model.slug}.")


def _check_choices(model: models.DeviceModel, request: JobRequest) -> None:
    allowed = settings()
    if request.compiler is not None and model.kind != "cuda":
        raise InvalidRequestError("compiler", f"{model.slug} has no choice of compilers; leave it out.")
    if request.sampler not in SAMPLERS:
        raise InvalidRequestError("sampler", f"must be one of {', '.join(SAMPLERS)}.", SAMPLERS[0])
    if request.budget.trials is not None and request.budget.trials > allowed.max_trials:
        raise InvalidRequestError("budget.trials", f"must be at most {allowed.max_trials}.", "100")
    if request.budget.seconds is not None and request.budget.seconds > allowed.max_seconds:
        raise InvalidRequestError("budget.seconds", f"must be at most {allowed.max_seconds:g}.", "60")
    check_budget_ceilings(request.budget.trials, request.budget.seconds)
    who = acting()
    if request.priority > DEFAULT_PRIORITY and who is not None and not who.caller.scope.allows(Scope.ADMIN):
        raise CeilingError(f"A priority above {DEFAULT_PRIORITY} needs a key of scope admin: it goes before everybody.")


def check_budget_ceilings(trials: int | None, seconds: float | None) -> None:
    """Raises CeilingError where the budget exceeds what the caller's key allows, or lacks a limit that the key has."""
    most = ceilings()
    for name, asked, highest in (("trials", trials, most.max_trials), ("seconds", seconds, most.max_seconds)):
        if highest is not None and (asked is None or asked > highest):
            raise CeilingError(f"This key allows at most {highest:g} {name} a job: set budget.{name} to that or less.")


def check_open_jobs(session: Session, accepted: AcceptedRequest) -> None:
    """Raises CeilingError where the job would be a new one and exceed a quota of the caller's key."""
    who, budget = acting(), accepted.request.budget
    if who is not None and who.caller.key_name is not None and open_job(session, accepted.coalesce_hash) is None:
        check_new_job(session, budget.trials, budget.seconds)


def _job_of_key(session: Session, key: str | None, body_hash: str) -> uuid.UUID | None:
    row = session.get(models.IdempotencyKey, (_owner(), key)) if key is not None else None
    if row is None:
        return None
    if row.body_hash != body_hash:
        raise ConflictError(f"The idempotency key {key!r} was used before, with another body; choose a new key.")
    return row.job_id


def _owner() -> str:
    """The owner of the caller's idempotency keys, so that equal keys of two callers mean two jobs."""
    who = acting()
    return (who.caller.key_name if who else None) or ""


def _seconds_per_trial(session: Session, accepted: AcceptedRequest) -> float | None:
    """Mean wall time of this kernel's trials on this device model, of any problem; compiling included."""
    return session.scalar(
        select(func.avg(models.Trial.wall_s))
        .join(models.Study, models.Study.id == models.Trial.study_id)
        .join(models.Problem, models.Problem.id == models.Study.problem_id)
        .join(models.Kernel, models.Kernel.id == models.Problem.kernel_id)
        .where(models.Kernel.name == accepted.kernel.name, models.Study.device_model_id == accepted.model.id)
    )
