"""`serve` and `worker`: each of the programs alone."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import ssl
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.service import logs
from tilewright.service.cli.connection import prepare_database
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.local.machine import chosen_devices
from tilewright.service.cli.local.supervisor import Supervisor, end_with_supervisor, terminable, worker_program
from tilewright.service.cli.output import note
from tilewright.service.settings import settings

if TYPE_CHECKING:
    from tilewright.service.api.server.wire import Bounded

HostOption = Annotated[str | None, typer.Option("--host", help="Address to listen on. Default: TILEWRIGHT_HOST.")]
PortOption = Annotated[
    int | None, typer.Option("--port", min=1, max=65535, help="Port to listen on. Default: TILEWRIGHT_PORT.")
]


def choose_address(host: str | None, port: int | None) -> None:
    """Makes the given address the setting, for this process and those it starts."""
    given = {"TILEWRIGHT_HOST": host, "TILEWRIGHT_PORT": port}
    os.environ.update({name: str(value) for name, value in given.items() if value is not None})
    settings.cache_clear()


def serve(host: HostOption = None, port: PortOption = None) -> None:
    """Serve the API and the dashboard; needs no GPU.

    With TILEWRIGHT_TLS_CERTIFICATE by https.
    """
    end_with_supervisor()
    choose_address(host, port)
    prepare_database()
    if settings().kernel_folders:
        from tilewright.service.operations.registry import catalogue

        catalogue()  # one that cannot be read ends this command, and not the first request
    _require_usable_certificate(settings().tls_certificate, settings().tls_key)
    if settings().oidc_issuer and not find_spec("authlib"):
        raise CommandError("TILEWRIGHT_OIDC_ISSUER needs Authlib: pip install 'tilewright[service,oidc]'")
    listeners = bound(settings().host, settings().port)
    logs.configure()
    import uvicorn
    from uvicorn.config import STARTUP_FAILURE

    from tilewright.service.api.server import wire

    config = uvicorn.Config(
        "tilewright.service.app:create_app",
        factory=True,
        workers=1,
        http=_protocol(),
        loop="tilewright.service.api.server.wire:new_loop",
        ws="none",
        backlog=wire.backlog(),
        log_config=None,
        access_log=False,  # api/middleware/request_log.py writes the line of each request
        # Event streams end when their reader does; those still open must not hold up a stop.
        timeout_graceful_shutdown=5,
        proxy_headers=False,
        server_header=False,
        ssl_certfile=settings().tls_certificate,
        ssl_keyfile=settings().tls_key,
    )
    server = uvicorn.Server(config)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            server.run(wire.doors(listeners))
    except OSError as error:  # another program that had bound it as well listens already
        raise _cannot_listen(settings().host, settings().port, error) from error
    if not server.started:
        raise typer.Exit(STARTUP_FAILURE)


def _require_usable_certificate(certificate: Path | None, key: Path | None) -> None:
    if certificate is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        raise CommandError(
            f"the certificate {certificate} cannot be used: {error}. TILEWRIGHT_TLS_CERTIFICATE must be a PEM file "
            "with the chain, TILEWRIGHT_TLS_KEY one with its key"
        ) from error


def worker(
    device: Annotated[
        list[str] | None,
        typer.Option("--device", help="cuda:0, cpu or a UUID; repeatable. Default: the first GPU, otherwise cpu."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="One worker for each device of this machine.")] = False,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="With --device cpu: another CPU device with this name, to try out a fleet on one machine."
        ),
    ] = None,
) -> None:
    """Run jobs on a device of this machine. SIGTERM hands the running job back; SIGUSR1 finishes it first."""
    if name is not None:
        if device != ["cpu"] or everything:
            raise CommandError(
                "--name works only with one CPU device: tilewright worker --device cpu --name NAME", ExitCode.USAGE
            )
        from tilewright.tuner.devices.cpu.device import CPU_NAME_VARIABLE

        os.environ[CPU_NAME_VARIABLE] = name
    end_with_supervisor()
    # For the processes that it starts, a compiler for each core: each would have a thread of BLAS for each core too.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    prepare_database()
    chosen = chosen_devices(device, every=everything)
    if len(chosen) == 1:
        from tilewright.service.worker.main import run_worker

        raise typer.Exit(run_worker(chosen[0].name))
    logs = settings().data_dir / "logs"
    supervisor = Supervisor([worker_program(entry, logs) for entry in chosen])
    signal.signal(signal.SIGUSR1, lambda _number, _frame: supervisor.drain())
    note(f"{len(chosen)} workers are running; logs: {logs}")
    _supervise(supervisor, settings().stop_grace_s + 5.0)  # each takes up to the grace itself


def _supervise(supervisor: Supervisor, grace_s: float) -> None:
    """Keeps the programs running until SIGTERM, Ctrl-C or the end of a drain."""
    supervisor.start()
    try:
        with terminable():
            supervisor.drained.wait()
    except KeyboardInterrupt:
        note("stopping")
    finally:
        supervisor.stop(grace_s)


def require_free_port(host: str, port: int) -> None:
    """Raises CommandError, with the remedy, if the address cannot be listened on."""
    for one in bound(host, port):
        one.close()


def bound(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of the host, which do not listen yet; raises CommandError, with the remedy.

    `localhost` has two where IPv6 is there: on one alone, another program could have the other.
    """
    made: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM):
            try:
                made.append(_bound(socket.socket(family, kind), address))
            except OSError as error:
                if error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                    raise
                absent = error
        if absent and not made:
            raise absent
    except OSError as error:
        for one in made:
            one.close()
        raise _cannot_listen(host, port, error) from error
    return made


def _bound(made: socket.socket, address: Any) -> socket.socket:
    # Connections that are still closing are no hindrance.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if made.family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def _cannot_listen(host: str, port: int, error: OSError) -> CommandError:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return CommandError(
            f"cannot listen on {host}: it is not an address of this machine ({error.strerror}). "
            "--host or TILEWRIGHT_HOST must be one, such as 127.0.0.1, or 0.0.0.0 for all"
        )
    return CommandError(
        f"cannot listen on {host}:{port} ({error.strerror or error}). Is Tilewright running already? "
        f"If not, choose another port: --port {port % 65535 + 1}"
    )


def _protocol() -> type[Bounded]:
    """The connection class with the fastest HTTP parser that is installed."""
    from tilewright.service.api.server.wire import H11Connection

    try:
        from tilewright.service.api.server.wire_httptools import HttptoolsConnection
    except ImportError:
        return H11Connection
    return HttptoolsConnection
