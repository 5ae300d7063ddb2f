"""`drain` and `resume`: take a device out of service after its running job, and put it back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.connection import connect
from tilewright.service.cli.machine import uuid_of
from tilewright.service.cli.output import JsonFlag, note, print_json

if TYPE_CHECKING:
    from tilewright.service.cli.connection import Connection
    from tilewright.service.operations.answers import DeviceAnswer

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
    if as_json:
        print_json(one)
    else:
        note(f"{one.uuid} takes jobs again")


def _wait_until_idle(connection: Connection, one: DeviceAnswer) -> DeviceAnswer:
    while one.job is not None and one.alive:
        time.sleep(LOOK_EVERY_S)
        one = next(found for found in connection.devices() if found.uuid == one.uuid)
    return one
