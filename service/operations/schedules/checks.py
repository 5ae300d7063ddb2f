"""What a schedule is refused for when it is made or changed: whatever its jobs would be refused for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from tilewright.kernels.errors import InvalidProblemError
from tilewright.service.errors import CeilingError, InvalidRequestError, NotFoundError
from tilewright.service.operations.caller import ceilings
from tilewright.service.operations.catalog import kernel_named
from tilewright.service.operations.jobs.request import check_budget_ceilings, check_job, check_place
from tilewright.service.operations.requests import JobRequest, ScheduleRequest
from tilewright.service.operations.schedules.due_times import DueTimes
from tilewright.service.store import models
from tilewright.service.store.models import Overlap, ScheduleTarget

_OF_A_PROBLEM = ("kernel", "shape", "dtype", "options")
_NEWER = {"target", "top", "kernel"}
"""Fields that requests for named problems do not have: such a request of an older caller is still the same one."""


@dataclass(frozen=True)
class CheckedSchedule:
    """What a request comes to: when it is due, the columns of its row but the due time, its problems in their order."""

    times: DueTimes
    columns: Mapping[str, Any]
    problem_ids: Sequence[int]


def check_schedule(session: Session, request: ScheduleRequest) -> CheckedSchedule:
    """The request, ready to be stored; raises CeilingError, InvalidRequestError or InvalidProblemError."""
    check_caller(request.budget.trials, request.budget.seconds)
    times = DueTimes.of(request.cron, request.time_zone)
    named = ScheduleTarget(request.target) is ScheduleTarget.PROBLEMS
    problem_ids, model, device = check_problems(session, request) if named else check_target(session, request)
    said = request.model_dump_json(exclude=_NEWER if named else None)
    same = {"name", "time_zone", "kernel", "variants", "compiler", "priority", "enabled"}
    own = {
        "body_hash": hashlib.sha256(said.encode()).hexdigest(),
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
    return CheckedSchedule(times, request.model_dump(include=same) | own, problem_ids)


def check_caller(trials: int | None, seconds: float | None) -> None:
    """Raises CeilingError where the caller's key may not ask for jobs of this budget, or only for so many at a time.

    A schedule's jobs are counted to no key, so that one with a ceiling on open jobs can have none from schedules.
    """
    most = ceilings().max_open_jobs
    if most is not None:
        raise CeilingError(f"This key may have {most} jobs queued or running; a schedule's jobs would be beside these.")
    check_budget_ceilings(trials, seconds)


def check_problems(
    session: Session, request: ScheduleRequest
) -> tuple[list[int], models.DeviceModel, models.Device | None]:
    """Problem ids in their order, and where they run; refuses what a job would be refused for, and repetitions."""
    if not request.problems:
        raise InvalidRequestError("problems", "name at least one, or set target to stale, improvable or demand.")
    if request.kernel is not None:
        raise InvalidRequestError("kernel", "is for targets that look for problems; leave it out.")
    places: dict[int, int] = {}
    limits = request.model_dump(include={"device_model", "device", "variants", "compiler", "priority"})
    for place, problem in enumerate(request.problems):
        wanted = JobRequest(**problem.model_dump(), **limits, budget=request.budget)
        try:
            row, model, device = check_job(session, wanted)
        except InvalidRequestError as error:
            raise InvalidRequestError(_placed(error.field, place), error.reason, error.example) from error
        except InvalidProblemError as error:
            raise InvalidProblemError(_placed(error.field, place), error.reason, error.example) from error
        if row.id in places:
            raise InvalidRequestError(f"problems.{place}", f"is the same problem as number {places[row.id]}.")
        places[row.id] = place
    return list(places), model, device


def check_target(
    session: Session, request: ScheduleRequest
) -> tuple[list[int], models.DeviceModel, models.Device | None]:
    """No problems yet, and where those that are found will run; refuses what every job would be refused for."""
    for field in ("problems", "variants"):
        if getattr(request, field):
            raise InvalidRequestError(field, f"leave it out: the target {request.target} finds problems by itself.")
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
