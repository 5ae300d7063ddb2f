"""What the options of a command say is in its request to the API, each of them."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import unquote

import pytest

from tilewright.service.settings import settings

SHAPE = ("--shape", "m=40,n=50,k=60")
PAGE = {"--limit": ("17", "limit=17"), "--cursor": ("Zm9v", "cursor=Zm9v")}
OF_GEMM = {"--kernel": ("gemm", "kernel=gemm"), "--device-model": ("nvidia-t4", "device_model=nvidia-t4")}
COMMANDS = {
    ("jobs", "list"): PAGE | {"--state": ("failed", "state=failed")},
    ("jobs", "trials", "00000000-0000-0000-0000-000000000001"): PAGE,
    ("claims", "list"): PAGE | {"--state": ("open", "state=open")},
    ("results", "list"): OF_GEMM
    | {"--limit": ("17", "limit=17")}
    | {f"--{name}": (None, f"{name}=true") for name in ("stale", "improvable", "retracted")},
    ("results", "retract", "4"): {"--reason": ("was wrong", "was wrong")},
    ("demand", "list"): OF_GEMM | {"--limit": ("17", "limit=17")},
    ("demand", "tune"): OF_GEMM
    | {"--top": ("7", "top=7"), "--trials": ("17", '"trials":17'), "--priority": ("3", '"priority":3')},
    ("best", "gemm", *SHAPE, "--device-model", "nvidia-h100"): {
        "--dtype": ("float64", "dtype=float64"),
        "--option": ("trans_b=true", "options=trans_b=true"),
        "--device-model": ("nvidia-t4", "device_model=nvidia-t4"),
    },
    ("kernels", "source", "gemm"): {"--variant": ("wpt", "variant=wpt")},
}


@pytest.fixture(scope="module")
def requests():
    """What arrives at a server that knows nothing, whose address is the first."""
    said = []

    class Deaf(BaseHTTPRequestHandler):
        def do_GET(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            said.append(unquote(self.path) + (json.dumps(json.loads(body), separators=(",", ":")) if body else ""))
            answer = b'{"title": "Nothing is known here.", "status": 404}'
            self.send_response(404)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_): ...

    with HTTPServer(("127.0.0.1", 0), Deaf) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        said.append(f"http://127.0.0.1:{server.server_port}")
        yield said
        server.shutdown()


@pytest.mark.parametrize(("command", "option"), [(one, name) for one in COMMANDS for name in COMMANDS[one]])
def test_an_option_is_part_of_the_request(command, option, requests, run, monkeypatch):
    value, arrives = COMMANDS[command][option]
    monkeypatch.setenv("TILEWRIGHT_URL", requests[0])
    settings.cache_clear()
    try:
        ran = run(*command, option, *([] if value is None else [value]))
    finally:
        monkeypatch.undo()
        settings.cache_clear()
    assert arrives in requests[-1], ran.err
