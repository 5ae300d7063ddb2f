"""`up`: database, API and workers on this machine, perhaps a first tuned kernel, until Ctrl-C."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

import typer

from tilewright.service.cli.arguments import DtypeOption, JobLimits, KernelOptions, job_request
from tilewright.service.cli.commands.serve import HostOption, PortOption, choose_address
from tilewright.service.cli.commands.tune import show_result, submit, watch
from tilewright.service.cli.connection import LocalConnection, embedded_server
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.listening import require_free_port
from tilewright.service.cli.machine import chosen_devices
from tilewright.service.cli.output import data, note
from tilewright.service.cli.supervisor import CLI, Program, Supervisor, terminable, worker_program
from tilewright.service.client import Client
from tilewright.service.operations.answers import DeviceAnswer, ProblemAnswer
from tilewright.service.operations.best_cache.memory import EXPECTED_FOR_S
from tilewright.service.operations.catalog import kernel_named
from tilewright.service.operations.parse import format_shape, parse_options, parse_shape
from tilewright.service.settings import settings
from tilewright.service.store import schema
from tilewright.service.store.embedded import EmbeddedPostgres
from tilewright.service.store.session import database_url
from tilewright.tuner.devices.local import DeviceEntry

FIRST_PROBLEM = {"m": 256, "n": 100, "k": 784}
"""The first layer of a 784-100-100-10 network at batch 256."""

# `up --tune` has to end within two minutes on two cores, start included, so the search gets well under one.
FIRST_TRIALS, FIRST_SECONDS = 40, 60.0
READY_WITHIN_S = 60.0 + EXPECTED_FOR_S  # it reads into memory what was asked about lately
WORKER_WITHIN_S = 90.0  # a worker first measures what its device can do
QUICK_DEATHS = 3  # so many in a row, and waiting longer is of no use
CHECK_S = 0.2
DATABASE_CHECK_S = 5.0
STOP_MARGIN_S = 5.0  # a worker takes up to the grace itself, to end its job


@dataclass(frozen=True)
class FirstTuning:
    """What to tune once everything is up."""

    problem: ProblemAnswer
    limits: JobLimits


@dataclass
class Installation:
    """The programs that `up` starts and stops."""

    devices: list[DeviceEntry]
    server: EmbeddedPostgres | None
    heard_before: dict[str, datetime] = field(default_factory=dict)  # last heartbeats of workers that are gone by now
    supervisor: Supervisor = field(init=False)

    def __post_init__(self) -> None:
        logs = settings().data_dir / "logs"
        programs = [Program("API", (*CLI, "serve"), logs / "api.log")]
        programs += [worker_program(device, logs) for device in self.devices]
        self.supervisor = Supervisor(programs)

    @property
    def url(self) -> str:
        """Where the API answers, as seen from this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings().host, settings().host)  # noqa: S104 - compared only
        return f"http://{host}:{settings().port}"

    def start(self) -> None:
        """Starts database, API and workers; returns when the API is ready."""
        self.start_database()
        self.heard_before = {one.uuid: one.heartbeat_at for one in LocalConnection().devices()}
        self.supervisor.start()
        with Client(self.url) as client:
            self._wait_for(client.is_ready, self.supervisor.programs[:1], READY_WITHIN_S)

    def start_database(self) -> None:
        """Starts the database and brings its tables up to date."""
        if self.server is not None and not self.server.running():
            note(f"starting PostgreSQL in {self.server.home}")
        database_url()
        schema.upgrade()

    def wait_for_worker(self, client: Client) -> DeviceAnswer:
        """Waits until a worker has registered since the start, and returns its device."""
        found: list[DeviceAnswer] = []

        def has_spoken() -> bool:
            fresh = {one.uuid: one for one in client.devices() if self.heard_before.get(one.uuid) != one.heartbeat_at}
            found.extend(fresh[device.uuid] for device in self.devices if device.uuid in fresh)
            return bool(found)

        self._wait_for(has_spoken, self.supervisor.programs[1:], WORKER_WITHIN_S)
        return found[0]

    def serve_until_stopped(self) -> None:
        """Restarts the database if it goes away. Ends only by KeyboardInterrupt, which Ctrl-C and SIGTERM raise."""
        while True:
            time.sleep(DATABASE_CHECK_S)
            if self.server is not None:
                self.server.ensure()

    def stop(self) -> None:
        """Stops API and workers, at once after a second Ctrl-C; the database stops when the command ends."""
        try:
            self.supervisor.stop(settings().stop_grace_s + STOP_MARGIN_S)
        except KeyboardInterrupt:
            self.supervisor.kill()

    def _wait_for(self, condition: Callable[[], bool], programs: list[Program], within_s: float) -> None:
        """Returns when the condition holds; raises CommandError with the end of a log if it never will."""
        deadline = time.monotonic() + within_s
        while not condition():
            dead = next((p for p in programs if p.deaths >= QUICK_DEATHS), None)
            if dead is not None or time.monotonic() > deadline:
                slow = dead or programs[0]
                what = "keeps crashing" if dead else f"is not ready after {within_s:.0f} s"
                raise CommandError(f"{slow.name} {what}. Its log, {slow.log}, ends: {slow.log_tail(3)}")
            time.sleep(CHECK_S)


def up(
    *,
    tune: Annotated[
        str | None, typer.Option("--tune", metavar="KERNEL", help="Tune this kernel when everything runs.")
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
    choose_address(host, port)
    first = _first_tuning(tune, shape, dtype, option, JobLimits(trials, seconds))
    require_free_port(settings().host, settings().port)
    installation = Installation(chosen_devices(device, every=True), embedded_server())
    with terminable():
        try:
            _run(installation, first, once=once)
        finally:
            note("stopping")
            installation.stop()


def _run(installation: Installation, first: FirstTuning | None, *, once: bool) -> None:
    installation.start()
    names = ", ".join(device.name for device in installation.devices)
    note(f"ready: {installation.url}  (workers: {names}; logs: {settings().data_dir / 'logs'})")
    with Client(installation.url) as client:
        device = installation.wait_for_worker(client) if first is not None or once else None
        if first is not None and device is not None:
            request = job_request(first.problem, first.limits, device_model=device.model)
            job = watch(client, submit(client, request))
            show_result(client, job, as_json=False, url=installation.url)
    if once:
        return
    # Being stopped is how serving ends, so it is no failure.
    with contextlib.suppress(KeyboardInterrupt):
        data.print(f"serving on {installation.url} until Ctrl-C")
        installation.serve_until_stopped()


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
    declared = kernel_named(kernel)
    sizes = parse_shape(shape or format_shape(FIRST_PROBLEM if kernel == "gemm" else dict(declared.example_shape)))
    problem = declared.problem(sizes, dtype, parse_options(options))
    asked = ProblemAnswer.model_validate(problem.as_json())
    job_request(asked, limits)
    return FirstTuning(asked, limits)
