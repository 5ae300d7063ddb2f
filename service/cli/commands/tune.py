"""`tune` and `best`: a job requested and watched, which a worker measures; the best that is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.arguments import (
    CompilerName,
    DtypeOption,
    JobLimits,
    KernelArgument,
    KernelOptions,
    PriorityOption,
    ShapeOption,
    describe,
    job_request,
)
from tilewright.service.cli.commands.jobs import print_job
from tilewright.service.cli.commands.tables import print_tuned_table
from tilewright.service.cli.connection import connect
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.local.machine import uuid_of
from tilewright.service.cli.output import JsonFlag, note, print_json, warn
from tilewright.service.cli.report import milliseconds, print_best
from tilewright.service.operations import DEFAULT_PRIORITY
from tilewright.service.operations.parse import parse_open_shape, parse_options, parse_renames, parse_shape
from tilewright.service.settings import settings

if TYPE_CHECKING:
    from tilewright.service.cli.connection import Connection
    from tilewright.service.operations.answers import BestAnswer, JobAnswer, TunedFor
    from tilewright.service.operations.best.tables import TableAnswer
    from tilewright.service.operations.requests import JobRequest, StartRequest


HOW_TO_START = "Start one on the machine with that device: tilewright worker (or everything here: tilewright up)"


def tune(
    kernel: KernelArgument,
    *,
    shape: ShapeOption,
    dtype: DtypeOption = "float32",
    option: KernelOptions = None,
    device: Annotated[
        str | None, typer.Option("--device", help="Only this device: cuda:0 or cpu of this machine, or a UUID.")
    ] = None,
    device_model: Annotated[
        str | None,
        typer.Option("--device-model", help="Any device of this model. Default: the only model that has devices."),
    ] = None,
    trials: Annotated[int | None, typer.Option("--trials", help="Stop after this many trials.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", help="Stop the search after this many seconds; preparation counts, finals do not."),
    ] = None,
    target_ms: Annotated[float | None, typer.Option("--target-ms", help="Stop at the first trial this fast.")] = None,
    variant: Annotated[list[str] | None, typer.Option("--variant", help="Only this variant; repeatable.")] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--start",
            metavar="FILE",
            help="Configurations to try first, as JSON: ours, or a file of vLLM or SGLang.",
        ),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="THEIRS=OURS", help="A parameter's name in that file and here; repeatable."),
    ] = None,
    compiler: Annotated[CompilerName | None, typer.Option("--compiler", help="Compiler for CUDA devices.")] = None,
    priority: PriorityOption = DEFAULT_PRIORITY,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Watch the job until it is over.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Tune a kernel for one problem, or for every size of an axis, such as m=1..8192. A worker does the measuring.

    The default budget is 100 trials. Of a range the outcome is a table, and the budget that of its searches together.
    """
    from tilewright.service.operations.answers import TunedFor
    from tilewright.service.operations.catalog import kernel_named
    from tilewright.service.operations.registry import tuned_for

    asked = TunedFor(kernel=kernel, shape=parse_open_shape(shape), dtype=dtype, options=parse_options(option))
    if settings().url is None:  # an API may have kernels that this installation has not
        tuned_for(kernel_named(kernel), asked.shape, dtype, asked.options)
    starts = read_starts(start, asked, rename or ())
    limits = JobLimits(trials, seconds, target_ms, variant or (), compiler, priority, starts)
    with connect() as connection:
        if device is None and device_model is None:
            device_model = only_device_model(connection, to_measure=True)
        elif not connection.device_models():
            raise CommandError(NO_DEVICE, ExitCode.NO_DEVICE)
        uuid = uuid_of(device) if device else None
        request = job_request(asked, limits, device=uuid, device_model=device_model)
        job = submit(connection, request)
        waiting_for = missing_worker(connection, job)
        if waiting_for:
            warn(waiting_for)
        if not wait:
            print_json({"job": job, "best": None}) if as_json else print_job(job)
            return
        job = watch(connection, job)
        show_result(connection, job, as_json=as_json, url=settings().url)


def read_starts(path: Path | None, problem: TunedFor, rename: Sequence[str]) -> Sequence[StartRequest]:
    """The configurations of the file for that problem; raises CommandError for a file that cannot be read."""
    if path is None:
        return ()
    if problem.is_family:
        raise CommandError("--start is for a single problem; leave it out where a size is a range", ExitCode.USAGE)
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CommandError(f"--start: {path} cannot be read as JSON: {error}", ExitCode.USAGE) from error
    from tilewright.service.operations.catalog import kernel_named
    from tilewright.service.operations.jobs.starts import starts_in

    found = starts_in(document, kernel_named(problem.kernel), _sizes(problem), parse_renames(rename))
    if found.unknown:
        names_of = ", ".join(sorted(found.unknown))
        warn(f"left out, as {problem.kernel} has no such parameters: {names_of} (--rename maps names)")
    if found.no_numbers:
        warn(f"left out, as they are not whole numbers in the file: {', '.join(sorted(found.no_numbers))}")
    return found.starts


def _sizes(problem: TunedFor) -> dict[str, int]:
    return {axis: size for axis, size in problem.shape.items() if isinstance(size, int)}


def submit(connection: Connection, request: JobRequest) -> JobAnswer:
    """The job that was made, or the identical open one that it joins."""
    job, is_new = connection.request_job(request)
    note(f"job {job.id}: {describe(job.problem)} on {job.device or job.device_model}" + ("" if is_new else " (joined)"))
    return job


