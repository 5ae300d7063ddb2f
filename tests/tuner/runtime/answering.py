"""A service on loopback with one reply, and what is warned of meanwhile."""

import http.server
import json
import threading
import warnings
from contextlib import contextmanager

from made_bundles import GEMM


def answer(width=16, match="predicted", **changes):
    """What the service says, as far as it is read."""
    found = {
        "variant": "tiled",
        "configuration": {"TILE_WIDTH": width},
        "match": match,
        "time_ms": 0.25,
        "library": None,
        "source_hash": GEMM.source_hash("tiled"),
    }
    return found | changes


@contextmanager
def serving(reply, status=200):
    """A server on loopback that sends the same reply to every question; yields its address and what it was asked."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, dict(self.headers)))
            body = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def warned():
    """Collects category and text of each warning that the block gives."""
    said = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
    said += [(w.category, str(w.message)) for w in caught]
