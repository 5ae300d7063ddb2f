"""Whether an address can be listened on."""

from __future__ import annotations

import socket

from tilewright.service.cli.failure import CommandError


def require_free_port(host: str, port: int) -> None:
    """Raises CommandError, with the remedy, where the address cannot be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As uvicorn does: connections that are still closing are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError as error:
            raise CommandError(
                f"cannot listen on {host}:{port} ({error.strerror or error}). Is Tilewright running already? "
                f"Else choose another port: --port {port % 65535 + 1}"
            ) from error
