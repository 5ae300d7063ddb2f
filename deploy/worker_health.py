# ruff: noqa: INP001 - a script of the worker's image, in no package
"""Exit status 0 where a worker speaks for every device of this machine that one should: the container's health check.

Devices are chosen as `tilewright worker --all` chooses them, or named as arguments. A worker that lives says so in the
database every TILEWRIGHT_HEARTBEAT_S seconds; a device that stopped answering is marked lost there.
"""

from __future__ import annotations

import sys

from tilewright.service.cli.connection import LocalConnection
from tilewright.service.cli.machine import chosen_devices
from tilewright.service.errors import ServiceError
from tilewright.tuner.errors import TunerError


def unhealthy(names: list[str]) -> list[str]:
    """What is wrong, one line a device."""
    registered = {one.uuid: one for one in LocalConnection().devices()}
    found = []
    for device in chosen_devices(names, every=True):
        one = registered.get(device.uuid)
        if one is None or not one.alive or one.state != "ready":
            state = "never started" if one is None else "silent" if not one.alive else one.state
            found.append(f"{device.name} ({device.uuid}): {state}")
    return found


if __name__ == "__main__":
    try:
        sys.exit("\n".join(unhealthy(sys.argv[1:])) or 0)
    except (ServiceError, TunerError) as error:
        sys.exit(str(error))
