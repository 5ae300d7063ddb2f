"""Groups of commands that list what there is where no subcommand is given."""

from __future__ import annotations

from collections.abc import Callable

import typer

from tilewright.service.cli.output import JsonFlag


def lists_by_default(group: typer.Typer, list_command: Callable[..., None]) -> None:
    """Makes the group's `list` run without being named, with no option but --json."""

    @group.callback(invoke_without_command=True)
    def run(context: typer.Context, as_json: JsonFlag = False) -> None:
        if context.invoked_subcommand is None:
            list_command(as_json=as_json)
