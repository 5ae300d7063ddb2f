"""`serve` and `worker`: the two long-running halves, one at a time."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Annotated

import typer
import uvicorn

from tilewright.service import logs
from tilewright.service.api import wire
from tilewright.service.cli.connection import prepare_database
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.machine import chosen_devices
from tilewright.service.cli.output import note
from tilewright.service.cli.supervisor import Supervisor, end_with_supervisor, terminable, worker_program
from tilewright.service.settings import settings
from tilewright.tuner.cpu import CPU_NAME_VARIABLE

HostOption = Annotated[str | None, typer.Option("--host", help="Address to listen on, for TILEWRIGHT_HOST.")]
PortOption = Annotated[
    int | None, typer.Option("--port", min=1, max=65535, help="Port to listen on, for TILEWRIGHT_PORT.")
]


def choose_address(host: str | None, port: int | None) -> None:
    """Makes an address from the command line a setting, of this process and of those it starts."""
    given = {"TILEWRIGHT_HOST": host, "TILEWRIGHT_PORT": None if port is None else str(port)}
    os.environ.update({name: value for name, value in given.items() if value is not None})
    settings.cache_clear()


def serve(host: HostOption = None, port: PortOption = None) -> None:
    """Serve the API and the dashboard; needs no GPU."""
    end_with_supervisor()
    choose_address(host, port)
    prepare_database()
    logs.configure()
    with suppress(KeyboardInterrupt):  # uvicorn's word for having been stopped, in order
        uvicorn.run(
            "tilewright.service.app:create_app",
            factory=True,
            host=settings().host,
            port=settings().port,
            http=wire.protocol(),
            loop="tilewright.service.api.wire:new_loop",
            ws="none",
            backlog=wire.backlog(),
            log_config=None,
            access_log=False,  # api/request_log.py writes the line of each request
            # Event streams end when their reader does; those still open must not hold up a stop.
            timeout_graceful_shutdown=5,
            proxy_headers=False,
            server_header=False,
        )


def worker(
    device: Annotated[
        list[str] | None,
        typer.Option("--device", help="cuda:0, cpu or a UUID. Default: the first GPU, else cpu."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="One worker for each device of this machine.")] = False,
    name: Annotated[
        str | None,
        typer.Option("--name", help="With --device cpu: a further CPU device of this name, to rehearse a fleet."),
    ] = None,
) -> None:
    """Run jobs on a device of this machine until SIGTERM (its job is handed back) or SIGUSR1 (it ends first)."""
    if name is not None:
        if device != ["cpu"] or everything:
            raise CommandError(
                "--name is for one CPU device: tilewright worker --device cpu --name NAME", ExitCode.USAGE
            )
        os.environ[CPU_NAME_VARIABLE] = name
    end_with_supervisor()
    # For the processes that it starts, a compiler for each core: each would have a thread of BLAS for each core too.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    prepare_database()
    chosen = chosen_devices(device, every=everything)
    if len(chosen) == 1:
        # Here, because the job engine takes half a second to import, and whoever asks for a list needs none.
        from tilewright.service.worker.main import run_worker  # noqa: PLC0415

        raise typer.Exit(run_worker(chosen[0].name))
    logs = settings().data_dir / "logs"
    supervisor = Supervisor([worker_program(entry, logs) for entry in chosen])
    supervisor.start()
    signal.signal(signal.SIGUSR1, lambda _number, _frame: supervisor.drain())
    note(f"{len(chosen)} workers are running; logs: {logs}")
    try:
        with terminable():
            supervisor.drained.wait()
    except KeyboardInterrupt:
        note("stopping")
    finally:
        supervisor.stop(settings().stop_grace_s + 5.0)  # each takes up to the grace itself
