"""Connections, with either parser: what no two readers may take for different requests, and an end to waiting."""

import asyncio
import errno
import logging
import re
import resource
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest
import uvicorn
from waiting import PATIENCE_S, until

from tilewright.service.api.middleware.shares import Shares
from tilewright.service.api.server import wire
from tilewright.service.api.server.wire_httptools import HttptoolsConnection
from tilewright.service.errors import TooManyRequestsError
from tilewright.service.operations.caller import Caller, Scope

PARSERS = (wire.H11Connection, HttptoolsConnection)
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
LARGE = b"x" * (16 << 20)
gone = threading.Event()
let_go = threading.Event()
holding = []


async def echo(scope, receive, send):
    """Answers with what it read; /large with more than buffers hold, /unread early, /held when it is let go, and
    /waits after a refusal was held back.
    """
    body, more = b"", scope["path"] != "/unread"
    scope["tilewright.caller"] = Caller(dict(scope["headers"]).get(b"x-caller", b"").decode(), Scope.READ)
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    body = LARGE if scope["path"] == "/large" else body
    if scope["path"] == "/held":
        scope[wire.HELD] = "loud"
        holding.append(scope)
        await asyncio.to_thread(let_go.wait, PATIENCE_S)
    if scope["path"] == "/waits":
        error = TooManyRequestsError(1)
        error.held_s = 2 * PATIENCE_S
        holding.append(scope)
        await Shares().hold(scope, error)
        gone.set()
    head = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body[:-1], "more_body": True})
    await send({"type": "http.response.body", "body": body[-1:]})  # waits for the first part to be read
    if scope["path"] == "/large":
        gone.set()


async def rounds_until_accepted(parser, count):
    """The rounds of the running loop that pass until so many connections that came at once are accepted."""
    listener, rounds = socket.create_server(("127.0.0.1", 0), backlog=count), 0
    config = uvicorn.Config(echo, http=parser, lifespan="off", log_config=None, backlog=count)
    config.load()
    server, doors = uvicorn.Server(config), wire.doors([listener])
    server.lifespan = config.lifespan_class(config)
    with ExitStack() as opened:
        for _ in range(count):
            opened.enter_context(socket.create_connection(listener.getsockname()))
        await server.startup(doors)
        while len(server.server_state.connections) < count:
            rounds += 1
            await asyncio.sleep(0)
    await server.shutdown(doors)
    return rounds


Connect = Callable[[bytes], socket.socket]


@pytest.fixture(params=PARSERS)
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Opens connections to a real server with one of the parsers, and sends."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        echo,
        http=request.param,
        loop="tilewright.service.api.server.wire:new_loop",
        lifespan="off",
        log_config=None,
        timeout_keep_alive=2 * PATIENCE_S,  # ours counts
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": wire.doors([listener])}, daemon=True)
    thread.start()
    let_go.clear()
    holding.clear()
    with ExitStack() as opened:

        def connect(sent: bytes) -> socket.socket:
            made = opened.enter_context(socket.create_connection(listener.getsockname(), timeout=PATIENCE_S))
            made.sendall(sent)
            return made

        yield connect
        server.should_exit = True
        let_go.set()
    thread.join(PATIENCE_S)
    listener.close()
    assert not thread.is_alive()


def answers(connection: socket.socket) -> list[int]:
    """The statuses of all that comes until the server closes the connection."""
    said = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            said += part
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", said)]


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    "sent",
    [
        POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\n",
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        CHUNKED + b"1\na\r\n0\r\n\r\n",
        CHUNKED + b"1\r\na\n0\r\n\r\n",
        CHUNKED + b"0\n\r\n",
        CHUNKED + b"0\r\nX: y\n\r\n",
        CHUNKED + b"0\r\n\n",
    ],
)
def test_a_request_that_can_be_read_in_two_ways_is_refused_and_the_connection_closed(connect, sent):
    assert answers(connect(sent + GET)) == [400]


def test_the_same_byte_by_byte(connect):
    connection = connect(b"")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(BrokenPipeError, ConnectionResetError):  # it may refuse, and close, before the last byte is sent
        for byte in b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n":
            connection.sendall(bytes([byte]))
    assert answers(connection) in ([400], [])  # a reset for what came after the refusal may overtake it


def test_bodies_may_hold_any_bytes_and_requests_follow_each_other(connect):
    body = b"\n\r\n\n"
    chunked = CHUNKED + b"4\r\n" + body + b"\r\n0\r\n\r\n"
    last = POST + b"Connection: close\r\nContent-Length: 4\r\n\r\n" + body
    assert answers(connect(GET + chunked + last)) == [200, 200, 200]


def test_a_connection_is_kept_for_as_long_as_proxies_keep_theirs(connect, monkeypatch):
    assert wire.IDLE_S > 60, "nginx's and load balancers' default"
    monkeypatch.setattr(wire, "IDLE_S", 0.3)
    assert answers(connect(GET)) == [200]


def test_half_a_head_is_not_waited_for(connect, monkeypatch):
    monkeypatch.setattr(wire, "HEAD_S", 0.3)
    assert answers(connect(GET[:-2])) == [408]
    assert answers(connect(b"")) == []  # no refusal, which its client would take for a later request's


def test_a_head_that_comes_byte_by_byte_has_no_more_time(connect, monkeypatch):
    connection = connect(GET + b"GET / HTTP/1.1\r\nX: ")
    assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")  # a kept connection, not a new one
    monkeypatch.setattr(wire, "HEAD_S", 0.5)
    statuses: list[int] = []
    reading = threading.Thread(target=lambda: statuses.extend(answers(connection)))
    reading.start()
    while reading.is_alive():  # as long as the server takes it
        try:
            connection.sendall(b"x")
        except OSError:
            break
        reading.join(0.05)
    reading.join(PATIENCE_S)
    assert not reading.is_alive()
    assert statuses in ([408], [])  # or a reset came before the word was read


