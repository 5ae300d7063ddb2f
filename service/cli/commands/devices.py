"""`devices`, `drain` and `resume`: the devices of this machine and those registered, in and out of service."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.connection import connect
from tilewright.service.cli.local.machine import uuid_of
from tilewright.service.cli.output import JsonFlag, note, print_json, print_table, tell

if TYPE_CHECKING:
    from tilewright.service.cli.connection import Connection
    from tilewright.service.operations.answers import DeviceAnswer
    from tilewright.tuner.devices.local import DeviceEntry


def devices(as_json: JsonFlag = False) -> None:
    """List this machine's devices and the registered ones, with the state of their workers."""
    from tilewright.tuner.devices.local import list_devices

    here = list_devices()
    with connect() as connection:
        registered = connection.devices()
    if as_json:
        print_json({"here": [asdict(entry) for entry in here], "registered": registered})
    else:
        _print_devices(here, registered)


def _print_devices(here: list[DeviceEntry], registered: list[DeviceAnswer]) -> None:
    by_uuid = {device.uuid: device for device in registered}
    rows: list[tuple[object, ...]] = []
    for entry in here:
        device = by_uuid.pop(entry.uuid, None)
        rows.append((entry.name, entry.uuid, device.model if device else entry.product, _state(device)))
    rows += [(f"on {device.host}", device.uuid, device.model, _state(device)) for device in by_uuid.values()]
    print_table(("device", "uuid", "model", "worker"), rows)
    if not any(one.alive for one in registered):
        note("no worker is running; start one: tilewright worker, or tilewright up")


def _state(registered: DeviceAnswer | None) -> str:
    """The state of the device's worker, in a word."""
    if registered is None:
        return "never started"
    if registered.state != "ready":
        return registered.state
    if registered.alive and registered.draining:
        return "draining" if registered.job else "drained"
    if registered.alive:
        return "running"
    silent_s = (datetime.now(UTC) - registered.heartbeat_at).total_seconds()
    since = f"{registered.heartbeat_at:%Y-%m-%d %H:%M %Z}"
    return f"silent for {silent_s:.0f} s" if silent_s < 600 else f"silent since {since}"


DeviceArgument = Annotated[str, typer.Argument(metavar="DEVICE", help="cuda:0, cpu, or a UUID of any machine.")]

LOOK_EVERY_S = 1.0


def drain(
    device: DeviceArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Return only when the running job has ended.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Stop giving jobs to a device: the running one ends, no other starts until it is resumed."""
    with connect() as connection:
        one = connection.drain_device(uuid_of(device))
        if wait and one.job is not None:
            note(f"waiting for job {one.job}")
            one = _wait_until_idle(connection, one)
    if as_json:
        print_json(one)
    elif one.job is None:
        note(f"{one.uuid} is drained; put it back: tilewright resume {device}")
    else:
        note(
            f"{one.uuid} is draining: job {one.job} runs to its end, no other starts; undo: tilewright resume {device}"
        )


def resume(device: DeviceArgument, as_json: JsonFlag = False) -> None:
    """Give jobs to a drained device again."""
    with connect() as connection:
        one = connection.resume_device(uuid_of(device))
    tell(one, f"{one.uuid} takes jobs again", as_json=as_json)


def _wait_until_idle(connection: Connection, one: DeviceAnswer) -> DeviceAnswer:
    while one.job is not None and one.alive:
        time.sleep(LOOK_EVERY_S)
        one = next(found for found in connection.devices() if found.uuid == one.uuid)
    return one
