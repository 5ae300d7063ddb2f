"""The rows of `make bench-service` about answers: rate, latency, memory, replicas, batches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import psycopg
from installation.fill import KERNEL, Filled
from installation.host import READY_S, Host, Program, answers, best_path, in_memory, load, until

from tilewright.tuner.loop.statistics import median_interval

Row = dict[str, Any]
CONNECTIONS = 16
UNKNOWN_SHARE = 0.2
PER_SECOND = 300
REPEATS = 20
SEEN_EVERY_S = 0.002
BATCH = 1000

NEW_BEST = """
WITH now_best AS (
    SELECT b.* FROM best_configurations b JOIN device_models m ON m.id = b.device_model_id
    WHERE m.slug = %(model)s AND b.superseded_by_id IS NULL ORDER BY b.id LIMIT 1 OFFSET %(place)s
), next_id AS (SELECT nextval('best_configurations_id_seq')::integer AS id FROM now_best
), moved AS (
    UPDATE best_configurations SET superseded_by_id = (SELECT id FROM next_id) WHERE id IN (SELECT id FROM now_best)
    RETURNING problem_id
)
SELECT next_id.id, p.shape FROM next_id, moved JOIN problems p ON p.id = moved.problem_id
"""
INSERT_BEST = """
INSERT INTO best_configurations (id, problem_id, device_model_id, environment_id, trial_id, job_id, time_ms, ci_low_ms,
    ci_high_ms, l2, gflops, gb_per_s)
SELECT %(id)s, problem_id, device_model_id, environment_id, trial_id, job_id, %(time_ms)s, %(time_ms)s, %(time_ms)s,
    l2, gflops, gb_per_s FROM best_configurations WHERE superseded_by_id = %(id)s
