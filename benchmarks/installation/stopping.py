"""What an attack delays beside look-ups: another key's schedule, and the changes that are to stop the attack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psycopg
from installation.host import Host, Program, best_path

from tilewright.service.operations.access.keys import create_key
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.store import session as store_session

HERE = Path(__file__).parent.parent
LIFTED = {
    "TILEWRIGHT_REQUESTS_PER_MINUTE": "1000000",
    "TILEWRIGHT_SCHEDULES_PER_KEY": "1000000",
    "TILEWRIGHT_FIRES_PER_MINUTE": "1000000",
    "TILEWRIGHT_OPEN_JOBS_PER_KEY": "1000000",
    "TILEWRIGHT_QUEUED_SECONDS_PER_KEY": "1e12",
}
"""Quotas as an operator may set them who trusts the keys: the attack is then as fast as the API."""
EACH_SECOND = {"name": "honest", "cron": "* * * * * *", "budget": {"trials": 1}}
ASIDE_S = 3.0
"""How long it is quiet before the attack, and the attack goes on after it should have been stopped."""


def attacker(name: str, **job: Any) -> subprocess.Popen[str]:
    """The attacking process, which has begun, and writes its tally when its time is over."""
    words = [sys.executable, "-m", "installation.attack"]
    process = subprocess.Popen(words, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    json.dump({"name": name, **job}, process.stdin)
    process.stdin.close()
    process.stdout.readline()
    return process


def stopped(at: Host, name: str, seconds: float, cores: tuple[int, int], *, is_lifted: bool) -> dict[str, Any]:
    """How late another key's schedule fired under the attack, and how long the changes took that end it.

    `cores`: of the clients, and of all that is ours.
    """
    os.sched_setaffinity(0, {cores[1]})  # inherited by the API
    url, filled = at.database(f"stopped_{time.monotonic_ns()}", 1000)
    store_session.configure(url)
    with store_session.session_scope() as session:
        keys = {
            name: create_key(session, KeyRequest(name=name, scope=scope)).token
            for name, scope in (("honest", "tune"), ("evil", "tune"), ("spare", "tune"), ("boss", "admin"))
        }
    store_session.configure(None)
    program = at.api(url, TILEWRIGHT_REQUIRE_KEYS="true", **(LIFTED if is_lifted else {}))
    os.sched_setaffinity(0, {cores[0]})
    problem = {"kernel": "gemm", "shape": filled.shapes[0]}
    with closing(_client(program, keys["honest"])) as honest:
        for key in (honest, _client(program, keys["evil"])):  # there is something to pause and to cancel
            schedule = EACH_SECOND | {"device_model": filled.models[0], "problems": [problem]}
            schedule |= {"name": "evil"} if key is not honest else {}
            key.post("/v1/schedules", json=schedule).raise_for_status()
        job = {"device_model": filled.models[0], **problem, "budget": {"trials": 1}}
        key.post("/v1/jobs", json=job).raise_for_status()
        key.close()
        time.sleep(ASIDE_S)
        quiet = {"quiet_late_s": _late(url)["honest_late_s"], "quiet_revoke_s": _revoked_s(program, keys, "spare")}
        best = best_path(filled.models[0], filled.shapes[0])
        with attacker(name, seconds=seconds + ASIDE_S, port=program.port, key=keys["evil"], best=best) as attacking:
            time.sleep(seconds)
            row = quiet | _times(program, url, keys) | _late(url)
            row["attacker"] = json.load(attacking.stdout)
    program.end()
    return {"attack": name, "quotas": "lifted" if is_lifted else "default"} | row


def _times(program: Program, url: str, keys: dict[str, str]) -> dict[str, float]:
    schedule, job = _row(
        url,
        "SELECT (SELECT max(id) FROM schedules s WHERE s.key_id = k.id),"
        " (SELECT id FROM tuning_jobs j WHERE j.key_id = k.id ORDER BY id LIMIT 1) FROM api_keys k"
        " WHERE k.name = 'evil'",
    )
    with closing(_client(program, keys["boss"])) as boss, closing(_client(program, keys["evil"])) as evil:
        return {
            "pause_s": _timed(lambda: boss.post(f"/v1/schedules/{schedule}/pause")),
            "cancel_s": _timed(lambda: boss.post(f"/v1/jobs/{job}/cancel")),
            "revoke_s": _revoked_s(program, keys, "evil"),
            "refused": evil.get("/v1/jobs").status_code,
        }


def _revoked_s(program: Program, keys: dict[str, str], name: str) -> float:
    with closing(_client(program, keys["boss"])) as boss:
        return _timed(lambda: boss.delete(f"/v1/keys/{name}"))


def _late(url: str) -> dict[str, float]:
    """Of the honest schedule: the latest fire, or the due time that has not come yet."""
    late, fires = _row(
        url,
        "SELECT greatest(max(extract(epoch FROM f.created_at - f.fire_at)), extract(epoch FROM now() - s.next_at)),"
        " count(f.id) FROM schedules s LEFT JOIN schedule_fires f ON f.schedule_id = s.id"
        " WHERE s.name = 'honest' GROUP BY s.next_at",
    )
    return {"honest_late_s": round(float(late), 3), "honest_fires": fires}


def _row(url: str, query: str) -> tuple[Any, ...]:
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchone()


def _timed(change: Callable[[], httpx.Response]) -> float:
    begun = time.perf_counter()
    answer = change()
    took_s = time.perf_counter() - begun
    answer.raise_for_status()
    return round(took_s, 3)


def _client(program: Program, key: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    return httpx.Client(base_url=f"http://127.0.0.1:{program.port}", headers=headers, timeout=120, trust_env=False)
