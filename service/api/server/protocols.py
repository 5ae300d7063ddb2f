"""Which of the two connections reads requests on this machine."""

from __future__ import annotations

from tilewright.service.api.server.wire import Bounded, H11Connection


def protocol() -> type[Bounded]:
    """The faster one that this machine has."""
    try:
        from tilewright.service.api.server.wire_httptools import HttptoolsConnection  # noqa: PLC0415
    except ImportError:
        return H11Connection
    return HttptoolsConnection
