"""The load of `make bench-service`, run as a process of its own: HTTP/1.1 over kept connections, as fast as asyncio.

Reads one request on stdin and writes what it measured to stdout, both JSON. Closed loop: `connections` callers, each
asks again as soon as it has its answer. Open loop (`per_second`): questions are sent when they are due, whatever became
of those before, and a latency counts from the moment that the question was due.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self

Job = dict[str, Any]
KEPT = 16
NO_ANSWER = 0
"""In the place of a status; such a question has no latency."""
UNKNOWN_SIZES = (1, 8192)
"""Of service_fill too: one of its few shapes is drawn by accident in one of millions of questions."""


@dataclass
class Connection:
    """One kept connection: a question at a time."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, port: int) -> Self:
        """To a server of this machine."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body."""
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        place = head.lower().find(b"content-length:")
        length = int(head[place + 15 : head.index(b"\r", place)]) if place >= 0 else 0
        body = await self.reader.readexactly(length) if length else b""
        return int(head[9:12]), body

    def close(self) -> None:
        """At once."""
        self.writer.close()


@dataclass
class Tally:
    """The answers, counted."""

    statuses: Counter[int] = field(default_factory=Counter)
    matches: Counter[str] = field(default_factory=Counter)
    latencies_ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)  # how long after its due time a question was sent

    def note(self, status: int, body: bytes, latency_ms: float, late_ms: float = 0.0) -> None:
        """Counts one answer."""
        self.statuses[status] += 1
        if body.startswith(b'{"match":"'):
            self.matches[body[10 : body.index(b'"', 10)].decode()] += 1
        self.latencies_ms.append(latency_ms)
        self.late_ms.append(late_ms)


def questions(job: Job) -> Iterator[bytes]:
    """Requests without an end: one path, any of `paths`, or `best` of rows drawn uniformly, some of unknown shapes."""
    key = f"Authorization: Bearer {job['key']}\r\n" if "key" in job else ""
    host = f"Host: 127.0.0.1:{job['port']}\r\n{key}\r\n"
    if "path" in job:
        request = f"GET {job['path']} HTTP/1.1\r\n{host}".encode()
        yield from (request for _ in count())
    chance = random.Random(job.get("seed", 0))
    while "paths" in job:
        yield f"GET {chance.choice(job['paths'])} HTTP/1.1\r\n{host}".encode()
    models, shapes = job["models"], job["shapes"]
    axes = list(shapes[0])
    while True:
        shape = chance.choice(shapes)
        if chance.random() < job["unknown_share"]:
            shape = {axis: chance.randint(*UNKNOWN_SIZES) for axis in axes}
        sizes = "%2C".join(f"{axis}%3D{shape[axis]}" for axis in axes)
        path = f"/v1/kernels/{job['kernel']}/best?device_model={chance.choice(models)}&shape={sizes}"
        yield f"GET {path} HTTP/1.1\r\n{host}".encode()


async def closed_loop(job: Job, tally: Tally) -> None:
    """`connections` callers for `seconds`."""
    requests, until = questions(job), time.perf_counter() + job["seconds"]

    async def caller() -> None:
        connection = await Connection.open(job["port"])
        while (began := time.perf_counter()) < until:
            status, body = await connection.ask(next(requests))
            tally.note(status, body, 1e3 * (time.perf_counter() - began))
        connection.close()

    await asyncio.gather(*(caller() for _ in range(job["connections"])))


async def open_loop(job: Job, tally: Tally) -> None:
    """`per_second` questions at random moments (exponential gaps) for `seconds`."""
    requests, chance = questions(job), random.Random(job.get("seed", 0))
    idle = [await Connection.open(job["port"]) for _ in range(KEPT)]

    async def one(request: bytes, due: float) -> None:
        sent = time.perf_counter()
        # A kept connection may have ended: the server closes idle ones for others, and those that are idle for long.
        for kept in ([idle.pop()] if idle else []), []:
            try:
                connection = kept[0] if kept else await Connection.open(job["port"])
            except OSError:  # a host that cannot keep up refuses connections
                continue
            try:
                status, body = await connection.ask(request)
            except (asyncio.IncompleteReadError, OSError):
                connection.close()
                continue
            tally.note(status, body, 1e3 * (time.perf_counter() - due), 1e3 * (sent - due))
            if len(idle) < KEPT:  # after a stall there are more than will be used
                idle.append(connection)
            else:
                connection.close()
            return
        tally.statuses[NO_ANSWER] += 1

    begun = due = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        while due - begun < job["seconds"]:
            due += chance.expovariate(job["per_second"])
            request = next(requests)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one(request, due))
    for connection in idle:
        connection.close()


def share(values: Sequence[float], part: float) -> float:
    """The smallest value that so large a part of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


async def run(job: Job) -> Job:
    """What was measured."""
    tally, cpu_s, begun = Tally(), time.process_time(), time.perf_counter()
    await (open_loop if "per_second" in job else closed_loop)(job, tally)
    wall_s = time.perf_counter() - begun
    return {
        "per_second": len(tally.latencies_ms) / wall_s,
        "answers": len(tally.latencies_ms),
        "p50_ms": share(tally.latencies_ms, 0.5),
        "p99_ms": share(tally.latencies_ms, 0.99),
        "worst_ms": max(tally.latencies_ms),
        "late_p99_ms": share(tally.late_ms, 0.99),
        "statuses": {str(status): times for status, times in tally.statuses.items()},
        "matches": dict(tally.matches),
        "generator_cpu_share": (time.process_time() - cpu_s) / wall_s,
    }


if __name__ == "__main__":
    json.dump(asyncio.run(run(json.load(sys.stdin))), sys.stdout)
