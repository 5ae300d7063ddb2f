"""`jobs`: list, show, cancel, retry, trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from tilewright.service.cli.arguments import describe
from tilewright.service.cli.connection import connect
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.output import JsonFlag, data, lists_by_default, note, print_facts, print_json, print_table
from tilewright.service.cli.report import milliseconds, trials_done

if TYPE_CHECKING:
    from tilewright.service.operations.answers import JobAnswer, TrialAnswer

app = typer.Typer(help="Tuning jobs: list, show, cancel, retry, trials.")

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]
StateOption = Annotated[str | None, typer.Option("--state", help="queued, running, done, failed or cancelled.")]
CursorOption = Annotated[str | None, typer.Option("--cursor", help="Continue after the previous page.")]


@app.command("list")
def list_jobs(
    state: StateOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=200, help="Most rows to show.")] = 20,
    cursor: CursorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List jobs, newest first."""
    with connect() as connection:
        page = connection.jobs(state=state, limit=limit, cursor=cursor)
    if as_json:
        print_json(page)
        return
    print_table(
        ("id", "state", "problem", "device", "trials", "best ms"),
        [
            (job.id, job.state, describe(job.problem), job.device_model, trials_done(job), _number(job.best_ms))
            for job in page.items
        ],
        nothing="No jobs yet. Start one: tilewright tune gemm --shape m=256,n=100,k=784",
    )
    _more(page.next_cursor)


lists_by_default(app, list_jobs)


@app.command()
def show(job_id: JobId, as_json: JsonFlag = False) -> None:
    """Show one job."""
    identifier = _uuid(job_id)
    with connect() as connection:
        job = connection.job(identifier)
    print_json(job) if as_json else print_job(job)


@app.command()
def cancel(job_id: JobId, as_json: JsonFlag = False) -> None:
    """Cancel a job: it stops after the running trial, and keeps its trials."""
    identifier = _uuid(job_id)
    with connect() as connection:
        job = connection.cancel_job(identifier)
    if as_json:
        print_json(job)
    else:
        data.print(f"{job.id} {job.state if not job.cancel_requested else 'stops after the running trial'}")


@app.command()
def retry(
    job_id: JobId,
    trial: Annotated[int | None, typer.Option("--trial", min=0, help="Only the trial of this number.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Try the failed trials of a job's study again, in a new job."""
    identifier = _uuid(job_id)
    with connect() as connection:
        job = connection.retry_trials(identifier, trial)
    if as_json:
        print_json(job)
    else:
        data.print(f"{job.id} {job.state}: tries {len(job.starts or [])} configurations again")


@app.command()
def trials(
    job_id: JobId,
    limit: Annotated[int, typer.Option("--limit", min=1, max=200, help="Most rows to show.")] = 100,
    cursor: CursorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List a job's trials in the order in which they ran."""
    identifier = _uuid(job_id)
    with connect() as connection:
        page = connection.trials(identifier, limit=limit, cursor=cursor)
    if as_json:
        print_json(page)
        return
    columns = ("trial", "outcome", "time ms", "GFLOP/s", "registers", "configuration", "why not measured")
    print_table(columns, [_trial_row(trial) for trial in page.items], nothing="This job has no trials yet.")
    _more(page.next_cursor)


def print_job(job: JobAnswer) -> None:
    """Prints the job as text."""
    from tilewright.kernels.space import Configuration

    budget = ", ".join(f"{name} {value:g}" for name, value in job.budget.items() if value is not None)
    print_facts(
        [
            ("job", job.id),
            ("problem", describe(job.problem)),
            ("device", job.device or job.device_model),
            ("state", job.state if job.phase == job.state else f"{job.state} ({job.phase})"),
            ("budget", budget),
            ("variants", ", ".join(job.variants or [])),
            ("tried first", "; ".join(str(Configuration.from_json(start)) for start in job.starts or [])),
            ("compiler", job.compiler),
            ("trials", trials_done(job)),
            ("preparing and measuring", f"{job.elapsed_s:.1f} s"),
            ("best", None if job.best_ms is None else milliseconds(job.best_ms)),
            ("worker", job.worker),
            ("created", f"{job.created_at:%Y-%m-%d %H:%M:%S %Z}"),
            ("finished", job.finished_at and f"{job.finished_at:%Y-%m-%d %H:%M:%S %Z}"),
            ("error", job.error),
        ]
    )


def _more(cursor: str | None) -> None:
    if cursor is not None:
        note(f"more follow: --cursor {cursor}")


def _trial_row(trial: TrialAnswer) -> tuple[object, ...]:
    values = " ".join([trial.variant, *(f"{name}={value}" for name, value in trial.configuration.items())])
    figures = _number(trial.time_ms), _number(trial.gflops), trial.registers
    return trial.number, trial.outcome, *figures, values, _reason(trial)


def _reason(trial: TrialAnswer) -> str | None:
    """The reason why it has no time: the first error of its log."""
    from tilewright.tuner.errors import first_error

    return (first_error(trial.log) or None) if trial.time_ms is None else None


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        example = "0198c0de-0000-7000-8000-000000000000"
        raise CommandError(f"ID: {text!r} is not a job's id. Example: {example}", ExitCode.USAGE) from None
