"""`devices`: the devices of this machine, and those that workers have registered."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tilewright.service.cli.connection import connect
from tilewright.service.cli.output import JsonFlag, note, print_json, print_table

if TYPE_CHECKING:
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
        _print(here, registered)


def _print(here: list[DeviceEntry], registered: list[DeviceAnswer]) -> None:
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
