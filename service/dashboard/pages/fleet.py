"""The fleet page (devices with workers and jobs, open jobs, recent errors) and the page of a webhook's messages."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import formatting, views
from tilewright.service.dashboard.pages.jobs import REFRESH_SECONDS
from tilewright.service.dashboard.rendering import PageRoute, address, may, page
from tilewright.service.dashboard.tables import Column, PageNumber, Sort, TableOrder, arranged, own_path
from tilewright.service.operations import registry
from tilewright.service.operations.answers import DeviceAnswer, JobAnswer
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.fleet.fleet import QueueAnswer, queues
from tilewright.service.operations.jobs import jobs
from tilewright.service.operations.requests import KeyName
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.webhooks import webhooks
from tilewright.service.operations.webhooks.webhooks import DeliveryAnswer

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SHOWN_ERRORS = 8
SHOWN_MESSAGES = 50

STATES = {
    "lost": ("✗", "The device stopped answering. Check it, then restart its worker."),
    "offline": ("○", "Its worker sends no heartbeat."),
    "draining": ("◐", "Its job runs to the end; no other starts."),
    "drained": ("❚❚", "It takes no jobs until it is resumed."),
    "at work": ("▶", ""),
    "idle": ("●", ""),
}
"""A device's states, the most urgent first, with a mark and an explanation each."""

Line = Mapping[str, Any]
DEVICES: Mapping[str, Column[Line]] = {
    "host": Column(lambda line: _place(line["device"])),
    "device": Column(lambda line: (line["model_name"], _place(line["device"]))),
    "state": Column(lambda line: list(STATES).index(line["state"])),
    "job": Column(lambda line: formatting.sort_key(line["job"]["problem"]) if line["job"] else None),
    "heartbeat": Column(lambda line: line["device"].heartbeat_at, greatest_first=True),
    "environment": Column(lambda line: formatting.environment(line["device"].environment)),
}
QUEUES: Mapping[str, Column[QueueAnswer]] = {
    "queued": Column(lambda queue: queue.queued, greatest_first=True),
    "model": Column(lambda queue: (queue.device_model or "", queue.device or "")),
    "running": Column(lambda queue: queue.running, greatest_first=True),
    "oldest": Column(lambda queue: queue.oldest_at),
    "worker": Column(lambda queue: queue.is_served),
}
FAILED: Mapping[str, Column[JobAnswer]] = {
    "ended": Column(lambda job: job.finished_at, greatest_first=True),
    "problem": Column(lambda job: formatting.sort_key(job.problem)),
    "error": Column(lambda job: job.error),
    "device": Column(lambda job: job.device_model),
}
MESSAGES: Mapping[str, Column[DeliveryAnswer]] = {
    "job": Column(lambda message: message.created_at, greatest_first=True),
    "webhook": Column(lambda message: message.webhook),
    "error": Column(lambda message: message.error),
    "attempts": Column(lambda message: message.attempts, greatest_first=True),
    "next": Column(lambda message: message.next_at),
}
"""The sortable columns of a webhook's messages."""


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
        problems = jobs.jobs_by_id(session, [message.job_id for message in messages])
    lines = [
        device_line(one, models[one.model].name, running.get(one.job) if one.job is not None else None)
        for one in devices
    ]
    order, lines = arranged(request, "sort", DEVICES, lines)
    queue_order, waiting = arranged(request, "queues", QUEUES, waiting)
    failed_order, ended = arranged(request, "failed", FAILED, failed.items)
    message_order, messages = arranged(request, "messages", MESSAGES, messages)
    by_host = groupby(lines, lambda line: line["device"].host) if order.column == "host" else [("", lines)]
    return page(
        "fleet.html",
        refresh_s=REFRESH_SECONDS if devices else None,
        source=own_path(request),
        is_admin=is_admin,
        order=order,
        hosts=[(host, list(own)) for host, own in by_host if lines],
        counts=[(state, count) for state in STATES if (count := sum(line["state"] == state for line in lines))],
        queues=waiting,
        queue_order=queue_order,
        places={device.uuid: f"{device.ordinal} of {device.host}" for device in devices},
        failed=[views.job_line(job) | {"finished_at": job.finished_at} for job in ended],
        failed_order=failed_order,
        has_more_failed=failed.next_cursor is not None,
        messages=messages,
        message_order=message_order,
        jobs=problems,
    )


@router.get("/webhooks/{name}")
def webhook(
    request: Request,
    name: Annotated[KeyName, Path()],
    sort: Sort = None,
    number: PageNumber = 1,
) -> HTMLResponse:
    """One webhook's messages, newest first or by any column, with the errors of those that failed."""
    if not may(request, Scope.ADMIN):
        reason = "Webhook messages need a key with the scope admin."
        return page("refused.html", status=403, title="This key is not allowed here", reason=reason)
    path, skip = f"/webhooks/{name}", (number - 1) * SHOWN_MESSAGES
    order = TableOrder.of(sort, webhooks.ORDERS, lambda text: address(path, {"sort": text}))

    def at(page_number: int) -> str:
        return address(path, {"sort": sort, "page": page_number if page_number > 1 else None})

    with transaction() as session:
        found = webhooks.shown_deliveries(session, name, order=order.text, limit=SHOWN_MESSAGES + 1, skip=skip)
        hook = next(one for one in webhooks.webhooks(session) if one.name == name)
        messages = found[:SHOWN_MESSAGES]
        problems = jobs.jobs_by_id(session, {message.job_id for message in messages})
    return page(
        "webhook.html",
        hook=hook,
        messages=messages,
        jobs=problems,
        order=order,
        source=at(number),
        data=f"/v1/webhooks/{name}/deliveries",
        first=at(1) if number > 1 else None,
        next=at(number + 1) if len(found) > SHOWN_MESSAGES else None,
    )


def device_line(device: DeviceAnswer, model_name: str, job: Any = None) -> Line:
    """One row of the fleet. `job`: the JobAnswer of what it is running."""
    state = device_state(device)
    mark, meaning = STATES[state]
    if state == "offline" and device.job:
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
        return "offline"
    if device.draining:
        return "draining" if device.job else "drained"
    return "at work" if device.job else "idle"


def _place(device: DeviceAnswer) -> tuple[str, int, str, str]:
    """The key that sorts devices so that slices of one GPU stay together."""
    return device.host, device.ordinal, device.physical_uuid or "", device.uuid
