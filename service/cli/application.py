"""All commands as one program: loading, exit codes, and the clean-up at the end.

Database, web and NumPy take a second to import, which `--help`, a typing error and shell completion need not wait for.
So a command's module is imported only for that command, and what it works with only where it runs.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection, Sequence
from itertools import takewhile
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from tilewright import __version__
from tilewright.service import logs

EPILOG = (
    "Commands talk to the API at TILEWRIGHT_URL if that is set, otherwise to this machine's database. "
    "Exit codes: 0 done, 1 failed, 2 usage, 3 nothing found, 4 no device, 130 interrupted."
)

HELP = ["-h", "--help"]

COMPLETION = "_TILEWRIGHT_COMPLETE"
"""The variable by which a shell asks Typer for completions."""

SECTIONS = (
    "Run",
    "Tune and look up",
    "Jobs",
    "Results",
    "Demand",
    "Schedules",
    "Access",
    "Webhooks",
    "Devices and kernels",
    "Export and import",
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
    """A command: its section of the help, its place as `module:attribute` of `commands`, and its help line."""

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
        """A placeholder with the same help line, for a program that runs another command."""

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
        "Run jobs on a device of this machine. SIGTERM hands the running job back; SIGUSR1 finishes it first.",
    ),
    "tune": Command(
        "Tune and look up",
        "tune:tune",
        "Tune a kernel for one problem, or for every size of an axis, such as m=1..8192. A worker does the measuring.",
    ),
    "best": Command("Tune and look up", "tune:best", "Print the best known configuration, without measuring anything."),
    "run": Command(
        "Tune and look up",
        "programs:run_tuned",
        "Run a program whose triton.autotune takes what is tuned, in the place of its own search.",
    ),
    "tables": Command(
        "Tune and look up", "tables:app", "Tables: configurations for every size of an axis. Tune, show."
    ),
    "jobs": Command("Jobs", "jobs:app", "Tuning jobs: list, show, cancel, retry, trials."),
    "report": Command(
        "Results",
        "results:report",
        "Measure a kernel's optimisation steps and write a report as Markdown and JSON. Takes up to three minutes.",
    ),
    "results": Command("Results", "results:results_app", "Results: the best configurations as they were measured."),
    "claims": Command(
        "Results",
        "results:claims_app",
        "Claims: what clients say of configurations, wrong results or times, and what workers found.",
    ),
    "record": Command(
        "Demand",
        "programs:record",
        "Run a PyTorch program and print which of its operations could be tuned, and what that could gain.",
    ),
    "demand": Command("Demand", "demand:demand_app", "Demand: requested problems that are not tuned yet."),
    "attention": Command("Demand", "demand:attention_app", "Attention: where tuning is worthwhile, with the reasons."),
    "schedules": Command("Schedules", "schedules:app", "Schedules: tune problems again and again at set times."),
    "keys": Command("Access", "access:keys_app", "Access keys: create, list, rotate, revoke."),
    "projects": Command("Access", "access:projects_app", "Projects: create, list, set quotas."),
    "webhooks": Command("Webhooks", "webhooks:app", "Webhooks: addresses that get a message when a job ends."),
    "devices": Command(
        "Devices and kernels",
        "devices:devices",
        "List this machine's devices and the registered ones, with the state of their workers.",
    ),
    "drain": Command(
        "Devices and kernels",
        "devices:drain",
        "Stop giving jobs to a device: the running one ends, no other starts until it is resumed.",
    ),
    "resume": Command("Devices and kernels", "devices:resume", "Give jobs to a drained device again."),
    "capture": Command(
        "Devices and kernels",
        "programs:capture_app",
        "Capture: what a program launches through Triton, PyCUDA or CuPy. Run it, show, adopt.",
    ),
    "kernels": Command("Devices and kernels", "kernels:app", "Kernels: list, show, source, check, new, adopt."),
    "export": Command("Export and import", "exchange:export", "Write this installation's results as a document."),
    "import": Command(
        "Export and import",
        "exchange:import_results",
        "Import results of another installation or tool; reports what it left out and why.",
    ),
    "bundle": Command(
        "Export and import",
        "exchange:bundle",
        "Write one file per device model with everything that applications need at run time, or check such a folder.",
    ),
    "doctor": Command(
        "This machine",
        "this_machine:doctor",
        "Check this machine; exit code 0 if `tilewright up` can run, 4 if only a device is missing.",
    ),
    "db": Command(
        "This machine", "this_machine:database_app", "The database: upgrade, downgrade, current, url, stop, prune."
    ),
}
"""Section by section; a test compares each help with what the command itself says."""


def program(loaded: Collection[str] = frozenset(COMMANDS)) -> typer.Typer:
    """The command line; commands outside `loaded` have their name and help only."""
    app = typer.Typer(
        name="tilewright",
        cls=InSections,
        help="Finds, verifies and serves the best configuration of CUDA kernels, per GPU and problem.",
        epilog=EPILOG,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": HELP},
    )
    app.callback(invoke_without_command=True)(tilewright)
    for name, command in COMMANDS.items():
        function = command.load() if name in loaded else command.stand_in()
        if isinstance(function, typer.Typer):
            app.add_typer(function, name=name, rich_help_panel=command.section)
        else:
            app.command(name, rich_help_panel=command.section)(function)
    return app


def leave_flags_bare(command: Any) -> None:
    """Removes `<bool>` from the help of flags, here and in all subcommands: flags take no value."""
    context = command.context_class(command, help_option_names=HELP)
    for option in command.get_params(context):
        if getattr(option, "is_flag", False) and option.metavar is None:
            option.metavar = ""
    for child in getattr(command, "commands", {}).values():
        leave_flags_bare(child)


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


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of one command line, after running it; errors are one line on stderr.

    At the end, an embedded PostgreSQL that no other process uses is stopped, also one left behind by a killed program.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    needed = _needed(words)
    if not needed:
        return _run(words, needed)
    from tilewright.service.cli.local.supervisor import terminable

    try:
        with terminable():  # a SIGTERM must not pass the end of this block by
            return _run(words, needed)
    finally:
        _leave_servers()


def _leave_servers() -> None:
    """Ends this process's use of an embedded PostgreSQL, where the command had any."""
    if "tilewright.service.store.embedded" not in sys.modules:
        return
    from tilewright.service.cli.output import warn
    from tilewright.service.errors import DatabaseUnavailableError
    from tilewright.service.store.embedded import leave_servers

    try:
        leave_servers()
    except DatabaseUnavailableError as error:
        warn(str(error))


def _run(words: Sequence[str], needed: Collection[str]) -> int:
    try:
        if needed and not _only_tells(words):
            logs.configure_command()
        command = typer.main.get_command(program(needed))
        leave_flags_bare(command)
        status = command(args=words, prog_name="tilewright", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        from tilewright.service.cli.output import silence_stdout  # nothing else may need it

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
    """The command to load: the first word, because no option of the program itself takes a value."""
    if COMPLETION in os.environ:
        return COMMANDS
    return [word for word in words if not word.startswith("-")][:1]


def _only_tells(words: Sequence[str]) -> bool:
    """Whether nothing runs: a shell completes a word, or help is asked for (not after `--`, for another program)."""
    return COMPLETION in os.environ or any(word in HELP for word in takewhile(lambda word: word != "--", words))


def _status_of(error: Exception) -> int:
    """Prints the error and returns its exit code."""
    from tilewright.service.cli.explain import explain  # knows the errors of every package
    from tilewright.service.cli.output import fail

    failure = explain(error)
    fail(failure.message)
    return failure.code
