"""The service at scale on this machine: a large database, simulated workers and real questions. CPU only.

    PYTHONPATH=benchmarks python -m at_scale --trials 10000000 --problems 1000000 --workers 200 --load-s 600

Parts: pages (and a start of the API), idle (workers that wait for jobs), load (jobs and `best` beside them),
retention, backup (with a restore). A database of its own in a temporary folder (TMPDIR), 2 GiB for each million of
trials, and again as much for the restore. The document is written after each part. Other work on the machine slows all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psycopg
from at_scale import fill, watch
from at_scale.crew import Crew, Requested
from documents.file import now, write
from installation.host import Host, Program, answers, best_path, free_port, host, in_memory, load, until
from sqlalchemy.engine import make_url

from tilewright.service.store import embedded
from tilewright.service.store import session as store_session
from tilewright.service.store.embedded import binary
from tilewright.tuner.devices.cpu.device import cpu_name

PARTS = ("pages", "idle", "load", "retention", "backup")
RESULT = Path(__file__).parents[1] / "results" / "at_scale.json"
SERVER = {
    "shared_buffers": "2GB",
    "max_wal_size": "8GB",
    "maintenance_work_mem": "512MB",
    "effective_cache_size": "6GB",
    "log_min_duration_statement": "100",
    "log_autovacuum_min_duration": "0",
    "track_io_timing": "on",
}
"""Beside those of the embedded server: as docs/operating.md says of a large installation."""
KNOWN, COLD, UNKNOWN = 0.75, 0.2, 0.05
"""Shares of the questions: of hot problems, of cold ones, of shapes that nobody tuned."""
UNKNOWN_MODELS = 4
"""Unknown shapes are asked for on so few models: a process keeps eight predictors, and a fit takes it seconds."""
PATHS = 20_000
OPENS_S = 1200.0
RETENTION_S = 45.0
DRY_S = 120.0
WAITED = """
SELECT count(*) FILTER (WHERE started_at IS NOT NULL), count(*) FILTER (WHERE started_at IS NULL),
    count(*) FILTER (WHERE state = 'done'), count(*) FILTER (WHERE state = 'failed'),
    percentile_cont(ARRAY[0.5, 0.9, 0.99, 1.0]) WITHIN GROUP (
        ORDER BY 1e3 * extract(epoch FROM started_at - created_at))
FROM tuning_jobs WHERE created_at > %s AND queue <> 'synthetic' AND priority = 5
"""
BACKLOG = """
WITH wanted AS (SELECT p.id AS problem_id, m.id AS model_id, 'model:' || m.slug AS queue, uuidv7() AS id
    FROM generate_series(1, %(jobs)s) AS g
    JOIN problems p ON p.id = 1 + g %% (SELECT max(id) FROM problems)
    JOIN device_models m ON m.id = %(workers)s + 1 + g %% %(others)s)
INSERT INTO tuning_jobs (id, problem_id, device_model_id, queue, budget_trials, coalesce_hash, priority, engine_id)
SELECT id, problem_id, model_id, queue, 100, md5(id::text), 4, (procrastinate_defer_jobs_v1(ARRAY[ROW(queue, 'tune', 4,
    NULL, NULL, jsonb_build_object('job_id', id), NULL)::procrastinate_job_to_defer_v1]))[1] FROM wanted
"""

Row = dict[str, Any]


def main() -> int:
    """Reads the command line, measures, writes."""
    arguments = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started ends with this
    embedded.SERVER_SETTINGS.update(SERVER, max_connections=str(200 + arguments.workers * (arguments.held + 6)))
    document: Row = facts(arguments)
    with host() if arguments.folder is None else kept_host(arguments.folder) as at:
        scale = Scale(at, arguments)
        document["fill"] = scale.fill()
        write(arguments.out, document)
        for name in () if arguments.only == ["fill"] else arguments.only or PARTS:
            fill.say(f"{name} begins")
            began = time.monotonic()
            document[name] = getattr(scale, name)() | {"part_s": round(time.monotonic() - began, 1)}
            document["tables"] = watch.tables(scale.url)
            write(arguments.out, document)
            fill.say(f"{name}: {json.dumps(document[name])[:600]}")
    return 0


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000_000)
    parser.add_argument("--problems", type=int, default=1_000_000)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--hot", type=int, default=100, help="problems that are tuned on every model")
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--held", type=int, default=6, help="idle connections of each worker beside those that it uses")
    parser.add_argument("--backlog", type=int, default=20_000, help="jobs that wait for models without a worker")
    parser.add_argument("--load-s", type=float, default=600.0)
    parser.add_argument("--idle-s", type=float, default=60.0)
    parser.add_argument("--best-per-second", type=float, default=100.0)
    parser.add_argument("--jobs-per-second", type=float, default=3.0)
    parser.add_argument("--job-trials", type=int, default=40)
    parser.add_argument("--trial-s", type=float, default=0.5)
    parser.add_argument("--only", action="append", default=[], choices=("fill", *PARTS), help="may be repeated")
    parser.add_argument("--folder", type=Path, help="where the database stays, and is filled once; without: temporary")
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser.parse_args(words)


@contextmanager
def kept_host(folder: Path) -> Iterator[Host]:
    """A host whose database stays."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Host(folder)
    try:
        yield made
    finally:
        made.stop()


