# ruff: noqa: INP001 - a script of the worker's image, in no package
"""The container's health check: exit status 0 where every device of this machine has a live worker.

Devices are chosen as by `tilewright worker --all`, or named as arguments. A live worker reports to the database every
TILEWRIGHT_HEARTBEAT_S seconds; a device that stopped answering is marked lost there.
"""

from __future__ import annotations

import sys

from tilewright.service.cli.local.machine import chosen_devices
from tilewright.service.cli.local_connection import LocalConnection
from tilewright.service.errors import ServiceError
from tilewright.tuner.errors import TunerError


def unhealthy(names: list[str]) -> list[str]:
    """A line for each device without a live worker that is ready."""
    registered = {known.uuid: known for known in LocalConnection().devices()}
    lines = []
    for device in chosen_devices(names, every=True):
        known = registered.get(device.uuid)
        if known is None or not known.alive or known.state != "ready":
            state = "never started" if known is None else "silent" if not known.alive else known.state
            lines.append(f"{device.name} ({device.uuid}): {state}")
    return lines


if __name__ == "__main__":
    try:
        sys.exit("\n".join(unhealthy(sys.argv[1:])) or 0)
    except (ServiceError, TunerError) as error:
        sys.exit(str(error))
