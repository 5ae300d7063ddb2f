"""A server that is asked to stop answers what it has begun, takes nothing new, and writes down what it counted."""

from __future__ import annotations

import json
import socket

import httpx
from factories import Rows
from fleet import free_port
from sqlalchemy import select
from waiting import PATIENCE_S

from tilewright.service.client import Client
from tilewright.service.store import models

BODY = json.dumps({"shapes": [{"m": 100, "n": 100, "k": 100}], "device_model": "nvidia-h200"}).encode()
HEAD = (
    f"POST /v1/kernels/gemm/best:batch HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(BODY)}\r\nConnection: close\r\n\r\n"
).encode()


def refuses_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_stopping_server_answers_what_it_has_begun(fleet):
    with fleet.session() as session:
        Rows(session).best()
    port = free_port()
    process = fleet.start_api(port, TILEWRIGHT_LOG_FORMAT="json")
    with Client(f"http://127.0.0.1:{port}") as client:
        fleet.until(client.is_ready)
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as begun:
        begun.sendall(HEAD + BODY[:10])
        assert (
            httpx.get(f"http://127.0.0.1:{port}/health", timeout=PATIENCE_S).status_code == 200
        )  # the first has arrived
        process.terminate()
        fleet.until(lambda: refuses_connections(port))
        begun.sendall(BODY[10:])
        answer = begun.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200")
    assert process.wait(PATIENCE_S) == 0
    with fleet.session() as session:
        assert session.scalars(select(models.Demand.count)).all() == [1]
    lines = (fleet.folder / "api.log").read_text().splitlines()
    assert [json.loads(line)["status"] for line in lines if "best:batch" in line] == [200]
    assert not any("exception" in json.loads(line) for line in lines)
