"""The real application on a loopback port, in a thread, on a database of the test's own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from caller import new_app
from factories import PROCESSOR, register_processor

from tilewright.service.client import Client
from tilewright.service.store.session import session_scope


class Server:
    """The application at `url`."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(new_app(), lifespan="off", log_level="error", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


@pytest.fixture
def server(configured: str) -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as made:
        yield made


@pytest.fixture
def registered(configured: str) -> str:
    """Slug of the only device model; its worker spoke just now."""
    with session_scope() as session:
        register_processor(session)
    return PROCESSOR.slug
