"""Measures what one key's attack costs another key: the latency of its `best`, beside a quiet service. CPU only.

    python benchmarks/attacks.py [--only flood] [--runs 5] [--seconds 60] [--out FILE]

All clients run on the first core, all that is ours on the last one. The quiet figures are taken while the attacking
client runs against a port that refuses its connections. Exit status 1 where an attack more than trebles p50 or p99.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from documents.file import now, write
from installation.attack import ATTACKS
from installation.host import Host, best_path, free_port, host, load

from tilewright.service.operations.access.keys import create_key
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.store import session as store_session

HERE = Path(__file__).parent
PER_SECOND = 80  # below the 100 that a key may ask


def measured(name: str, honest: dict[str, Any], port: int, key: str) -> dict[str, Any]:
    """The honest key's latencies while the attack runs on a port."""
    best = best_path(honest["models"][0], honest["shapes"][0])
    job = json.dumps({"name": name, "seconds": honest["seconds"] + 2, "port": port, "key": key, "best": best})
    words = [sys.executable, "-m", "installation.attack"]
    with subprocess.Popen(words, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attacker:
        attacker.stdin.write(job)
        attacker.stdin.close()
        time.sleep(1)  # the attack is under way
        found = load(honest)
        return found | {"attacker": json.loads(attacker.stdout.read())}


def measure(at: Host, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row an attack."""
    first, *_, last = sorted(os.sched_getaffinity(0))
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
    found = []
    for name in arguments.only or ATTACKS:
        row: dict[str, Any] = {"attack": name, "connections": ATTACKS[name][0]}
        sides: dict[str, list[dict[str, Any]]] = {"quiet": [], "attacked": []}
        for _ in range(arguments.runs):  # in turn: what else the machine does is then the same for both
            sides["quiet"].append(measured(name, job, free_port(), evil))
            sides["attacked"].append(measured(name, job, api.port, evil))
        for side, runs in sides.items():
            row[side] = {part: round(statistics.median(run[part] for run in runs), 2) for part in ("p50_ms", "p99_ms")}
            row[side] |= {"statuses": runs[-1]["statuses"], "attacker": runs[-1]["attacker"]}
        row["ratios"] = [round(row["attacked"][part] / row["quiet"][part], 2) for part in ("p50_ms", "p99_ms")]
        print(json.dumps(row), flush=True)
        found.append(row)
    return found


def main() -> int:
    """Reads the command line, measures, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], choices=list(ATTACKS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    before = os.getloadavg()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started ends with this
    with host() as at:
        found = measure(at, arguments)
    if arguments.out:
        load_average = {"before": before, "after": os.getloadavg()}
        write(arguments.out, {"date": now(), "measured_on": "CPU", "load_average": load_average, "rows": found})
    return int(any(max(row["ratios"]) > 3 for row in found))


if __name__ == "__main__":
    sys.exit(main())
