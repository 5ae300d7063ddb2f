"""The attacking client of `make bench-attacks`, a process of its own: reads one job on stdin, says in a line that it
begins, and writes its tally.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from installation.host import best_path

Request = tuple[str, str, Any]
"""Method, path and body."""

MODEL = "synthetic-02"
BEST = "(a tuned problem)"
ZEROS = {"shapes": [0] * 250_000}


def _shape(chance: random.Random) -> dict[str, int]:
    return {axis: chance.randint(1, 8192) for axis in "mnk"}


def _get(*paths: str) -> Callable[[random.Random], Request]:
    return lambda chance: ("GET", chance.choice(paths), None)


def _post(path: str, of: Callable[[random.Random], Any], **fixed: Any) -> Callable[[random.Random], Request]:
    return lambda chance: ("POST", path, {"device_model": MODEL, **fixed, **of(chance)})


def _problem(chance: random.Random) -> dict[str, Any]:
    return {"kernel": "gemm", "shape": _shape(chance)}


def _lie(chance: random.Random) -> Request:
    """What says that results are wrong, or others: a claim, a job with its end in it, a retraction, an import."""
    invented = {"best_ms": 1e-6, "state": "done", "result": {"time_ms": 1e-6}}
    return chance.choice(
        (
            ("POST", "/v1/claims", {"device_model": MODEL, **_problem(chance), **LIE}),
            ("POST", "/v1/claims", {"device_model": MODEL, **_problem(chance), **LIE, "state": "confirmed"}),
            ("POST", "/v1/jobs", {"device_model": MODEL, **_problem(chance), **invented}),
            ("POST", f"/v1/results/{chance.randint(1, 1000)}/retract", {"reason": "a lie"}),
            ("POST", "/v1/import", {"format": "tilewright", "results": [invented]}),
        )
    )


def _schedule(chance: random.Random) -> dict[str, Any]:
    return {"name": str(chance.random()), "problems": [_problem(chance)]}


BATCH = "/v1/kernels/gemm/best:batch"
LIE = {"driver": "580.0", "seen": "a lie", "variant": "naive", "configuration": {}, "source_hash": 64 * "0"}
LISTS = (
    "/v1/results?limit=200",
    "/v1/comparisons?limit=200",
    "/v1/export",
    "/v1/jobs?limit=200",
    "/v1/demand?limit=200",
)
PAGES = ("/", "/attention", "/demand", "/jobs", "/fleet", "/access", "/kernels/gemm", "/kernels/gemm/matrix")
ATTACKS: dict[str, tuple[int, bool, Callable[[random.Random], Request]]] = {
    "flood": (400, False, _get(BEST)),
    "reconnect": (400, True, _get(BEST)),
    "many connections": (1200, False, _get(BEST)),
    "batches": (45, False, _post(BATCH, lambda chance: {"shapes": [_shape(chance) for _ in range(1000)]})),
    "zeros": (100, False, _post(BATCH, lambda _: ZEROS)),
    "unknown": (400, False, lambda chance: ("GET", best_path(MODEL, _shape(chance)), None)),
    "pages": (100, False, _get(*PAGES)),
    "lists": (100, False, _get(*LISTS)),
    "jobs": (100, False, _post("/v1/jobs", _problem)),
    "priorities": (100, False, _post("/v1/jobs", _problem, priority=9)),
    "schedules": (100, False, _post("/v1/schedules", _schedule, cron="* * * * * *", budget={"trials": 1})),
    "claims": (100, False, _post("/v1/claims", _problem, **LIE)),
    "lies": (100, False, _lie),
    "imports": (20, False, _post("/v1/import", lambda _: ZEROS)),
    "missing": (400, False, lambda chance: ("GET", f"/v1/jobs/{chance.random()}", None)),
}
"""Connections, whether each request opens a new one, and the next request."""


async def attack(job: dict[str, Any]) -> dict[int, int]:
    """Sends one kind of request for some seconds; the number of answers by status, 0 where there was none."""
    connections, is_new, make = ATTACKS[job["name"]]
    until, statuses = time.perf_counter() + job["seconds"], Counter[int]()

    async def caller(seed: int) -> None:
        chance, writer = random.Random(seed), None
        while time.perf_counter() < until:
            try:
                if writer is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", job["port"], limit=1 << 22)
                method, path, body = make(chance)
                path = job["best"] if path == BEST else path
                content = b"" if body is None else json.dumps(body).encode()
                head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {job['key']}\r\n"
                kind = f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n" if content else ""
                writer.write(f"{head}{kind}\r\n".encode() + content)
                answer = await reader.readuntil(b"\r\n\r\n")
                statuses[int(answer[9:12])] += 1
                low = answer.lower()
                place = low.find(b"content-length:")
                if place >= 0:
                    await reader.readexactly(int(answer[place + 15 : answer.index(b"\r", place)]))
                if is_new or place < 0 or b"connection: close" in low:
                    writer.close()
                    writer = None
            except (OSError, asyncio.IncompleteReadError):
                statuses[0] += 1
                writer = None
                await asyncio.sleep(0.01)

    await asyncio.gather(*(caller(seed) for seed in range(connections)))
    return dict(statuses)


if __name__ == "__main__":
    job = json.load(sys.stdin)
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    json.dump(asyncio.run(attack(job)), sys.stdout)
