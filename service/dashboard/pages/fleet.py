"""The pages of what works: devices with their workers and jobs, what waits, what went wrong; webhooks' messages."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import views
from tilewright.service.dashboard.pages.jobs import REFRESH_SECONDS
from tilewright.service.dashboard.rendering import PageRoute, address, may, page
from tilewright.service.operations import registry
from tilewright.service.operations.answers import DeviceAnswer
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.fleet.queues import queues
from tilewright.service.operations.jobs import jobs
from tilewright.service.operations.requests import KeyName
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.webhooks import webhooks

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SHOWN_ERRORS = 8
SHOWN_MESSAGES = 50

STATES = {
    "lost": ("✗", "Its worker must be started again, once somebody has looked at the device."),
    "silent": ("○", "Its worker has stopped speaking."),
    "draining": ("◐", "It ends its job and takes no other."),
    "drained": ("❚❚", "It takes no job until it is resumed."),
    "at work": ("▶", ""),
    "idle": ("●", ""),
}
"""A device's states with a mark for each, from the one that needs somebody most; and what it means."""


@router.get("/fleet")
def fleet(request: Request) -> HTMLResponse:
    """Every device that a worker ever registered; what waits; what went wrong last."""
    is_admin = may(request, Scope.ADMIN)
    with transaction() as session:
        models = {model.slug: model for model in registry.device_models(session)}
        devices = registry.devices(session)
        running = jobs.jobs_by_id(session, [one.job for one in devices if one.job is not None])
        waiting = queues(session, devices)
        failed = jobs.jobs(session, state="failed", limit=SHOWN_ERRORS)
        messages = webhooks.troubled(session, limit=SHOWN_ERRORS) if is_admin else []
    lines = [
        device_line(one, models[one.model].name, running.get(one.job) if one.job is not None else None)
        for one in devices
    ]
    return page(
        "fleet.html",
        refresh_s=REFRESH_SECONDS if devices else None,
        is_admin=is_admin,
        hosts=_by_host(lines),
        counts=[(state, count) for state in STATES if (count := sum(line["state"] == state for line in lines))],
        queues=waiting,
        failed=[views.job_line(job) | {"finished_at": job.finished_at} for job in failed.items],
        has_more_failed=failed.next_cursor is not None,
        messages=messages,
    )


@router.get("/webhooks/{name}")
def webhook(
    request: Request,
    name: Annotated[KeyName, Path()],
    cursor: Annotated[str | None, Query(max_length=64)] = None,
) -> HTMLResponse:
    """One webhook's messages, newest first, and why those failed that did."""
    if not may(request, Scope.ADMIN):
        reason = "The messages of webhooks are shown to keys with the scope admin."
        return page("refused.html", status=403, title="Not with this key", reason=reason)
    with transaction() as session:
        found = webhooks.deliveries(session, name, limit=SHOWN_MESSAGES, cursor=cursor)
        hook = next(one for one in webhooks.webhooks(session) if one.name == name)
    path = f"/webhooks/{name}"
    return page(
        "webhook.html",
        hook=hook,
        messages=found.items,
        source=address(path, {"cursor": cursor}),
        data=f"/v1/webhooks/{name}/deliveries",
        first=path if cursor else None,
        next=address(path, {"cursor": found.next_cursor}) if found.next_cursor else None,
    )


def device_line(device: DeviceAnswer, model_name: str, job: Any = None) -> dict[str, Any]:
    """One row of the fleet. `job`: the JobAnswer of what it is running."""
    state = device_state(device)
    mark, meaning = STATES[state]
    if state == "silent" and device.job:
        meaning = "Its worker has stopped speaking; its job goes to another device."
    return {
        "device": device,
        "model_name": model_name,
        "state": state,
        "mark": mark,
        "meaning": meaning,
        "job": views.job_line(job) if job is not None else None,
    }


def device_state(device: DeviceAnswer) -> str:
    """One of STATES. A lost or silent device is that first, whatever else is wished of it."""
    if device.state == "lost":
        return "lost"
    if not device.alive:
        return "silent"
    if device.draining:
        return "draining" if device.job else "drained"
    return "at work" if device.job else "idle"


def _by_host(lines: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The rows under their hosts; a slice of a GPU stands after the other slices of the same one."""
    hosts: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        hosts.setdefault(line["device"].host, []).append(line)
    for rows in hosts.values():
        rows.sort(key=lambda line: (line["device"].ordinal, line["device"].physical_uuid or "", line["device"].uuid))
    return sorted(hosts.items())
