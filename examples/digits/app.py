"""A page to draw a digit on, which a network on tuned kernels recognises while it is drawn.

`python examples/digits/app.py` prints the page's address. With a GPU and PyTorch or CuPy the network runs there, else
on the CPU device (`--device cpu` asks for that).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.tuner.errors import TunerError
from tilewright.tuner.network import digits
from tilewright.tuner.network.launch import LaunchedNetwork
from tilewright.tuner.runtime import best

SIDE = 56
"""Rows and columns of a drawing as the page sends it."""
TOLERANCE = 1e-4
"""Largest accepted difference of a probability from NumPy's; rounding stays below 2e-6."""
LONGEST_BODY = 1 << 16
FILES = {"/": ("page.html", "text/html; charset=utf-8"), "/page.js": ("page.js", "text/javascript; charset=utf-8")}
POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:"

log = logging.getLogger("digits")


class WrongAnswerError(TunerError):
    """The kernels computed something else than NumPy."""


class Place:
    """Where the network runs: how a NumPy array gets there and how it comes back."""

    def __init__(self, name: str, bring: Callable[[Any], Any], fetch: Callable[[Any], Any]) -> None:
        self.name, self.bring, self.fetch = name, bring, fetch


def find_place(device: str) -> Place:
    """The CPU device, or the GPU of PyTorch or CuPy; "auto" takes a GPU if one of them has it."""
    if device in {"auto", "cuda"}:
        try:
            import torch  # noqa: PLC0415 - optional, like CuPy

            if torch.cuda.is_available():
                return Place(
                    torch.cuda.get_device_name(), lambda a: torch.from_numpy(a).cuda(), lambda a: a.cpu().numpy()
                )
        except ImportError:
            pass
        try:
            import cupy  # noqa: PLC0415

            if cupy.cuda.is_available():
                return Place(f"GPU {cupy.cuda.Device().id}", cupy.asarray, cupy.asnumpy)
        except ImportError:
            pass
        if device == "cuda":
            raise SystemExit(
                "There is no GPU that PyTorch or CuPy can use here. Leave --device out for the CPU device."
            )
    return Place("the CPU device", np.ascontiguousarray, np.asarray)


class Recogniser:
    """The trained network for one drawing at a time; any number of threads may ask."""

    def __init__(self, place: Place, choose: Callable[..., Callable[..., Any]] = best) -> None:
        self._place, self._network = place, digits.trained()
        self._launched = LaunchedNetwork(self._network, 1, place.bring, choose)
        self._turn = threading.Lock()

    def recognise(self, pixels: list[list[int]]) -> dict[str, Any]:
        """The digit, its probabilities and what computed them, as the page shows it.

        Raises ValueError for what is no drawing, and TunerError if the kernels fail or differ from NumPy.
        """
        ink = np.array(pixels, np.float32)
        if ink.shape != (SIDE, SIDE) or not ((ink >= 0) & (ink <= 255)).all():
            raise ValueError(f"pixels must be {SIDE} rows of {SIDE} numbers from 0 to 255")
        cells = digits.cells_of_drawing(ink / 255)
        if cells is None:
            raise ValueError("nothing is drawn: no pixel is above 127")
        x = digits.images(cells[None])
        with self._turn:
            began = time.perf_counter()
            on_device = self._place.bring(np.full((1, 10), np.nan, np.float32))
            self._launched(self._place.bring(x), on_device)
            probabilities = self._place.fetch(on_device)[0]
            pass_ms = (time.perf_counter() - began) * 1e3
        error = float(np.abs(probabilities - self._network.forward(x)[0]).max())
        if not error <= TOLERANCE:  # nor NaN
            raise WrongAnswerError(f"the kernels are wrong: a probability is {error:.2g} from NumPy's")
        return {
            "digit": int(probabilities.argmax()),
            "probabilities": [float(p) for p in probabilities],
            "cells": cells.astype(int).tolist(),
            "computed": f"{self._place.name}: {len(self._launched.launches)} kernels in {pass_ms:.3g} ms",
        }


class Handler(BaseHTTPRequestHandler):
    """The page, its script, and `POST /digits`."""

    def __init__(self, recogniser: Recogniser, *of_the_server: Any) -> None:
        self._recogniser = recogniser
        super().__init__(*of_the_server)

    def do_GET(self) -> None:
        """The page or its script."""
        if self.path not in FILES:
            self._say(404, {"detail": "There is no such page."})
            return
        name, kind = FILES[self.path]
        self._send(200, Path(__file__).with_name(name).read_bytes(), kind)

    def do_POST(self) -> None:
        """The answer to a drawing: `{"pixels": [[0, 255, …], …]}`."""
        length = self.headers.get("Content-Length", "")
        if self.path != "/digits" or not length.isdecimal() or int(length) > LONGEST_BODY:
            self._say(413, {"detail": f"Send a drawing of at most {LONGEST_BODY} bytes to /digits."})
            return
        try:
            self._say(200, self._recogniser.recognise(json.loads(self.rfile.read(int(length)))["pixels"]))
        except (ValueError, TypeError, KeyError) as error:
            self._say(422, {"detail": str(error)})
        except TunerError as error:
            log.exception("A drawing failed")
            self._say(500, {"detail": str(error)})

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name that it overrides
        """Requests are not logged."""

    def _say(self, status: int, answer: dict[str, Any]) -> None:
        self._send(status, json.dumps(answer).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", len(body)), ("Content-Security-Policy", POLICY)):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)


def server(recogniser: Recogniser, port: int) -> ThreadingHTTPServer:
    """The application on this machine's port; 0 takes a free one."""
    return ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, recogniser))


def main() -> None:
    """Serves until it is interrupted."""
    parser = argparse.ArgumentParser(description="Draw a digit; a network on tuned kernels recognises it.")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--port", type=int, default=8010)
    arguments = parser.parse_args()
    place = find_place(arguments.device)
    with server(Recogniser(place), arguments.port) as serving:
        print(f"Draw at http://127.0.0.1:{serving.server_port} (computed on {place.name})", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            serving.serve_forever()


if __name__ == "__main__":
    main()
