"""The commands put together, and the program's outermost frame."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

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

app = typer.Typer(
    name="tilewright",
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


app.command("up")(up.up)
app.command("serve")(serve.serve)
app.command("worker")(serve.worker)
app.command("tune")(tune.tune)
app.command("best")(best.best)
app.add_typer(results.app, name="results")
app.add_typer(demand.app, name="demand")
app.add_typer(jobs.app, name="jobs")
app.add_typer(schedules.app, name="schedules")
app.command("devices")(devices.devices)
app.command("drain")(draining.drain)
app.command("resume")(draining.resume)
app.add_typer(kernels.app, name="kernels")
app.command("report")(ladder.report)
app.command("export")(exchange.export)
app.command("import")(exchange.import_results)
app.command("bundle")(exchange.bundle)
app.command("doctor")(doctor.doctor)
app.add_typer(keys.app, name="keys")
app.add_typer(webhooks.app, name="webhooks")
app.add_typer(database.app, name="db")


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