def watch(connection: Connection, job: JobAnswer) -> JobAnswer:
    """The finished job. After Ctrl-C the job goes on, and the user is told how to come back to it."""
    from tilewright.service.cli.progress import follow

    try:
        return follow(lambda: connection.job(job.id), lambda queued: why_waiting(connection, queued))
    except KeyboardInterrupt:
        note(f"the job keeps running. See it: tilewright jobs show {job.id}   Stop it: tilewright jobs cancel {job.id}")
        raise


def why_waiting(connection: Connection, job: JobAnswer) -> str:
    """The reason why a queued job has not started."""
    missing = missing_worker(connection, job)
    if missing is not None:
        return missing
    is_busy = any(one.job for one in connection.devices() if one.model == job.device_model)
    return f"the job is queued; its worker {'is busy with another one' if is_busy else 'has not taken it yet'}"


def missing_worker(connection: Connection, job: JobAnswer) -> str | None:
    """The remedy if no running worker can take the job; None if one can, or the job has left the queue."""
    if job.state != "queued":
        return None
    able = [one for one in connection.devices() if job.device in {None, one.uuid} and one.model == job.device_model]
    working = [one for one in able if one.alive and one.state == "ready"]
    if any(not one.draining for one in working):
        return None
    where = job.device or job.device_model
    if working:
        return f"{where} is drained and takes no jobs; resume it: tilewright resume {working[0].uuid}"
    if any(one.alive for one in able):
        return f"the device {where} is marked lost because it stopped answering; check it, then restart its worker"
    return f"no worker is running for {where}; the job stays queued until one is. {HOW_TO_START}"


def best_of(connection: Connection, job: JobAnswer) -> BestAnswer | None:
    """The best known configuration of the job's problem; None unless the job is done and its device model known, and
    for a family.
    """
    if job.state != "done" or job.device_model is None or job.problem.is_family:
        return None
    problem = job.problem
    return connection.best(problem.kernel, job.device_model, _sizes(problem), problem.dtype, problem.options)


def table_of(connection: Connection, job: JobAnswer) -> TableAnswer | None:
    """The table of the job's family; None for a single problem, and for a job that is not done."""
    problem = job.problem
    if job.state != "done" or not problem.is_family:
        return None
    return connection.table(problem.kernel, job.device_model, problem.shape, problem.dtype, problem.options)


def _standing(best: BestAnswer) -> str:
    """A sentence on the best so far, which an earlier job found."""
    stale = f", and is stale ({', '.join(best.stale_because)})" if best.stale_because else ""
    return f"The best so far, {milliseconds(best.time_ms or 0.0)}, is from an earlier job{stale}"


def show_result(connection: Connection, job: JobAnswer, *, as_json: bool, url: str | None) -> None:
    """Prints the job's result; raises CommandError if it failed, was cancelled or measured nothing."""
    from tilewright.tuner.errors import first_error

    best, table = best_of(connection, job), table_of(connection, job)
    if as_json:
        print_json({"job": job, "best": best} | ({} if table is None else {"table": table}))
    if job.state == "failed":
        raise CommandError(f"the job failed: {job.error or 'no reason was recorded'}")
    if job.state == "cancelled":
        kept = "and stored no table" if job.problem.is_family else "which are kept"
        raise CommandError(f"the job was cancelled after {job.trials_done} trials, {kept}")
    if table is not None:
        if not as_json:
            print_tuned_table(table)
        return
    has_measured = (job.result or {}).get("best", best) is not None
    if best is None or best.time_ms is None or not has_measured:
        tried = [trial for trial in connection.trials(job.id, limit=1).items if trial.time_ms is None]
        reasons = [": ".join(filter(None, (trial.outcome, first_error(trial.log)))) for trial in tried]
        why = "".join(f": {reason}" for reason in reasons or filter(None, [job.why_stopped]))
        see = f". See why: tilewright jobs trials {job.id}" if tried else ""
        stands = "" if best is None or best.time_ms is None else f". {_standing(best)}"
        message = f"no configuration was measured{why}{see}{stands}"
        raise CommandError(message, ExitCode.NOTHING_FOUND)
    if not as_json:
        print_best(best, url=url)
    if (job.result or {}).get("published") is False:
        note("the earlier best stays: this job found nothing faster beyond the noise")
    failure = (job.result or {}).get("library_failure")
    if failure:
        warn(f"the library left the finals: {failure}")


NO_DEVICE = "No device has been registered yet. A worker registers its device; start one: tilewright worker"


def best(
    kernel: KernelArgument,
    shape: ShapeOption,
    device_model: Annotated[
        str | None,
        typer.Option("--device-model", help="Slug, like nvidia-h200. Default: the only device model that has devices."),
    ] = None,
    dtype: DtypeOption = "float32",
    option: KernelOptions = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the best known configuration, without measuring anything."""
    sizes, options = parse_shape(shape), parse_options(option)
    if settings().url is None:  # an API may have kernels that this installation has not
        from tilewright.service.operations.catalog import kernel_named

        kernel_named(kernel).problem(sizes, dtype, options)
    with connect() as connection:
        model = device_model or only_device_model(connection)
        answer = connection.best(kernel, model, sizes, dtype, options)
    if as_json:
        print_json(answer)
    else:
        print_best(answer, url=settings().url)


def only_device_model(connection: Connection, *, to_measure: bool = False) -> str:
    """The slug of the only device model that has devices; raises CommandError listing them if there are several.

    If none has any, the only known device model will do, except `to_measure`.
    """
    models = sorted({device.model for device in connection.devices()})
    if not models and not to_measure:
        models = [model.slug for model in connection.device_models()]
    if not models:
        raise CommandError(NO_DEVICE, ExitCode.NO_DEVICE)
    if len(models) > 1:
        message = f"There are several device models: {', '.join(models)}. Choose one: --device-model {models[0]}"
        raise CommandError(message, ExitCode.USAGE)
    return models[0]
