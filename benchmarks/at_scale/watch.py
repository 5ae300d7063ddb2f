"""What PostgreSQL and the API take while they work: sizes, dead rows, memory, CPU time, slow statements."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import psycopg
from installation.host import Host, Program, cpu_s

SIZES = """
SELECT relname, pg_table_size(relid), pg_indexes_size(relid), n_live_tup, n_dead_tup, autovacuum_count, seq_scan,
    seq_tup_read
FROM pg_stat_user_tables ORDER BY pg_total_relation_size(relid) DESC LIMIT 12
"""
COLUMNS = ("table_bytes", "index_bytes", "rows", "dead_rows", "autovacuums", "sequential_scans", "rows_read_by_them")
WAITS = """
SELECT coalesce(wait_event_type || ':' || wait_event, 'CPU') FROM pg_stat_activity
WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()
"""
COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
SLOW = re.compile(r"duration: ([0-9.]+) ms  (?:statement|execute[^:]*): (.*)")
VACUUM = re.compile(r'automatic vacuum of table "[^"]*?([a-z_]+)"')
VACUUM_TOOK = re.compile(r"elapsed: ([0-9.]+) s")
PAGES = (
    "/", "/jobs", "/fleet", "/results", "/attention", "/demand", "/history", "/compare", "/kernels", "/kernels/gemm",
    "/schedules", "/v1/jobs?limit=50", "/v1/results?limit=50", "/v1/devices", "/v1/device-models",
    "/v1/demand?limit=50", "/v1/audit?limit=50", "/metrics",
)  # fmt: skip
PAGE_S = 30.0


def tables(url: str) -> dict[str, dict[str, int]]:
    """The largest tables."""
    with psycopg.connect(url, autocommit=True) as connection:
        return {row[0]: dict(zip(COLUMNS, row[1:], strict=True)) for row in connection.execute(SIZES)}


def postmaster(host: Host) -> int:
    """The server's process id."""
    return int((host.folder / "postgres" / "data" / "postmaster.pid").read_text(encoding="utf-8").splitlines()[0])


def server_memory(host: Host) -> dict[str, float]:
    """MiB of all of PostgreSQL's processes (PSS: what they share counts once), and how many they are."""
    parent = postmaster(host)
    pids = [parent, *map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split())]
    total = own = 0
    for pid in pids:
        with suppress(OSError, TypeError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
            total += int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1])  # type: ignore[index]
            own += sum(int(kb) for kb in re.findall(r"^Private_Dirty:\s+(\d+)", text, re.MULTILINE))
    return {"pss_mib": round(total / 1024), "private_mib": round(own / 1024), "processes": len(pids)}


@dataclass
class Watch:
    """Looks every few seconds from `with` to its end."""

    host: Host
    url: str
    api: Program
    every_s: float = 5.0
    waits: Counter[str] = field(default_factory=Counter)
    api_mib: list[float] = field(default_factory=list)
    metrics_s: list[float] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._began = self._cpu_s()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        ended = self._cpu_s()
        wall_s = ended["wall"] - self._began["wall"]
        self.busy = {name: round((ended[name] - self._began[name]) / wall_s, 3) for name in ended if name != "wall"}

    def _cpu_s(self) -> dict[str, float]:
        api_s = cpu_s(self.api.process.pid, children=True)
        busy = [float(tick) for tick in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
        used = (sum(busy) - busy[3] - busy[4]) / os.sysconf("SC_CLK_TCK")
        with psycopg.connect(self.url) as connection:
            (done,) = connection.execute(COMMITS).fetchone() or (0,)
        return {
            "commits": float(done),
            "PostgreSQL": self.host.server_cpu_s(),
            "API": api_s,
            "machine": used,
            "wall": time.monotonic(),
        }

    def _look(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not self._stopping.wait(self.every_s):
                self.waits.update(row[0] for row in connection.execute(WAITS))
                self.api_mib.append(self.api.rss_mb())
                began = time.perf_counter()
                with suppress(httpx.HTTPError):
                    self.api.get("/metrics")
                self.metrics_s.append(round(time.perf_counter() - began, 3))

    def told(self) -> dict[str, Any]:
        """What was seen."""
        return {
            "commits_per_second": self.busy.pop("commits"),
            "cores": self.busy,
            "active_by_wait": dict(self.waits.most_common(12)),
            "api_rss_mib": [round(min(self.api_mib, default=0)), round(max(self.api_mib, default=0))],
            "metrics_worst_s": max(self.metrics_s, default=None),
            "postgres_memory": server_memory(self.host),
        }


def pages(api: Program) -> dict[str, Any]:
    """Seconds of each page and list, the better of two; or what went wrong."""
    took: dict[str, Any] = {}
    with httpx.Client(base_url=f"http://127.0.0.1:{api.port}", timeout=PAGE_S) as client:
        for path in PAGES:
            seconds = []
            for _ in range(2):
                began = time.perf_counter()
                try:
                    answer = client.get(path)
                except httpx.HTTPError as error:
                    took[path] = type(error).__name__
                    break
                seconds.append(time.perf_counter() - began)
                ok = answer.status_code == httpx.codes.OK
                took[path] = (
                    {"s": round(min(seconds), 3), "kib": len(answer.content) >> 10} if ok else answer.status_code
                )
    return took


def slow_statements(host: Host, begin: int) -> list[dict[str, Any]]:
    """Statements of more than `log_min_duration_statement` since that place in the log, by their total time."""
    took: dict[str, list[float]] = {}
    for duration, words in SLOW.findall(_log(host, begin)):
        shape = re.sub(r"\s+", " ", re.sub(r"'[^']*'|\$?\b\d+\b", "?", words))[:400]
        took.setdefault(shape, []).append(float(duration))
    ordered = sorted(took.items(), key=lambda item: -sum(item[1]))[:15]
    return [
        {"statement": shape, "times": len(ms), "total_s": round(sum(ms) / 1e3, 1), "worst_ms": round(max(ms))}
        for shape, ms in ordered
    ]


def vacuums(host: Host, begin: int) -> dict[str, list[float]]:
    """Seconds of each autovacuum since that place in the log, by table."""
    took: dict[str, list[float]] = {}
    for part in _log(host, begin).split("automatic vacuum of table")[1:]:
        name, elapsed = VACUUM.search(f"automatic vacuum of table{part}"), VACUUM_TOOK.search(part)
        if name and elapsed:
            took.setdefault(name[1], []).append(float(elapsed[1]))
    return took


def log_size(host: Host) -> int:
    """The place to read the log from later."""
    return (host.folder / "postgres" / "log").stat().st_size


def _log(host: Host, begin: int) -> str:
    with (host.folder / "postgres" / "log").open(encoding="utf-8", errors="replace") as file:
        file.seek(begin)
        return file.read()