def facts(arguments: argparse.Namespace) -> Row:
    """The facts of the whole run."""
    sizes = ("trials", "problems", "models", "hot", "workers", "held", "backlog", "job_trials", "trial_s")
    return {
        "command": shlex.join(["PYTHONPATH=benchmarks", "python", "-m", "at_scale", *sys.argv[1:]]),
        "date": now(),
        "data": "trials of a recording under synthetic problems and device models; workers are simulated",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load_average_before": round(os.getloadavg()[0], 1),
        "system": platform.platform(),
        "postgres": embedded.SERVER_SETTINGS | {"version": embedded.POSTGRES_MAJOR},
        "sizes": {name: getattr(arguments, name) for name in sizes},
    }


@dataclass
class Scale:
    """The installation, and what is measured of it: a part a method."""

    host: Host
    arguments: argparse.Namespace
    url: str = ""
    _api: Program | None = None
    _opened: Row = field(default_factory=dict)

    @property
    def sizes(self) -> fill.Sizes:
        """Of the database."""
        return fill.Sizes(*(getattr(self.arguments, name) for name in ("trials", "problems", "models", "hot")))

    def fill(self) -> Row:
        """The database, and how long it took."""
        began, done = time.monotonic(), self.host.folder / "filled.json"
        if done.exists():
            address = make_url(self.host.server.ensure()).set(database="scale")
            self.url = address.render_as_string(hide_password=False)
            store_session.configure(self.url)
            told: Row = json.loads(done.read_text(encoding="utf-8"))
            return told
        self.url, _ = self.host.database("scale", 0)
        store_session.configure(self.url)
        fill.fill(self.url, self.sizes)
        filled_s = time.monotonic() - began
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            others = {"workers": self.arguments.workers, "others": self.arguments.models - self.arguments.workers}
            if self.arguments.backlog and others["others"]:
                connection.execute(BACKLOG, others | {"jobs": self.arguments.backlog})
                connection.execute("ANALYZE tuning_jobs, procrastinate_jobs")
            (size,) = connection.execute("SELECT pg_database_size(current_database())").fetchone() or (0,)
        vacuumed_s = time.monotonic() - began - filled_s
        told = {"fill_s": round(filled_s), "vacuum_analyze_s": round(vacuumed_s), "database_gb": round(size / 1e9, 2)}
        done.write_text(json.dumps(told), encoding="utf-8")
        return told

    @property
    def api(self) -> Program:
        """An API, started when it is first needed; `_opened`: how it came up."""
        if self._api is None:
            began, port = time.monotonic(), free_port()
            kept = {"TILEWRIGHT_BEST_KEPT": str(10 * self.sizes.problems)}
            words = ("-m", "tilewright.service.cli", "serve", "--port", str(port))
            self._api = api = self.host.start(self.url, *words, port=port, **kept)
            until(lambda: answers(api, "/ready"), OPENS_S, every_s=0.5)
            self._opened = {"ready_s": round(time.monotonic() - began, 1), "rss_mib_at_start": round(api.rss_mb())}
        return self._api

    def paths(self) -> list[str]:
        """Questions as they come: most of hot problems, some of cold ones, few of unknown shapes."""
        chance, wanted = random.Random(7), PATHS
        with psycopg.connect(self.url) as connection:
            hot = connection.execute("SELECT shape FROM problems WHERE id <= %s", (self.sizes.hot,)).fetchall()
            cold = connection.execute(
                "SELECT m.slug, p.shape FROM best_configurations b JOIN problems p ON p.id = b.problem_id"
                " JOIN device_models m ON m.id = b.device_model_id WHERE p.id > %s AND b.id %% %s = 0 LIMIT %s",
                (self.sizes.hot, max(1, self.sizes.problems // wanted), int(wanted * COLD)),
            ).fetchall()
        models = [fill.slug(number) for number in range(1, self.sizes.models + 1)]
        known = [best_path(chance.choice(models), chance.choice(hot)[0]) for _ in range(int(wanted * KNOWN))]
        unknown = [
            dict(zip("mnk", (chance.randint(1, 8192) for _ in range(3)), strict=True))
            for _ in range(int(wanted * UNKNOWN))
        ]
        few = models[:UNKNOWN_MODELS]
        asked = known + [best_path(*row) for row in cold] + [best_path(chance.choice(few), shape) for shape in unknown]
        chance.shuffle(asked)
        return asked

    def pages(self) -> Row:
        """Seconds of pages and lists, from an API that has just started."""
        begin, api = watch.log_size(self.host), self.api
        told = {"start": self._opened, "pages": watch.pages(api), "slow": watch.slow_statements(self.host, begin)}
        api.end()  # with what it still computes for callers that gave up
        self._api = None
        return told

    def idle(self) -> Row:
        """What workers take that have nothing to do."""
        before = watch.server_memory(self.host)
        told = self._worked(self.arguments.idle_s, None)
        return {"postgres_memory_before": before, **told}

    def load(self) -> Row:
        """Jobs, `best` beside them, and what all of it takes."""
        return self._worked(self.arguments.load_s, self._traffic)

    def _worked(self, seconds: float, traffic: Callable[[float], Row] | None) -> Row:
        api, begin = self.api, watch.log_size(self.host)
        crew = Crew(self.url, self.arguments)
        crew.start()
        until(crew.are_ready, OPENS_S, every_s=1.0)
        began = datetime.now(UTC)
        with watch.Watch(self.host, self.url, api) as seen:
            measured = traffic(seconds) if traffic else time.sleep(seconds) or {}
        told = measured | seen.told() | {"workers": crew.ended()}
        with psycopg.connect(self.url) as connection:
            names = ("started", "not_started", "done", "failed", "p50_p90_p99_worst_ms")
            queue = dict(zip(names, connection.execute(WAITED, (began,)).fetchone() or (), strict=True))
        log = {"slow": watch.slow_statements(self.host, begin), "autovacuum_s": watch.vacuums(self.host, begin)}
        return told | {"queue": queue, "in_memory": in_memory(api)} | log

    def _traffic(self, seconds: float) -> Row:
        paths = self.paths()
        asking = {
            "port": self.api.port,
            "paths": paths,
            "per_second": self.arguments.best_per_second,
            "seconds": seconds,
        }
        stopping, requested = threading.Event(), Requested()
        thread = threading.Thread(target=self._request, args=(stopping, requested))
        thread.start()
        try:
            best = load(asking)
        finally:
            stopping.set()
            thread.join()
        return {"best": best, "requests": requested.told()}

    def _request(self, stopping: threading.Event, requested: Requested) -> None:
        """Jobs through the API, one worker after another, for the models of the workers."""
        chance = random.Random(3)
        with psycopg.connect(self.url) as connection:
            drawn = connection.execute(
                "SELECT shape FROM problems WHERE id %% %s = 0 LIMIT 5000", (max(1, self.sizes.problems // 5000),)
            ).fetchall()
        due, place = time.monotonic(), 0
        with httpx.Client(base_url=f"http://127.0.0.1:{self.api.port}", timeout=60) as client:
            while not stopping.wait(max(0.0, due - time.monotonic())):
                due += 1 / self.arguments.jobs_per_second
                place = place % self.arguments.workers + 1
                requested.post(client, chance.choice(drawn)[0], fill.slug(place), self.arguments.job_trials)

    def retention(self) -> Row:
        """How fast samples are deleted by the command, for a while; and what the dry run takes."""
        words = [sys.executable, "-m", "tilewright.service.cli", "db", "prune", "--older-than", "90"]
        variables = {**os.environ, "TILEWRIGHT_DATABASE_URL": self.url, "TILEWRIGHT_DATA_DIR": str(self.host.folder)}
        began = time.monotonic()
        try:
            dry = subprocess.run(
                [*words, "--dry-run", "--json"],
                env=variables,
                capture_output=True,
                check=False,
                text=True,
                timeout=DRY_S,
            )
            counted = dry.stdout or dry.stderr
        except subprocess.TimeoutExpired:
            counted = "no answer in time"
        dry_s, begin = time.monotonic() - began, watch.log_size(self.host)
        pruned = "SELECT count(*) FROM trials WHERE samples_pruned_at IS NOT NULL"
        server_s, began = self.host.server_cpu_s(), time.monotonic()
        with subprocess.Popen(words, env=variables, stdout=subprocess.DEVNULL) as process:
            try:
                process.wait(RETENTION_S)
            except subprocess.TimeoutExpired:
                process.terminate()
        took_s, used_s = time.monotonic() - began, self.host.server_cpu_s() - server_s
        with psycopg.connect(self.url) as connection:
            (count,) = connection.execute(pruned).fetchone() or (0,)
        return {
            "dry_run_s": round(dry_s, 1),
            "dry_run": counted[-400:],
            "trials_pruned": count,
            "prune_s": round(took_s, 1),
            "trials_per_second": round(count / took_s),
            "postgres_cores": round(used_s / took_s, 2),
            "slow": watch.slow_statements(self.host, begin),
        }

    def backup(self) -> Row:
        """pg_dump and pg_restore as docs/operating.md says."""
        file = self.host.folder / "scale.dump"
        dump_s = timed(
            str(binary("pg_dump")), "--format=custom", "--no-owner", "--no-privileges", f"--file={file}", self.url
        )
        size = file.stat().st_size
        restored = make_url(self.url).set(database="restored").render_as_string(hide_password=False)
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE restored")
        words = ("--exit-on-error", "--single-transaction", "--no-owner", "--no-privileges", f"--dbname={restored}")
        restore_s = timed(str(binary("pg_restore")), *words, str(file))
        file.unlink()
        return {"dump_s": dump_s, "dump_gb": round(size / 1e9, 2), "restore_s": restore_s}


def timed(*words: str) -> float:
    """Seconds that the command took."""
    began = time.monotonic()
    subprocess.run(words, check=True)
    return round(time.monotonic() - began, 1)


if __name__ == "__main__":
    sys.exit(main())
