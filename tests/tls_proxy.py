"""A proxy as people put in front: it speaks TLS outside and plain HTTP to the service, one exchange a connection."""

from __future__ import annotations

import http.client
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_OF_ONE_HOP = frozenset({"connection", "keep-alive", "transfer-encoding"})


def certificate_of(name: str, folder: Path) -> Path:
    """A certificate of that name signed by itself, and its key, in one file."""
    file = folder / f"{name}.pem"
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-keyout", "-"),
        ],
        check=True,
        capture_output=True,
    )
    file.write_bytes(made.stdout)
    return file


@contextmanager
def tls_proxy(certificate: Path) -> Iterator[Proxy]:
    """A running proxy on a loopback port; set its `behind` before the first request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with Proxy(("127.0.0.1", 0), _Exchange) as proxy:
        proxy.socket = context.wrap_socket(proxy.socket, server_side=True)
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()


class Proxy(ThreadingHTTPServer):
    """The listener, and the first lines of the requests that came through it."""

    daemon_threads = True
    behind = ("127.0.0.1", 0)

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.seen: list[str] = []

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.server_address[1]

    def handle_error(self, *_arguments: object) -> None:
        """A browser that hangs up is nothing to tell of."""


class _Exchange(BaseHTTPRequestHandler):
    server: Proxy

    def forward(self) -> None:
        """Hands one request on, with its Host and where it came from, and the answer back."""
        self.server.seen.append(self.requestline)
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_HOP}
        with closing(http.client.HTTPConnection(*self.server.behind, timeout=30)) as inner:
            inner.request(self.command, self.path, body, headers | {"X-Forwarded-For": self.client_address[0]})
            answer = inner.getresponse()
            content = answer.read()
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in {*_OF_ONE_HOP, "content-length"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = forward  # noqa: N815 - http.server's names

    def log_message(self, *_arguments: object) -> None:
        """Nothing to standard error."""