"""


@dataclass(frozen=True)
class Served:
    """A filled database, its address and the API process in front of it."""

    url: str
    filled: Filled
    api: Program
    warm_s: float

    @property
    def rows(self) -> str:
        """How many, as the names of rows say it."""
        return f"{len(self.filled):,}"

    def job(self, seed: int, seconds: float, **more: Any) -> dict[str, Any]:
        """A load of questions for the second process."""
        return {
            "port": self.api.port,
            "kernel": KERNEL,
            "models": self.filled.models,
            "shapes": self.filled.shapes,
            "unknown_share": UNKNOWN_SHARE,
            "connections": CONNECTIONS,
            "seconds": seconds,
            "seed": seed,
            **more,
        }


def serve(host: Host, name: str, rows: int) -> Served:
    """A filled database behind an API process that holds all of it in memory."""
    url, filled = host.database(name, rows)
    assert filled is not None  # noqa: S101 - rows were asked for
    api = host.api(url)
    return Served(url, filled, api, warm_up(api, filled))


def warm_up(api: Program, filled: Filled) -> float:
    """Seconds from the first question until every row is in memory."""
    began = time.perf_counter()

    def has_all() -> bool:
        for model in filled.models:  # asked again: a process that just started does not know its models yet
            api.get(best_path(model, filled.shapes[0]))
        return in_memory(api) >= len(filled)

    until(has_all, 10 * READY_S, every_s=1.0)
    took_s = time.perf_counter() - began
    for model in filled.models:  # finds out that nothing can be predicted
        api.get(best_path(model, dict.fromkeys(filled.shapes[0], 7)))
    return took_s


def rates(constant: Program, served: Sequence[Served], rounds: int, seconds: float) -> list[Row]:
    """Requests a second beside the constant endpoint, in rounds that take turns; ratios are of one round each."""
    rate: dict[str, list[float]] = {}
    cpu_us: dict[str, list[float]] = {}
    facts: dict[str, Mapping[str, Any]] = {}
    fixed = {"port": constant.port, "path": "/constant", "connections": CONNECTIONS, "seconds": seconds}
    for number in range(-1, rounds):  # round -1 warms up
        sides = [("constant", constant, fixed), *((one.rows, one.api, one.job(number + 1, seconds)) for one in served)]
        for name, program, job in sides if number % 2 else reversed(sides):
            cpu_s = program.cpu_s()
            measured = load(job)
            if number >= 0:
                rate.setdefault(name, []).append(measured["per_second"])
                cpu_us.setdefault(name, []).append((program.cpu_s() - cpu_s) / measured["answers"] * 1e6)
                facts[name] = measured
    rows = [_rate_row(name, rate[name], cpu_us[name], facts[name]) for name in rate]
    rows += [
        _ratio_row(f"best / constant, {one.rows} rows", rate[one.rows], rate["constant"], ">=", 0.65) for one in served
    ]
    if len(served) > 1:
        few, many = (rate[one.rows] for one in served)
        rows.append(_ratio_row(f"best, {served[0].rows} rows / {served[1].rows} rows", few, many, "<=", 1.2))
    return rows


def _rate_row(name: str, rate: Sequence[float], cpu_us: Sequence[float], facts: Mapping[str, Any]) -> Row:
    of = "constant endpoint" if name == "constant" else f"GET best, {name} rows"
    return {
        "name": f"{of}: rate",
        "value": round(statistics.median(rate), 1),
        "unit": "requests/s",
        "goal": None,
        "met": None,
        "rounds": [round(one, 1) for one in rate],
        "cpu_us_per_request": round(statistics.median(cpu_us)),
        "matches": facts["matches"],
        "statuses": facts["statuses"],
        "generator_cpu_share": round(facts["generator_cpu_share"], 2),
    }


def _ratio_row(name: str, ours: Sequence[float], others: Sequence[float], sign: str, goal: float) -> Row:
    ratios = [one / other for one, other in zip(ours, others, strict=True)]
    interval = median_interval(ratios)
    value = statistics.median(ratios)
    return {
        "name": name,
        "value": round(value, 3),
        "interval": [round(interval.low, 3), round(interval.high, 3)],
        "unit": "ratio",
        "goal": f"{sign} {goal}",
        "met": value >= goal if sign == ">=" else value <= goal,
    }


def cold(host: Host, served: Served, seconds: float) -> list[Row]:
    """Rate and p99 of a process that just started, beside those after it is ready; and how long that took."""
    api = host.api(served.url, wait_for="/health")
    began = time.perf_counter()
    fresh = replace(served, api=api)
    rows = []
    for when in ("cold", "ready"):
        if when == "ready":
            until(lambda: answers(api, "/ready"), READY_S, every_s=0.5)
            ready_s = time.perf_counter() - began
        measured = load(fresh.job(7, seconds))
        rows.append(
            {
                "name": f"GET best, {served.rows} rows, {when}: p99",
                "value": round(measured["p99_ms"], 1),
                "unit": "ms",
                "goal": None,
                "met": None,
                "p50_ms": round(measured["p50_ms"], 1),
                "worst_ms": round(measured["worst_ms"], 1),
                "per_second": round(measured["per_second"], 1),
                "statuses": measured["statuses"],
                "in_memory": in_memory(api),
            }
        )
    rows[-1]["seconds_until_ready"] = round(ready_s, 1)
    api.end()
    return rows


def latency(served: Served, seconds: float) -> Row:
    """Latencies of an open loop, counted from the moment that each question was due."""
    measured = load(served.job(99, seconds, per_second=PER_SECOND))
    return {
        "name": f"GET best, {served.rows} rows: p99 at {PER_SECOND}/s",
        "value": round(measured["p99_ms"], 2),
        "unit": "ms",
        "goal": "<= 10",
        "met": measured["p99_ms"] <= 10,
        "p50_ms": round(measured["p50_ms"], 2),
        "worst_ms": round(measured["worst_ms"], 1),
        "sent_late_p99_ms": round(measured["late_p99_ms"], 2),
        "answers": measured["answers"],
        "matches": measured["matches"],
        "statuses": measured["statuses"],
    }


def memory(served: Sequence[Served]) -> list[Row]:
    """What the API processes take after the load, and how long filling took."""
    return [
        {
            "name": f"API process, {one.rows} rows: memory",
            "value": round(one.api.pss_mb(), 1),
            "unit": "MiB (PSS)",
            "goal": "stated",
            "met": None,
            "rss_mib": round(one.api.rss_mb(), 1),
            "in_memory": in_memory(one.api),
            "seconds_to_fill_memory": round(one.warm_s, 1),
        }
        for one in served
    ]


def replicas(host: Host, served: Served) -> Row:
    """Seconds from the commit of a new best until both API processes hand it out; the worst of REPEATS."""
    second = host.api(served.url)
    model, apis = served.filled.models[0], (served.api, second)
    until(lambda: second.get(best_path(model, served.filled.shapes[0])) and in_memory(second), READY_S)
    took_s = []
    with psycopg.connect(served.url) as connection, httpx.Client() as client:
        for place in range(REPEATS):
            time_ms = 1e-3 * (place + 1)
            new_id, shape = connection.execute(NEW_BEST, {"model": model, "place": 3 * place}).fetchone() or (0, {})
            connection.execute(INSERT_BEST, {"id": new_id, "time_ms": time_ms})
            path = best_path(model, shape)
            connection.commit()
            took_s.append(max(_seen_after(client, api, path, time_ms, time.perf_counter()) for api in apis))
    second.end()
    return {
        "name": f"new best visible in 2 API processes, {served.rows} rows",
        "value": round(max(took_s), 4),
        "unit": "s (worst)",
        "goal": "<= 1",
        "met": max(took_s) <= 1,
        "median_s": round(statistics.median(took_s), 4),
        "repeats": REPEATS,
    }


def _seen_after(client: httpx.Client, api: Program, path: str, time_ms: float, began: float) -> float:
    def is_seen() -> bool:
        answer = client.get(f"http://127.0.0.1:{api.port}{path}").json()
        return bool(answer["time_ms"] == time_ms)

    until(is_seen, READY_S, SEEN_EVERY_S)
    return time.perf_counter() - began


def batch(served: Served) -> Row:
    """`best:batch` of BATCH shapes, a fifth of them new each time."""
    known = int(BATCH * (1 - UNKNOWN_SHARE))
    shapes = [served.filled.shapes[place % len(served.filled.shapes)] for place in range(known)]
    took_ms = []
    with httpx.Client(base_url=f"http://127.0.0.1:{served.api.port}", timeout=60) as client:
        for repeat in range(REPEATS + 1):
            new = [{"m": 9000 + repeat, "n": 9000 + place, "k": 64 + place} for place in range(BATCH - known)]
            body = {"device_model": served.filled.models[repeat], "shapes": [*shapes, *new]}
            began = time.perf_counter()
            items = client.post(f"/v1/kernels/{KERNEL}/best:batch", json=body).raise_for_status().json()["items"]
            took_ms.append(1e3 * (time.perf_counter() - began))
    took_ms = took_ms[1:]  # the first one connected
    value = statistics.median(took_ms)
    return {
        "name": f"best:batch of {BATCH} shapes, {served.rows} rows",
        "value": round(value, 1),
        "unit": "ms",
        "goal": "<= 250",
        "met": value <= 250,
        "worst_ms": round(max(took_ms), 1),
        "repeats": REPEATS,
        "exact_of_last": sum(item["match"] == "exact" for item in items),
    }
