"""`doctor`: checks this machine and says what is missing and how to get it."""

from __future__ import annotations

import typer
from rich.text import Text

from tilewright.service.cli.failure import ExitCode
from tilewright.service.cli.output import JsonFlag, data, print_json

STYLES = {"ok": "green", "absent": "yellow", "broken": "bold red"}
"""The colour of a check, by its state."""


def doctor(as_json: JsonFlag = False) -> None:
    """Check this machine; exit code 0 if `tilewright up` can run, 4 if only a device is missing."""
    from tilewright.service.cli.checks import State, run_all

    checks = run_all()
    broken = [check.name for check in checks if check.state is State.BROKEN]
    if as_json:
        print_json({"ok": not broken, "checks": checks})
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            state = Text(f"{check.state.value:<7}", style=STYLES[check.state.value])
            data.print(state, f"{check.name:<{width}}", check.found)
            if check.remedy:
                data.print(f"{'':<7} {'':<{width}} -> {check.remedy}")
        data.print(f"broken: {', '.join(broken)}" if broken else "ready to run: tilewright up")
    if broken:
        raise typer.Exit(ExitCode.NO_DEVICE if broken == ["device"] else ExitCode.FAILED)