def test_a_body_that_nobody_reads_is_not_waited_for_either(connect, monkeypatch):
    connection = connect(b"POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n")
    assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
    monkeypatch.setattr(wire, "HEAD_S", 0.3)
    connection.sendall(b"x")
    assert answers(connection) == [408]


def test_an_answer_that_is_not_read_ends(connect, monkeypatch):
    monkeypatch.setattr(wire, "UNREAD_S", 0.3)
    gone.clear()
    connection = connect(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
    assert gone.wait(PATIENCE_S)
    received = 0
    with suppress(ConnectionResetError):
        while part := connection.recv(1 << 20):
            received += len(part)
    assert received < len(LARGE)


def test_a_head_may_not_be_longer_than_a_limit(connect):
    connection = connect(b"GET / HTTP/1.1\r\nX: ")
    with suppress(OSError):  # refused already
        for _ in range(100):
            connection.sendall(b"x" * 4096)
    assert answers(connection) in ([400], [431], [])


def test_a_flood_of_half_open_connections_leaves_room_for_a_request(connect, monkeypatch):
    monkeypatch.setattr(wire, "most_connections", lambda: 20)
    flood = [connect(GET[:-2]) for _ in range(60)]
    for _ in range(3):
        assert answers(connect(POST + b"Connection: close\r\nContent-Length: 2\r\n\r\nab")) == [200]
    ended = select.poll()
    for one in flood:
        ended.register(one, select.POLLRDHUP)
    while len(ended.poll(20_000)) < 40:  # without waiting for their time
        pass


def test_a_caller_with_many_connections_loses_its_own_and_nobody_elses(connect, monkeypatch):
    monkeypatch.setattr(wire, "most_connections", lambda: 6)
    quiet = connect(POST + b"X-Caller: quiet\r\nContent-Length: 2\r\n\r\nab")
    assert quiet.recv(4096)  # and is idle longest from here on
    for _ in range(12):
        assert connect(POST + b"X-Caller: loud\r\nContent-Length: 2\r\n\r\nab").recv(4096)
    quiet.sendall(POST + b"Connection: close\r\nContent-Length: 2\r\n\r\nab")
    assert answers(quiet)[-1] == 200


def test_requests_under_way_are_not_ended_for_others(connect, monkeypatch):
    monkeypatch.setattr(wire, "most_connections", lambda: 3)
    head = POST + b"Connection: close\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n"
    begun = [connect(head) for _ in range(3)]
    for one in begun:
        assert one.recv(4096).startswith(b"HTTP/1.1 100"), "the application reads the body"
    assert answers(connect(GET)) == [503]
    for one in begun:
        one.sendall(b"b")
        assert answers(one) == [200]


def test_connections_whose_refusals_are_held_back_have_a_limit_of_their_own(connect, monkeypatch):
    monkeypatch.setattr(wire, "most_connections", lambda: 3)
    ended = select.poll()
    for number in range(6):
        held = connect(b"GET /held HTTP/1.1\r\nHost: a\r\nX-Caller: loud\r\n\r\n")
        until(lambda number=number: len(holding) > number)
        ended.register(held, select.POLLRDHUP)
    assert ended.poll(0) == [], "their clients would come again at once"
    assert answers(connect(POST + b"Connection: close\r\nContent-Length: 1\r\n\r\na")) == [200]
    assert ended.poll(1e3 * PATIENCE_S)


def test_a_refusal_is_held_back_for_as_long_as_its_connection_lives(connect):
    gone.clear()
    waits = connect(b"GET /waits HTTP/1.1\r\nHost: a\r\n\r\n")
    until(lambda: holding)
    waits.close()
    assert gone.wait(PATIENCE_S)


@pytest.mark.parametrize("parser", PARSERS)
def test_many_connections_are_accepted_in_a_round_of_the_loop(parser):
    with asyncio.Runner(loop_factory=wire.new_loop) as runner:
        rounds = runner.run(rounds_until_accepted(parser, 64))
    assert rounds < 32, "a new one would wait for as many rounds as there are others before it"


def test_requests_that_are_sent_ahead_keep_no_connection(connect, monkeypatch):
    monkeypatch.setattr(wire, "most_connections", lambda: 1)
    monkeypatch.setattr(wire, "most_with_refused", lambda: 1)
    ahead = connect(b"GET /held HTTP/1.1\r\nHost: a\r\n\r\n" + GET)
    until(lambda: holding)
    assert answers(connect(POST + b"Connection: close\r\nContent-Length: 1\r\n\r\na")) == [200]
    assert answers(ahead) == []


def test_at_most_three_quarters_of_the_descriptors_are_for_connections(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _of: (256, 256))
    wire.most_connections.cache_clear()
    try:
        assert (wire.most_connections(), wire.most_with_refused(), wire.backlog()) == (128, 192, 64)
    finally:
        wire.most_connections.cache_clear()


def test_a_shortage_of_descriptors_is_told_once(caplog):
    loop = asyncio.new_event_loop()
    complain = wire.Complaints()
    context = {"message": "socket.accept() out of system resource", "exception": OSError(errno.EMFILE, "too many")}
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            complain(loop, context)
        complain(loop, {"message": "something else", "exception": ValueError("else")})
    loop.close()
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
