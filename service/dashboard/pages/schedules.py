"""The pages of schedules: the list, and the form, which calls the API; only the API validates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import formatting, views
from tilewright.service.dashboard.rendering import PageRoute, may, page
from tilewright.service.dashboard.tables import Column, arranged, own_path
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations import DEFAULT_PRIORITY, registry
from tilewright.service.operations.answers import ScheduleAnswer
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.jobs import jobs
from tilewright.service.operations.pages import MAX_ROW_ID
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.schedules import schedules
from tilewright.service.operations.schedules.due_times import DueTimes, zone_names
from tilewright.service.operations.schedules.schedules import NEXT_FIRES
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False, route_class=PageRoute)

REFRESH_SECONDS = 30
SHOWN_JOBS = 10
"""How many jobs of a schedule's last due time are shown."""

TARGETS = {
    "problems": "the problems listed below",
    "stale": "all stale results at each due time",
    "improvable": "all results with untried variants at each due time",
    "demand": "the most requested problems that are not tuned",
}
OVERLAPS = {"skip": "skip this due time", "queue": "queue behind it"}

NEW: Mapping[str, Any] = {
    "name": "",
    "cron": "0 0 3 * * *",
    "time_zone": "UTC",
    "target": "problems",
    "problems": "",
    "top": 20,
    "kernel": None,
    "device_model": None,
    "device": None,
    "trials": 50,
    "seconds": None,
    "target_ms": None,
    "variants": "",
    "compiler": None,
    "overlap": "skip",
    "priority": DEFAULT_PRIORITY,
    "enabled": True,
}
"""The values of an empty form."""

Cron = Annotated[str | None, Query(max_length=128)]
Zone = Annotated[str | None, Query(max_length=64)]
Target = Annotated[str | None, Query(max_length=16)]


ORDERS: Mapping[str, Column[ScheduleAnswer]] = {
    "name": Column(lambda schedule: schedule.name.lower()),
    "next due": Column(lambda schedule: schedule.next_at),
    "last due": Column(lambda schedule: schedule.last_fire_at, greatest_first=True),
    "device model": Column(lambda schedule: schedule.device_model),
    "open jobs": Column(lambda schedule: schedule.open_jobs, greatest_first=True),
}
"""The sortable columns of the list."""


@router.get("/schedules")
def schedule_list(request: Request) -> HTMLResponse:
    """Every schedule with its next due times."""
    with transaction() as session:
        found = schedules.schedules(session)
        places = {device.uuid: f"{device.ordinal} of {device.host}" for device in registry.devices(session)}
        last = jobs.jobs_by_id(session, {job for one in found for job in one.last_jobs[:SHOWN_JOBS]})
    order, found = arranged(request, "sort", ORDERS, found)
    return page(
        "schedules.html",
        source=own_path(request),
        order=order,
        places=places,
        last=last,
        shown_jobs=SHOWN_JOBS,
        refresh_s=REFRESH_SECONDS if any(schedule.enabled for schedule in found) else None,
        schedules=[
            {
                "schedule": schedule,
                "budget": views.budget_text(schedule.budget),
                "fires": local_times(schedule.next_fires, schedule.time_zone),
            }
            for schedule in found
        ],
        targets=TARGETS,
        overlaps=OVERLAPS,
        can_tune=may(request, Scope.TUNE),
    )


@router.get("/schedules/new")
def new_schedule(request: Request, cron: Cron = None, time_zone: Zone = None, target: Target = None) -> HTMLResponse:
    """The form of a new schedule, with the due times of the cron expression so far."""
    chosen = {"target": target} if target in TARGETS else {}
    return _form(request, dict(NEW) | chosen, cron, time_zone)


@router.get("/schedules/{schedule_id}/edit")
def edit_schedule(
    request: Request,
    schedule_id: Annotated[int, Path(ge=1, le=MAX_ROW_ID)],
    cron: Cron = None,
    time_zone: Zone = None,
) -> HTMLResponse:
    """The form to change a schedule."""
    with transaction() as session:
        found = schedules.schedule(session, schedule_id)
    return _form(request, form_values(found), cron, time_zone, schedule=found)


def form_values(schedule: ScheduleAnswer) -> dict[str, Any]:
    """The form's values for an existing schedule."""
    same = {name: getattr(schedule, name) for name in NEW if hasattr(schedule, name)}
    own = {
        "problems": "\n".join(formatting.problem_text(problem) for problem in schedule.problems),
        "top": schedule.top or NEW["top"],
        "variants": ", ".join(schedule.variants or ()),
        **{name: schedule.budget.get(name) for name in ("trials", "seconds", "target_ms")},
    }
    return same | own


def _form(
    request: Request,
    values: Mapping[str, Any],
    cron: str | None,
    time_zone: str | None,
    *,
    schedule: ScheduleAnswer | None = None,
) -> HTMLResponse:
    written = {name: value for name, value in (("cron", cron), ("time_zone", time_zone)) if value is not None}
    filled = dict(values) | written
    with transaction() as session:
        models, devices = registry.device_models(session), registry.devices(session)
    served = {one.model for one in devices if one.alive}
    times, refusal = due_times(filled["cron"], filled["time_zone"])
    return page(
        "schedule_form.html",
        schedule=schedule,
        form_path=f"/schedules/{schedule.id}/edit" if schedule else "/schedules/new",
        values=filled,
        times=local_times(times, filled["time_zone"]),
        refusal=refusal,
        targets=TARGETS,
        overlaps=OVERLAPS,
        zones=sorted(zone_names()),
        # The first is preselected: one with a living worker, a GPU before a CPU.
        models=sorted(models, key=lambda model: (model.slug not in served, model.kind == "cpu", model.slug)),
        served=served,
        devices=devices,
        kernels=sorted(catalogue().by_name),
        can_tune=may(request, Scope.TUNE),
    )


def local_times(moments: Sequence[datetime], time_zone: str) -> list[tuple[datetime, str]]:
    """Each moment with its local time in the zone; in UTC if this host does not know the zone."""
    zone = ZoneInfo(time_zone) if time_zone in zone_names() else UTC
    return [(moment, moment.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S %Z")) for moment in moments]


def due_times(cron: str, time_zone: str) -> tuple[list[datetime], str | None]:
    """The next due times, UTC, or why there are none."""
    try:
        times = DueTimes.of(cron, time_zone)
        return times.next_times(times.after(datetime.now(UTC)), NEXT_FIRES), None
    except InvalidRequestError as error:
        return [], str(error)
