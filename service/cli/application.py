"""The commands put together, and the program's outermost frame.

A command's module is imported when the command is run: the database, the web and NumPy take a second that `--help`,
a typing error and the completion of words need not wait for.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from tilewright import __version__

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


class Command(NamedTuple):
    """Its section of the help, where it is, as `module:attribute` of `commands`, and its line in the help."""

    section: str
    place: str
    help: str

    def load(self) -> Callable[..., Any] | typer.Typer:
        """The function, or the group of commands."""
        module, _, name = self.place.partition(":")
        loaded: Callable[..., Any] | typer.Typer = getattr(
            importlib.import_module(f"{__package__}.commands.{module}"), name
        )
        return loaded

    def stand_in(self) -> Callable[..., Any]:
        """What is shown in its place by a program that runs another one."""

        def not_loaded() -> None: ...

        not_loaded.__doc__ = self.help
        return not_loaded


COMMANDS = {
    "up": Command(
        "Run", "up:up", "Run everything on this machine: PostgreSQL, API, a worker for each GPU (or one for the CPU)."
    ),
    "serve": Command("Run", "serve:serve", "Serve the API and the dashboard; needs no GPU."),
    "worker": Command(
        "Run",
        "serve:worker",
        "Run jobs on a device of this machine until SIGTERM (its job is handed back) or SIGUSR1 (it ends first).",
    ),
    "tune": Command(
        "Ask", "tune:tune", "Tune a kernel for one problem. A worker measures; without a budget: 100 trials."
    ),
    "best": Command("Ask", "best:best", "Print the best known configuration. Looks it up; measures nothing."),
    "jobs": Command("Jobs", "jobs:app", "Tuning jobs: list, show, cancel, trials."),
    "report": Command(
        "Results",
        "report:report",
        "Measure the steps that a kernel is learnt by, and write a report: HTML, Markdown, CSV. Up to three minutes.",
    ),
    "results": Command("Results", "results:app", "Results: the best configurations as they were measured."),
    "demand": Command("Demand", "demand:app", "Demand: what was asked for and is not known exactly."),
    "schedules": Command("Schedules", "schedules:app", "Schedules: tune problems again and again at set times."),
    "keys": Command("Access", "keys:app", "Access keys: create, list, rotate, revoke."),
    "webhooks": Command("Webhooks", "webhooks:app", "Webhooks: addresses that are told of jobs that end."),
    "devices": Command(
        "What there is",
        "devices:devices",
        "List this machine's devices and the registered ones, with the state of their workers.",
    ),
    "drain": Command(
        "What there is", "draining:drain", "Let a device end its job and take no other, until it is resumed."
    ),
    "resume": Command("What there is", "draining:resume", "Let a drained device take jobs again."),
    "kernels": Command("What there is", "kernels:app", "The kernels: list, show, source, check."),
    "export": Command("Exchange", "exchange:export", "Write what was measured here as a document."),
    "import": Command(
        "Exchange",
        "exchange:import_results",
        "Take over results of another installation or tool; says what it left out, and why.",
    ),
    "bundle": Command(
        "Exchange",
        "exchange:bundle",
        "Write a file for each device model with all that applications need at run time, or check such a folder.",
    ),
    "doctor": Command(
        "This machine",
        "doctor:doctor",
        "Look this machine over; exit code 0 where `tilewright up` can run, 4 where only a device is missing.",
    ),
    "db": Command("This machine", "database:app", "The database: upgrade, current, url, stop, prune."),
}
"""Section by section; a test compares each help with what the command itself says."""


def program(loaded: Collection[str] = frozenset(COMMANDS)) -> typer.Typer:
    """The command line; of commands that are not to be loaded it knows the name and the help only."""
    app = typer.Typer(
        name="tilewright",
        cls=InSections,
        help="Finds, verifies and serves the best configuration of CUDA kernels, per GPU and problem.",
        epilog=EPILOG,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(tilewright)
    for name, command in COMMANDS.items():
        found = command.load() if name in loaded else command.stand_in()
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name, rich_help_panel=command.section)
        else:
            app.command(name, rich_help_panel=command.section)(found)
    return app


def tilewright(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Finds, verifies and serves the best configuration of CUDA kernels, per GPU and problem."""
    if version:
        typer.echo(f"tilewright {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        return
    from tilewright.service import logs  # noqa: PLC0415 - reads the settings

    logs.configure_command()


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code, after running one command; errors are one line on stderr.

    An embedded PostgreSQL that nobody else uses is stopped then, also where a program that was killed left it behind.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    needed = _needed(words)
    if not needed:
        return _run(words, needed)
    from tilewright.service.cli.supervisor import terminable  # noqa: PLC0415 - reads the settings

    try:
        with terminable():  # a SIGTERM must not pass the end of this block by
            return _run(words, needed)
    finally:
        _leave_servers()


def _leave_servers() -> None:
    """Ends this process's use of an embedded PostgreSQL, where the command had any."""
    if "tilewright.service.store.embedded" not in sys.modules:
        return
    from tilewright.service.cli.output import warn  # noqa: PLC0415
    from tilewright.service.errors import DatabaseUnavailableError  # noqa: PLC0415
    from tilewright.service.store.embedded import leave_servers  # noqa: PLC0415

    try:
        leave_servers()
    except DatabaseUnavailableError as error:
        warn(str(error))


def _run(words: Sequence[str], needed: Collection[str]) -> int:
    try:
        status = program(needed)(args=words, prog_name="tilewright", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        from tilewright.service.cli.output import silence_stdout  # noqa: PLC0415 - nothing else may need it

        silence_stdout()
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the outermost frame: every error ends as one line, none is lost
        if os.environ.get("TILEWRIGHT_DEBUG") not in {None, "", "0"}:
            raise
        return _status_of(error)
    return status if isinstance(status, int) else 0


def _needed(words: Sequence[str]) -> Collection[str]:
    """The command that is named: no option of the program itself has a value, so it is the first word."""
    if "_TILEWRIGHT_COMPLETE" in os.environ:
        return COMMANDS
    return [word for word in words if not word.startswith("-")][:1]


def _status_of(error: Exception) -> int:
    """The exit code of an error, which is told here."""
    from tilewright.service.cli.failure import explain  # noqa: PLC0415 - knows the errors of every package
    from tilewright.service.cli.output import fail  # noqa: PLC0415

    failure = explain(error)
    fail(failure.message)
    return failure.code
