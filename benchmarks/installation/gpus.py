"""One installation on this host, started for benchmarks/two_gpus.py: API, workers, database, a webhook's receiver."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.service.client import ApiProblemError, ApiUnreachableError, Client
from tilewright.service.store.embedded import EmbeddedPostgres

CLI = (sys.executable, "-m", "tilewright.service.cli")
READY_S = 60.0
SETTINGS = {
    "TILEWRIGHT_HEARTBEAT_S": "1",
    "TILEWRIGHT_STALLED_AFTER_S": "4",
    "TILEWRIGHT_WEBHOOK_PRIVATE_ADDRESSES": "true",
}


class Receiver(http.server.ThreadingHTTPServer):
    """Keeps what webhooks bring, with whether the signature is right."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receive)
        self.secret = b""
        self.messages: list[dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def take(self, headers: Any, body: bytes) -> None:
        """By the Standard Webhooks specification: HMAC-SHA256 over id, time and body."""
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = "v1," + base64.b64encode(hmac.new(self.secret, signed, hashlib.sha256).digest()).decode()
        is_signed = hmac.compare_digest(expected, headers["webhook-signature"])
        message = json.loads(body)
        self.messages.append({"type": message["type"], "job": message["data"]["id"], "signature_is_right": is_signed})


class _Receive(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        """Takes one message."""
        self.server.take(self.headers, self.rfile.read(int(self.headers["content-length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@dataclass
class Host:
    """The processes of one installation."""

    folder: Path
    environment: dict[str, str] = field(init=False)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.environment = {**os.environ, **SETTINGS, "TILEWRIGHT_DATA_DIR": str(self.folder)}
        self.server = EmbeddedPostgres(self.folder / "postgres")

    @property
    def url(self) -> str:
        """Where the API answers."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """The API, then a worker for every device."""
        self.server.ensure()
        self.spawn("serve", "--port", str(self.port))
        with Client(self.url) as client:
            wait_for(client.is_ready, READY_S)
        self.spawn("worker", "--all")

    def said(self, *words: str, **environment: str) -> tuple[int, str]:
        """Exit status and last line of a command that is expected to end."""
        run = subprocess.run(
            [*CLI, *words], env=self.environment | environment, capture_output=True, text=True, timeout=60, check=False
        )
        return run.returncode, (run.stderr.strip() or run.stdout.strip()).splitlines()[-1]

    def stop(self) -> None:
        """All of it."""
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(40)
            process.kill()
        self.server.stop()

    def spawn(self, *words: str) -> None:
        """Starts a command and leaves it running."""
        with (self.folder / "log").open("ab") as log:
            self.processes.append(subprocess.Popen([*CLI, *words], env=self.environment, stdout=log, stderr=log))


@contextmanager
def running(folder: Path) -> Iterator[Host]:
    """An installation; its log's end is shown when something goes wrong."""
    host = Host(folder)
    try:
        host.start()
        yield host
    except BaseException:
        for log in (folder / "log", *folder.glob("logs/*")):
            print(f"-- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-12:]), file=sys.stderr)
        raise
    finally:
        host.stop()


def wait_for(condition: Callable[[], Any], within_s: float) -> Any:
    """The condition's value once it is true; raises TimeoutError. An API that is away counts as not yet."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        with suppress(ApiUnreachableError, ApiProblemError):
            if answer := condition():
                return answer
        time.sleep(0.05)
    raise TimeoutError(f"the condition did not hold within {within_s:.0f} s")
