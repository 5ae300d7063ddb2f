"""`doctor`: what is there, what is missing, and the remedy."""

from __future__ import annotations

import typer
from rich.text import Text

from tilewright.service.cli.checks import State, run_all
from tilewright.service.cli.failure import ExitCode
from tilewright.service.cli.output import JsonFlag, data, print_json

STYLES = {State.OK: "green", State.ABSENT: "yellow", State.BROKEN: "bold red"}


def doctor(as_json: JsonFlag = False) -> None:
    """Look this machine over; exit code 0 where `tilewright up` can run, 4 where only a device is missing."""
    found = run_all()
    broken = [check.name for check in found if check.state is State.BROKEN]
    if as_json:
        print_json({"ok": not broken, "checks": found})
    else:
        width = max(len(check.name) for check in found)
        for check in found:
            state = Text(f"{check.state.value:<7}", style=STYLES[check.state])
            data.print(state, f"{check.name:<{width}}", check.found)
            if check.remedy:
                data.print(f"{'':<7} {'':<{width}} -> {check.remedy}")
        data.print(f"broken: {', '.join(broken)}" if broken else "all that is needed is there: tilewright up")
    if broken:
        raise typer.Exit(ExitCode.NO_DEVICE if broken == ["device"] else ExitCode.FAILED)
