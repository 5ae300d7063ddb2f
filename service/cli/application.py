"""The commands put together, and the program's outermost frame."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tilewright import __version__
from tilewright.service import logs
from tilewright.service.cli import (
    best,
    database,
    demand,
    devices,
    doctor,
    draining,
    exchange,
    jobs,
    kernels,
    keys,
    ladder,
    results,
    schedules,
    serve,
    tune,
    up,
    webhooks,
)
from tilewright.service.cli.failure import ExitCode, explain
from tilewright.service.cli.output import data, fail, silence_stdout

EPILOG = (
    "Commands ask the API at TILEWRIGHT_URL where that is set, else this machine's database. "
    "Exit codes: 0 done, 1 failed, 2 usage, 3 nothing found, 4 no device, 130 interrupted."
)

SECTIONS = (
    "Run",
    "Ask",
    "Jobs",
    "Results",
    "Demand",
    "Schedules",
    "Access",
    "Webhooks",
    "What there is",
    "Exchange",
    "This machine",
)
"""The headings of docs/cli.md, under which the help shows the commands."""


class InSections(TyperGroup):
    """Shows commands section by section: Typer by itself would show all groups behind all single commands."""

    def list_commands(self, ctx: Any) -> list[str]:  # typer keeps the type of a context to itself
        """The names in the order of their sections."""

        def section(name: str) -> int:
            return SECTIONS.index(getattr(self.commands[name], "rich_help_panel"))  # noqa: B009 - not of the base class

        return sorted(super().list_commands(ctx), key=section)


app = typer.Typer(
    name="tilewright",
    cls=InSections,
    help="Finds, verifies and serves the best configuration of CUDA kernels, per GPU and problem.",
    epilog=EPILOG,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def tilewright(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Finds, verifies and serves the best configuration of CUDA kernels, per GPU and problem."""
    if version:
        data.print(f"tilewright {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    else:
        logs.configure_command()


app.command("up", rich_help_panel="Run")(up.up)
app.command("serve", rich_help_panel="Run")(serve.serve)
app.command("worker", rich_help_panel="Run")(serve.worker)
app.command("tune", rich_help_panel="Ask")(tune.tune)
app.command("best", rich_help_panel="Ask")(best.best)
app.add_typer(jobs.app, name="jobs", rich_help_panel="Jobs")
app.add_typer(results.app, name="results", rich_help_panel="Results")
app.command("report", rich_help_panel="Results")(ladder.report)
app.add_typer(demand.app, name="demand", rich_help_panel="Demand")
app.add_typer(schedules.app, name="schedules", rich_help_panel="Schedules")
app.add_typer(keys.app, name="keys", rich_help_panel="Access")
app.add_typer(webhooks.app, name="webhooks", rich_help_panel="Webhooks")
app.command("devices", rich_help_panel="What there is")(devices.devices)
app.command("drain", rich_help_panel="What there is")(draining.drain)
app.command("resume", rich_help_panel="What there is")(draining.resume)
app.add_typer(kernels.app, name="kernels", rich_help_panel="What there is")
app.command("export", rich_help_panel="Exchange")(exchange.export)
app.command("import", rich_help_panel="Exchange")(exchange.import_results)
app.command("bundle", rich_help_panel="Exchange")(exchange.bundle)
app.command("doctor", rich_help_panel="This machine")(doctor.doctor)
app.add_typer(database.app, name="db", rich_help_panel="This machine")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code, after running one command; errors are one line on stderr."""
    try:
        status = app(args=arguments, prog_name="tilewright", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:  # the outermost frame: every error ends as one line, none is lost
        if os.environ.get("TILEWRIGHT_DEBUG") not in {None, "", "0"}:
            raise
        failure = explain(error)
        fail(failure.message)
        return failure.code
    return status if isinstance(status, int) else ExitCode.DONE
