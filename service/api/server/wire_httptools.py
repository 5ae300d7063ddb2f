"""Connections with the parser httptools, which is written in C."""

from __future__ import annotations

from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tilewright.service.api.server.wire import MAX_HEAD_BYTES, Bounded


class HttptoolsConnection(Bounded, HttpToolsProtocol):
    """Adds two checks that httptools lacks: empty lines before a request, and the length of a head."""

    _head_bytes: int = 0
    _is_between: bool = True  # requests
    _is_in_head: bool = False

    def data_received(self, data: bytes) -> None:
        """Hands received bytes to the parser, and watches their number."""
        if self._is_between and data[:1] in b"\r\n":
            self.refuse(HTTPStatus.BAD_REQUEST)
            return
        super().data_received(data)
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._is_between, self._is_in_head, self._head_bytes = False, True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The last byte of its head."""
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The last byte of its body."""
        self._is_between = True
        super().on_message_complete()
