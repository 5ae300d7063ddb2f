"""The address that the API listens on: whether it is free."""

from __future__ import annotations

import errno
import socket

from tilewright.service.cli.failure import CommandError


def require_free_port(host: str, port: int) -> None:
    """Raises CommandError, with the remedy, if the address cannot be listened on."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        # As uvicorn does: connections that are still closing are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise CommandError(
                    f"cannot listen on {host}: it is not an address of this machine ({error.strerror}). "
                    "--host or TILEWRIGHT_HOST must be one, such as 127.0.0.1, or 0.0.0.0 for all"
                ) from error
            raise CommandError(
                f"cannot listen on {host}:{port} ({error.strerror or error}). Is Tilewright running already? "
                f"If not, choose another port: --port {port % 65535 + 1}"
            ) from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
