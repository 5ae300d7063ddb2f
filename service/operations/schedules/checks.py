"""Checks of a schedule when it is created or changed: it is refused for whatever its jobs would be refused for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from tilewright.kernels.errors import InvalidProblemError
from tilewright.service.errors import InvalidRequestError, NotFoundError
from tilewright.service.operations.catalog import kernel_named
from tilewright.service.operations.jobs.request import check_budget_ceilings, check_job, check_place
from tilewright.service.operations.requests import JobRequest, ScheduleRequest
from tilewright.service.operations.schedules.due_times import DueTimes
from tilewright.service.store import models
from tilewright.service.store.models import Overlap, ScheduleTarget

_OF_A_PROBLEM = ("kernel", "shape", "dtype", "options")
_NEWER = {"target", "top", "kernel"}
"""Fields left out of the hash of a request that lists its problems: callers older than these fields send none."""


@dataclass(frozen=True)
class CheckedSchedule:
    """A checked request: its due times, the columns of its row except the next one, its problems in order."""

    times: DueTimes
    columns: Mapping[str, Any]
    problem_ids: Sequence[int]


def check_schedule(session: Session, request: ScheduleRequest) -> CheckedSchedule:
    """The request, ready to be stored; raises CeilingError, InvalidRequestError or InvalidProblemError."""
    check_budget_ceilings(request.budget.trials, request.budget.seconds)
    times = DueTimes.of(request.cron, request.time_zone)
    named = ScheduleTarget(request.target) is ScheduleTarget.PROBLEMS
    problem_ids, model, device = check_problems(session, request) if named else check_target(session, request)
    body = request.model_dump_json(exclude=_NEWER if named else None)
    copied = {"name", "time_zone", "kernel", "variants", "compiler", "priority", "enabled"}
    computed = {
        "body_hash": hashlib.sha256(body.encode()).hexdigest(),
        "cron": times.cron,
        "overlap": Overlap(request.overlap),
        "target": ScheduleTarget(request.target),
        "top": None if named else request.top,
        "device_model_id": model.id,
        "device_id": device.id if device else None,
        "budget_trials": request.budget.trials,
        "budget_seconds": request.budget.seconds,
        "budget_target_ms": request.budget.target_ms,
    }
    return CheckedSchedule(times, request.model_dump(include=copied) | computed, problem_ids)


def check_problems(
    session: Session, request: ScheduleRequest
) -> tuple[list[int], models.DeviceModel, models.Device | None]:
    """Problem ids in order, device model and device; refuses like a job, and repetitions.

    All refused problems are named at once.
    """
    if not request.problems:
        raise InvalidRequestError("problems", "list at least one, or set target to stale, improvable or demand.")
    if request.kernel is not None:
        raise InvalidRequestError("kernel", "is for the targets stale, improvable and demand; leave it out.")
    places: dict[int, int] = {}
    refused: list[InvalidRequestError] = []
    limits = request.model_dump(include={"device_model", "device", "variants", "compiler", "priority"})
    for place, problem in enumerate(request.problems):
        job_request = JobRequest(**problem.model_dump(), **limits, budget=request.budget)
        try:
            row, model, device = check_job(session, job_request)
        except (InvalidRequestError, InvalidProblemError) as error:
            field = _placed(error.field, place)
            refused.append(InvalidRequestError(field, error.reason, error.example))
            if field == error.field:  # of all problems: the device model, the variants
                break
            continue
        if row.id in places:
            refused.append(InvalidRequestError(f"problems.{place}", f"is the same problem as number {places[row.id]}."))
        places.setdefault(row.id, place)
    if refused:
        first, *rest = refused
        raise InvalidRequestError(first.field, first.reason, first.example, rest)
    return list(places), model, device


def check_target(
    session: Session, request: ScheduleRequest
) -> tuple[list[int], models.DeviceModel, models.Device | None]:
    """An empty list of problem ids, device model and device; refuses what every job would be refused for."""
    for field in ("problems", "variants"):
        if getattr(request, field):
            raise InvalidRequestError(field, f"leave it out: the target {request.target} chooses the problems.")
    if request.kernel is not None:
        try:
            kernel_named(request.kernel)
        except NotFoundError as error:
            raise InvalidRequestError("kernel", str(error), "gemm") from error
    limits = request.model_dump(include={"device_model", "device", "compiler", "priority"})
    model, device = check_place(session, JobRequest(kernel="", shape={}, **limits, budget=request.budget))
    return [], model, device


def _placed(field: str, place: int) -> str:
    return f"problems.{place}.{field}" if field.partition(".")[0] in _OF_A_PROBLEM else field
