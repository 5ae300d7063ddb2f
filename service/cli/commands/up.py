"""`up`: database, API and workers on this machine, perhaps a first tuned kernel, until Ctrl-C."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.arguments import DtypeOption, JobLimits, KernelOptions, describe, job_request
from tilewright.service.cli.commands.serve import HostOption, PortOption, choose_address, require_free_port
from tilewright.service.cli.commands.tune import show_result, submit, watch
from tilewright.service.cli.connection import embedded_server
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.local.machine import chosen_devices
from tilewright.service.cli.local.supervisor import terminable
from tilewright.service.cli.output import data, note
from tilewright.service.cli.report import print_best
from tilewright.service.operations.parse import format_shape, parse_options, parse_shape
from tilewright.service.settings import settings

if TYPE_CHECKING:
    from tilewright.service.cli.local.installation import Installation
    from tilewright.service.operations.answers import BestAnswer, ProblemAnswer

FIRST_PROBLEM = {"m": 256, "n": 100, "k": 784}
"""The first layer of a 784-100-100-10 network at batch 256."""

# `up --tune` has to end within two minutes on two cores, start included, so the search gets well under one.
FIRST_TRIALS, FIRST_SECONDS = 40, 60.0


@dataclass(frozen=True)
class FirstTuning:
    """The problem to tune once everything is up."""

    problem: ProblemAnswer
    limits: JobLimits


def up(
    *,
    tune: Annotated[
        str | None,
        typer.Option(
            "--tune", metavar="KERNEL", help="Tune this kernel when everything runs, if the problem has not been tuned."
        ),
    ] = None,
    shape: Annotated[
        str | None, typer.Option("--shape", metavar="M=…,N=…", help="Axis sizes of the problem to tune.")
    ] = None,
    dtype: DtypeOption = "float32",
    option: KernelOptions = None,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Most trials.")] = FIRST_TRIALS,
    seconds: Annotated[
        float, typer.Option("--seconds", help="Most seconds of the search; preparation counts, finals do not.")
    ] = FIRST_SECONDS,
    again: Annotated[bool, typer.Option("--again", help="With --tune: tune the problem even if it has been.")] = False,
    device: Annotated[
        list[str] | None, typer.Option("--device", help="cuda:0 or cpu; repeatable. Default: every GPU, otherwise cpu.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Stop when everything runs and --tune, if given, is done.")
    ] = False,
    host: HostOption = None,
    port: PortOption = None,
) -> None:
    """Run everything on this machine: PostgreSQL, API, a worker for each GPU (or one for the CPU)."""
    from tilewright.service.cli.local.installation import Installation

    if again and tune is None:
        raise CommandError("--again needs --tune KERNEL. Example: --tune gemm --again", ExitCode.USAGE)
    if settings().tls_certificate is not None:
        raise CommandError("`up` speaks http to this machine: TILEWRIGHT_TLS_CERTIFICATE is for `tilewright serve`")
    choose_address(host, port)
    first = _first_tuning(tune, shape, dtype, option, JobLimits(trials, seconds))
    require_free_port(settings().host, settings().port)
    installation = Installation(chosen_devices(device, every=True), embedded_server())
    with terminable():
        try:
            _run(installation, first, again=again, once=once)
        finally:
            note("stopping")
            installation.stop()


def _run(installation: Installation, first: FirstTuning | None, *, again: bool, once: bool) -> None:
    from tilewright.service.client import Client

    installation.start()
    names = ", ".join(device.name for device in installation.devices)
    with Client(installation.url) as client:
        device = installation.wait_for_worker(client)
        note(f"ready: {installation.url}  (workers: {names}; logs: {settings().data_dir / 'logs'})")
        if first is not None:
            known = None if again else _known(first.problem, device.model)
            if known is None:
                request = job_request(first.problem, first.limits, device_model=device.model)
                job = watch(client, submit(client, request))
                show_result(client, job, as_json=False, url=installation.url)
            else:
                note(f"{describe(first.problem)} has been tuned already; --again tunes it anew")
                print_best(known, url=installation.url)
    if once:
        return
    # Being stopped is how serving ends, so it is no failure.
    with contextlib.suppress(KeyboardInterrupt):
        data.print(f"serving on {installation.url} until Ctrl-C")
        installation.serve_until_stopped()


def _known(problem: ProblemAnswer, device_model: str) -> BestAnswer | None:
    """The result for this problem, unless it is stale; read from the database, because a request would count as
    demand.
    """
    from tilewright.service.cli.local_connection import LocalConnection

    best = LocalConnection().best(problem.kernel, device_model, problem.shape, problem.dtype, problem.options)
    return best if best.match.value == "exact" and not best.stale else None


def _first_tuning(
    kernel: str | None, shape: str | None, dtype: str, options: list[str] | None, limits: JobLimits
) -> FirstTuning | None:
    """The checked request, before anything is started; raises what is wrong with it."""
    if kernel is None:
        if shape is not None:
            raise CommandError(
                "--shape needs --tune KERNEL. Example: --tune gemm --shape m=256,n=100,k=784", ExitCode.USAGE
            )
        return None
    from tilewright.service.operations.answers import ProblemAnswer
    from tilewright.service.operations.catalog import kernel_named

    declared = kernel_named(kernel)
    sizes = parse_shape(shape or format_shape(FIRST_PROBLEM if kernel == "gemm" else dict(declared.example_shape)))
    problem = declared.problem(sizes, dtype, parse_options(options))
    asked = ProblemAnswer.model_validate(problem.as_json())
    job_request(asked, limits)
    return FirstTuning(asked, limits)
