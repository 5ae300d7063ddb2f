"""Measures what one key's attack costs another key: the latency of its `best`, beside a quiet service. CPU only.

    python benchmarks/attacks.py [--only flood] [--stop schedules] [--runs 5] [--seconds 60] [--out FILE]

All clients run on the first core, all that is ours on the last one. The quiet figures are taken while the attacking
client runs against a port that refuses its connections. `--stop` measures how late another key's schedule fires under
an attack, and how long it takes to pause, cancel and revoke what is its own; all of STOPPED where neither is given.
Exit status 1 where an attack more than trebles p50 or p99, changes an answer, has a schedule fire more than 5 s late,
or is not stopped within a second.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
from documents.file import now, write
from installation.attack import ATTACKS
from installation.host import Host, Program, best_path, free_port, host, load
from installation.stopping import attacker, stopped

from tilewright.service.operations.access.keys import create_key
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.store import session as store_session

PER_SECOND = 80  # below the 100 that a key may ask
STOPPED = (("schedules", False), ("schedules", True), ("jobs", True), ("flood", False), ("many connections", False))
"""Attacks that are to be stopped, and whether the key's quotas are lifted."""
LATE_S, STOPPED_S = 5.0, 1.0
ASKED_AGAIN = 50


def measured(name: str, honest: dict[str, Any], port: int, key: str) -> dict[str, Any]:
    """The honest key's latencies while the attack runs on a port."""
    best = best_path(honest["models"][0], honest["shapes"][0])
    with attacker(name, seconds=honest["seconds"] + 2, port=port, key=key, best=best) as attacking:
        time.sleep(1)  # the attack is under way
        found = load(honest)
        return found | {"attacker": json.load(attacking.stdout)}


def answers(api: Program, honest: dict[str, Any]) -> list[str]:
    """What the honest key is answered about tuned problems."""
    headers = {"Authorization": f"Bearer {honest['key']}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{api.port}", headers=headers, timeout=60) as client:
        paths = [best_path(honest["models"][0], shape) for shape in honest["shapes"][:ASKED_AGAIN]]
        return [client.get(path).text for path in paths]


def measure(
    at: Host, names: Iterable[str], cores: tuple[int, int], arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """One row an attack."""
    first, last = cores
    os.sched_setaffinity(0, {last})  # inherited by PostgreSQL and the API
    url, filled = at.database("attacked", 1000)
    store_session.configure(url)
    with store_session.session_scope() as session:
        honest, evil = (
            create_key(session, KeyRequest(name=n, scope=s)).token for n, s in (("honest", "read"), ("evil", "tune"))
        )
    store_session.configure(None)
    api = at.api(url, TILEWRIGHT_REQUIRE_KEYS="true")
    os.sched_setaffinity(0, {first})
    job = {"port": api.port, "kernel": "gemm", "models": filled.models[:4], "shapes": filled.shapes, "unknown_share": 0}
    job |= {"per_second": PER_SECOND, "seconds": arguments.seconds, "seed": 1, "key": honest}
    load(job | {"seconds": 3})
    found, before = [], answers(api, job)
    for name in names:
        row: dict[str, Any] = {"attack": name, "connections": ATTACKS[name][0]}
        sides: dict[str, list[dict[str, Any]]] = {"quiet": [], "attacked": []}
        for _ in range(arguments.runs):  # in turn: what else the machine does is then the same for both
            sides["quiet"].append(measured(name, job, free_port(), evil))
            sides["attacked"].append(measured(name, job, api.port, evil))
        for side, runs in sides.items():
            row[side] = {part: round(statistics.median(run[part] for run in runs), 2) for part in ("p50_ms", "p99_ms")}
            row[side] |= {"statuses": runs[-1]["statuses"], "attacker": runs[-1]["attacker"]}
        row["ratios"] = [round(row["attacked"][part] / row["quiet"][part], 2) for part in ("p50_ms", "p99_ms")]
        row["answers_changed"] = sum(was != now for was, now in zip(before, answers(api, job), strict=True))
        print(json.dumps(row), flush=True)
        found.append(row)
    api.end()
    return found


def is_met(row: dict[str, Any]) -> bool:
    """Whether the row keeps what is asked of it."""
    if "ratios" in row:
        return max(row["ratios"]) <= 3 and row["answers_changed"] == 0
    took_s = [row[f"{change}_s"] for change in ("pause", "cancel", "revoke")]
    return row["honest_late_s"] <= LATE_S and max(took_s) <= STOPPED_S and row["refused"] == httpx.codes.UNAUTHORIZED


def main() -> int:
    """Reads the command line, measures, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], choices=list(ATTACKS))
    parser.add_argument("--stop", action="append", default=[], choices=sorted({name for name, _ in STOPPED}))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    before, (first, *_, last) = os.getloadavg(), sorted(os.sched_getaffinity(0))
    cores = first, last
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started ends with this
    with host() as at:
        names = arguments.only or (() if arguments.stop else ATTACKS)
        found = measure(at, names, cores, arguments) if names else []
        for name, is_lifted in STOPPED:
            if name in arguments.stop or not (arguments.stop or arguments.only):
                found.append(stopped(at, name, arguments.seconds, cores, is_lifted=is_lifted))
                print(json.dumps(found[-1]), flush=True)
    if arguments.out:
        load_average = {"before": before, "after": os.getloadavg()}
        write(arguments.out, {"date": now(), "measured_on": "CPU", "load_average": load_average, "rows": found})
    return int(not all(map(is_met, found)))


if __name__ == "__main__":
    sys.exit(main())
