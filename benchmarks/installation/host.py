"""The installation for `make bench-service`: its own PostgreSQL in a temporary folder, and real processes around it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psycopg
from installation.fill import Filled, fill
from sqlalchemy.engine import make_url

from tilewright.service.store import schema
from tilewright.service.store import session as store_session
from tilewright.service.store.embedded import EmbeddedPostgres

T = TypeVar("T")
HERE = Path(__file__).parent
READY_S = 600.0
QUICK_STOP_S = 10.0
IN_MEMORY = re.compile(r"^tilewright_best_in_memory ([0-9.e+]+)$", re.MULTILINE)


@dataclass
class Program:
    """A process that was started, and where it answers if it does."""

    process: subprocess.Popen[bytes]
    port: int = 0

    def pss_mb(self) -> float:
        """Memory that it would give back: shared pages count in part (Linux)."""
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text(encoding="ascii")
        return int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1]) / 1024  # type: ignore[index]

    def rss_mb(self) -> float:
        """Memory that is mapped and present."""
        text = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(re.search(r"^VmRSS:\s+(\d+)", text, re.MULTILINE)[1]) / 1024  # type: ignore[index]

    def own_mb(self) -> float:
        """Memory that it allocated, whatever it shares with others: without the pages of files."""
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text(encoding="ascii")
        return sum(int(kb) for kb in re.findall(r"^(?:Anonymous|Swap):\s+(\d+)", text, re.MULTILINE)) / 1024

    def cpu_s(self, *, children: bool = False) -> float:
        """CPU seconds of all its threads so far, with those of its ended children where asked."""
        return cpu_s(self.process.pid, children=children)

    def get(self, path: str) -> httpx.Response:
        """Its answer to a question."""
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=30)

    def end(self) -> None:
        """Stops it, by force where it takes long."""
        self.process.terminate()
        try:
            self.process.wait(QUICK_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class Host:
    """The folder, its PostgreSQL, and everything that was started."""

    folder: Path
    server: EmbeddedPostgres = field(init=False)
    programs: list[Program] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = EmbeddedPostgres(self.folder / "postgres")

    def database(self, name: str, rows: int) -> tuple[str, Filled | None]:
        """The address of a new database with so many synthetic best configurations."""
        url = self.server.ensure()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        address = make_url(url).set(database=name).render_as_string(hide_password=False)
        schema.upgrade(address)
        filled = None
        if rows:
            store_session.configure(address)
            with store_session.session_scope() as session:
                filled = fill(session, rows)
            store_session.configure(None)
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        return address, filled

    def api(self, url: str, *, wait_for: str = "/ready", **settings: str) -> Program:
        """An API process as `tilewright serve` starts it, ready; with `wait_for="/health"` as soon as it answers."""
        port = free_port()
        program = self.start(url, "-m", "tilewright.service.cli", "serve", "--port", str(port), port=port, **settings)
        until(lambda: answers(program, wait_for), READY_S)
        return program

    def constant(self, body: bytes) -> Program:
        """The endpoint that the API is compared with, under one uvicorn worker too."""
        port, path = free_port(), self.folder / "body.json"
        path.write_bytes(body)
        words = ("-m", "uvicorn", "constant:app", "--app-dir", str(HERE), "--port", str(port))
        program = self.start("", *words, port=port, BENCH_BODY=str(path))
        until(lambda: answers(program, "/constant"), READY_S)
        return program

    def worker(self, url: str, **variables: str) -> Program:
        """A worker of the CPU device."""
        return self.start(url, "-m", "tilewright.service.worker.main", "cpu", **variables)

    def start(self, url: str, *words: str, port: int = 0, **variables: str) -> Program:
        """A Python process with this database; what it says goes to a file."""
        own = {"TILEWRIGHT_DATA_DIR": str(self.folder), "TILEWRIGHT_DATABASE_URL": url, "OPENBLAS_NUM_THREADS": "1"}
        with (self.folder / f"{len(self.programs)}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *words], env={**os.environ, **own, **variables}, stdout=log, stderr=log
            )
        program = Program(process, port)
        self.programs.append(program)
        return program

    def server_cpu_s(self) -> float:
        """CPU seconds of PostgreSQL so far, its living backends' too."""
        pid = int((self.folder / "postgres" / "data" / "postmaster.pid").read_text(encoding="utf-8").splitlines()[0])
        alive = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        total_s = cpu_s(pid, children=True)
        for child in alive:
            with suppress(OSError):  # it has just ended
                total_s += cpu_s(int(child))
        return total_s

    def stop(self) -> None:
        """Everything is gone afterwards."""
        for program in self.programs:
            with suppress(ProcessLookupError):
                program.end()
        self.server.stop()


@contextmanager
def host() -> Iterator[Host]:
    """A host in a temporary folder, which is removed."""
    with tempfile.TemporaryDirectory(prefix="tw-bench-", ignore_cleanup_errors=True) as folder:
        made = Host(Path(folder))
        try:
            yield made
        finally:
            made.stop()


def cpu_s(pid: int, *, children: bool = False) -> float:
    """CPU seconds of a process so far, with those of its ended children where asked (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11 : 15 if children else 13]) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(program: Program, path: str) -> bool:
    """Whether it says 200; ends the benchmark where it is not there any more."""
    if program.process.poll() is not None:
        sys.exit(f"{program.process.args!r} ended with {program.process.returncode}")
    try:
        return program.get(path).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def in_memory(program: Program) -> int:
    """Best configurations that the API process holds."""
    count = IN_MEMORY.search(program.get("/metrics").text)
    return int(float(count[1])) if count else 0


def until(holds: Callable[[], T | None], within_s: float, every_s: float = 0.05) -> T:
    """The value of `holds` once it is true; ends the benchmark where that takes too long."""
    deadline = time.monotonic() + within_s
    while not (answer := holds()):
        if time.monotonic() > deadline:
            sys.exit(f"gave up after {within_s:.0f} s")
        time.sleep(every_s)
    return answer


def load(job: Mapping[str, Any]) -> dict[str, Any]:
    """The measurements of the second process."""
    request = json.dumps(job).encode()
    done = subprocess.run([sys.executable, str(HERE / "load.py")], input=request, stdout=subprocess.PIPE, check=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def best_path(model: str, shape: Mapping[str, int], kernel: str = "gemm") -> str:
    """The question as our client sends it."""
    sizes = "%2C".join(f"{axis}%3D{size}" for axis, size in shape.items())
    return f"/v1/kernels/{kernel}/best?device_model={model}&shape={sizes}"
