"""The server's connections: strict HTTP/1.1 with either parser, limits on time and number.

uvicorn closes a connection after some idle seconds, but a byte now and then keeps it open for ever; and h11 accepts a
bare LF as the end of a line, which a proxy in front may not (request smuggling).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import re
import resource
import socket
import time
from collections.abc import Sequence
from functools import cache
from http import HTTPStatus
from typing import Any

import h11
from h11._connection import DEFAULT_MAX_INCOMPLETE_EVENT_SIZE
from uvicorn.protocols.http.h11_impl import H11Protocol

from tilewright.service.settings import settings

logger = logging.getLogger(__name__)

HEAD_S = 10.0
"""How long a connection may take to send the head of a request, and a refused client to send its unread body."""

IDLE_S = 75.0
"""How long a kept connection may be idle: longer than proxies keep theirs (60 s in nginx and in load balancers), since
a request that is sent while this side closes the connection is lost, and a proxy repeats no POST. Where there are too
many connections, idle ones end sooner."""

UNREAD_S = 60.0
"""How long a client may leave an answer unread that does not fit into the buffers."""

MAX_HEAD_BYTES = 1 << 16  # h11 takes 16 KiB; httptools would take any

SAID_EVERY_S = 60.0
"""How often a shortage of descriptors is logged; the event loop meets it at every attempt."""

HELD = "tilewright.held"
"""Under this name a request's scope says for which caller it is held back: its connection may be closed for another."""

GONE = "tilewright.gone"
"""Under this name the scope of a request that is held back has a future: it is done when the connection has ended."""

DOORS = 16
"""How often the listening socket is watched: uvloop takes one connection from each in a round, so that a new one would
wait for as many rounds as there are others before it."""

SAMPLE = 64
"""Connections that are looked at to close one: enough to find the caller with most of them."""

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_BARE_LF = re.compile(rb"(?<!\r)\n")


@cache
def most_connections() -> int:
    """The limit of the settings, but at most half of the file descriptors: database and log need some too."""
    return min(settings().max_connections, _descriptors() // 2)


def most_with_refused() -> int:
    """The limit plus connections whose refusal is held back: their clients would come again if closed early."""
    return min(2 * most_connections(), _descriptors() * 3 // 4)


def doors(listeners: Sequence[socket.socket]) -> list[socket.socket]:
    """The listening sockets, each as often as it is to be watched."""
    return [*listeners, *(one.dup() for one in listeners for _ in range(DOORS - 1))]


def backlog() -> int:
    """Connections that may wait to be accepted: all are accepted before any is closed for another."""
    return min(2048, _descriptors() // 4)


def _descriptors() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Bounded(asyncio.Protocol):
    """Mixin for uvicorn's protocols: closes connections that wait too long, or longest of too many."""

    # Of uvicorn's protocols.
    loop: Any
    transport: Any
    cycle: Any
    connections: Any
    scope: Any
    pipeline: Any = ()
    timeout_keep_alive: Any

    _is_unused: bool = True  # nothing has come yet
    _begun_s: float = 0.0
    _wait: asyncio.TimerHandle | None = None  # for a head; None while a request is answered, or none has begun
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accepts the connection; if there are too many, another one is closed for it."""
        super().connection_made(transport)
        self.timeout_keep_alive = IDLE_S
        self._await_head()
        if len(self.connections) > most_connections() and not _make_room(self.connections, self):
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE)

    def data_received(self, data: bytes) -> None:
        """Reads on; a request whose head is not complete has to be so in time."""
        self._is_unused = False
        super().data_received(data)
        if self.is_busy():
            self._stop_waiting()
        elif self._wait is None and not self.transport.is_closing():
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the timers, and ends the wait of a refusal that is held back."""
        self._stop_waiting()
        self.resume_writing()
        gone = (self.scope or {}).get(GONE)
        if gone is not None and not gone.done():
            gone.set_result(None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Starts the time UNREAD_S in which a client that reads too slowly must catch up."""
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
            super().resume_writing()

    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def is_needed(self) -> bool:
        """Whether an answer is being made that is not held back; a client with further requests can repeat them."""
        return self.is_busy() and not (self.pipeline or HELD in self.scope)

    def is_held(self) -> bool:
        """Whether the refusal of its only request is held back."""
        return self.is_busy() and not self.pipeline and HELD in self.scope

    def caller(self) -> str:
        """The name of the caller of the last request; empty before the first."""
        scope = self.scope or {}
        caller = scope.get("tilewright.caller")
        return str(caller.name if caller else scope.get(HELD, ""))

    def idle_since(self) -> float:
        """The time of the loop's clock since when the connection waits for a head; now, if it does not wait."""
        return self._begun_s if self._wait is not None else self.loop.time()

    def refuse(self, status: HTTPStatus) -> None:
        """Answers with a bare status and closes the connection, without the application."""
        if not self.transport.is_closing():
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            self.transport.write(head.encode())
            self.transport.close()

    def _await_head(self) -> None:
        self._begun_s = self.loop.time()
        self._wait = self.loop.call_later(HEAD_S, self._give_up)

    def _give_up(self) -> None:
        if self._is_unused:  # a client that opens connections ahead would take a refusal for its later request's
            self.transport.close()
        else:
            self.refuse(HTTPStatus.REQUEST_TIMEOUT)

    def _stop_waiting(self) -> None:
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None


def _make_room(connections: set[Bounded], newest: Bounded) -> bool:
    """Closes an idle connection, if there is one: the caller's with most of them, idle for longest.

    A flood of connections ends itself so, and one caller cannot take the connections of others. One whose refusal is
    held back is left alone up to a limit of its own.
    """
    idle: dict[str, list[Bounded]] = {}
    for one in random.sample(tuple(connections), min(SAMPLE, len(connections))):
        if one is not newest and not one.is_needed():
            idle.setdefault(one.caller(), []).append(one)
    if not idle:
        return False
    most = max(idle.values(), key=len)
    longest = min(most, key=Bounded.idle_since)
    if longest.is_held() and len(connections) <= most_with_refused():
        return True
    connections.discard(longest)  # at once: it hears of its end only after the others that have just come
    longest.transport.abort()
    return True


class StrictH11(h11.Connection):
    """h11 made strict: refuses two body lengths in one request, and lines that end in a bare LF."""

    def next_event(self) -> Any:
        """The next event; raises RemoteProtocolError for a request that two parsers could read differently."""
        before = self.trailing_data[0]
        event = super().next_event()
        if isinstance(event, h11.Request | h11.EndOfMessage):
            read = before[: len(before) - len(self.trailing_data[0])]
            names = {name for name, _ in event.headers}
            if _BARE_LF.search(read) or names >= {b"content-length", b"transfer-encoding"}:
                raise h11.RemoteProtocolError("ambiguous request")
        return event


class H11Connection(Bounded, H11Protocol):
    """A connection read by h11, which is pure Python."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = StrictH11(h11.SERVER, DEFAULT_MAX_INCOMPLETE_EVENT_SIZE)


def new_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop that is installed, which logs a shortage of descriptors once a minute."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    loop.set_exception_handler(Complaints())
    return loop


class Complaints:
    """Handles errors outside of any request."""

    def __init__(self) -> None:
        self._said_s = -SAID_EVERY_S

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Logs the error; a shortage at most every SAID_EVERY_S."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _SHORTAGES):
            loop.default_exception_handler(context)
        elif time.monotonic() - self._said_s >= SAID_EVERY_S:
            self._said_s = time.monotonic()
            logger.warning(
                "New connections have to wait: %s. Raise the limit of open files: LimitNOFILE in docs/operating.md.",
                error.strerror,
            )
