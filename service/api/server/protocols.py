"""The choice between the two HTTP parsers."""

from __future__ import annotations

from tilewright.service.api.server.wire import Bounded, H11Connection


def protocol() -> type[Bounded]:
    """The connection class with the fastest parser that is installed."""
    try:
        from tilewright.service.api.server.wire_httptools import HttptoolsConnection  # noqa: PLC0415
    except ImportError:
        return H11Connection
    return HttptoolsConnection
