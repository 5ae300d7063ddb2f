"""The application on a loopback port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from caller import new_app
from fastapi import FastAPI
from waiting import PATIENCE_S


@contextmanager
def serving(listening: socket.socket, make: Callable[[], FastAPI] = new_app) -> Iterator[str]:
    """Where the application answers inside the block; no maintenance, so that no schedule fires.

    The port stays open afterwards, for the application of another test.
    """
    listener, app = listening.dup(), make()
    config = uvicorn.Config(app, lifespan="off", log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(PATIENCE_S)
    listener.close()
    app.state.pool.close()
    assert not thread.is_alive()
