"""The fleet page (devices with workers and jobs, open jobs, recent errors) and the page of a webhook's messages."""

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
    "lost": ("✗", "The device stopped answering. Check it, then restart its worker."),
    "silent": ("○", "Its worker sends no heartbeat."),
    "draining": ("◐", "Its job runs to the end; no other starts."),
    "drained": ("❚❚", "It takes no jobs until it is resumed."),
    "at work": ("▶", ""),
    "idle": ("●", ""),
}
"""A device's states, the most urgent first, with a mark and an explanation each."""


@router.get("/fleet")
def fleet(request: Request) -> HTMLResponse:
    """Every registered device; open jobs; recent errors."""
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
    """One webhook's messages, newest first, with the errors of those that failed."""
    if not may(request, Scope.ADMIN):
        reason = "Webhook messages need a key with the scope admin."
        return page("refused.html", status=403, title="This key is not allowed here", reason=reason)
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
        meaning = "Its worker sends no heartbeat; its job goes to another device."
    return {
        "device": device,
        "model_name": model_name,
        "state": state,
        "mark": mark,
        "meaning": meaning,
        "job": views.job_line(job) if job is not None else None,
    }


def device_state(device: DeviceAnswer) -> str:
    """One of STATES; lost and silent come before draining."""
    if device.state == "lost":
        return "lost"
    if not device.alive:
        return "silent"
    if device.draining:
        return "draining" if device.job else "drained"
    return "at work" if device.job else "idle"


def _by_host(lines: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The rows by host; slices of one GPU stay together."""
    hosts: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        hosts.setdefault(line["device"].host, []).append(line)
    for rows in hosts.values():
        rows.sort(key=lambda line: (line["device"].ordinal, line["device"].physical_uuid or "", line["device"].uuid))
    return sorted(hosts.items())
