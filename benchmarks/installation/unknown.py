"""The rows of `make bench-service` about a batch of shapes that nobody tuned, predicted from the shipped records."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from installation.fill import ENVIRONMENT, KERNEL, LIMITS, SIZES
from installation.host import Host, Program, load
from installation.rows import BATCH, Row

from tilewright.service.operations import registry
from tilewright.service.operations.answers import Match
from tilewright.service.operations.best.find import Asked, find_in
from tilewright.service.store import session as store_session
from tilewright.tuner.devices.device import DeviceModel

HERE = Path(__file__).parents[1]
MODEL = "nvidia-h200"
"""Of this one records are shipped; the predictor is fitted to them."""

CORE_S, ANSWERED_S, AGAIN_S = 3.0, 5.0, 60.0
WARM_UP, ENOUGH = 100, 200  # shapes: to learn from, and more than a core predicts in that time
PER_SECOND, BACKGROUND_S = 100, 8.0

Shapes = Sequence[Mapping[str, int]]


def unknown(host: Host) -> list[Row]:
    """The first answer, the same batch a minute later, what another caller notices, and memory."""
    url, filled = host.database("unknown", 1000)
    _register(url)
    alone = _predicted_by_a_core(url)
    api = host.api(url)
    _batch(api, _shapes(3)[:WARM_UP])  # its process has the fit and what it learns at the first questions
    job = {"port": api.port, "kernel": KERNEL, "models": filled.models[:4], "shapes": filled.shapes, "unknown_share": 0}
    job |= {"per_second": PER_SECOND, "seconds": BACKGROUND_S, "seed": 1}
    load(job | {"seconds": 3.0})
    quiet = load(job)
    meanwhile: dict[str, Any] = {}
    background = threading.Thread(target=lambda: meanwhile.update(load(job)))
    background.start()
    time.sleep(1)
    before_mb, began = api.own_mb(), time.perf_counter()
    first = _batch(api, _shapes(1))
    background.join()
    time.sleep(max(0.0, AGAIN_S - (time.perf_counter() - began)))
    again = _batch(api, _shapes(1))
    return [*_rows(alone, first, again), _noticed(quiet, meanwhile), _grown(api.own_mb() - before_mb)]


def _rows(alone: tuple[int, float], first: dict[str, Any], again: dict[str, Any]) -> list[Row]:
    row = {"name": f"best:batch of {BATCH} unknown shapes: answered", "value": round(first["seconds"], 2), "unit": "s"}
    row |= {"goal": f"<= {ANSWERED_S:g}", "met": first["seconds"] <= ANSWERED_S, "matches": first["matches"]}
    made, (of_a_core, used_s) = first["predicted"], alone
    core = {"name": "predictions in it / those of a core in 3 s", "value": round(made / of_a_core, 2), "unit": "ratio"}
    core |= {
        "goal": ">= 1",
        "met": made >= of_a_core,
        "predicted": made,
        "of_a_core": of_a_core,
        "cpu_s": round(used_s, 2),
    }
    later = {"name": "the same batch 60 s later: predictions", "value": again["predicted"], "unit": "of 1,000"}
    later |= {"goal": "1,000", "met": again["predicted"] == BATCH, "seconds": round(again["seconds"], 2)}
    return [row, core, later]


def _noticed(quiet: dict[str, Any], meanwhile: dict[str, Any]) -> Row:
    ratio = meanwhile["p99_ms"] / quiet["p99_ms"]
    row = {"name": "another caller's best during it: p99 / quiet p99", "value": round(ratio, 2), "unit": "ratio"}
    row |= {"goal": "<= 3", "met": ratio <= 3, "statuses": meanwhile["statuses"]}
    return row | {f"{when}_p99_ms": round(one["p99_ms"], 2) for when, one in (("quiet", quiet), ("then", meanwhile))}


def _grown(mb: float) -> Row:
    row = {"name": "API process after it: memory", "value": round(mb, 1), "unit": "MiB more"}
    return row | {"goal": "stated", "met": None}


def _shapes(seed: int) -> Shapes:
    chance = random.Random(seed)
    return [{axis: chance.randint(*SIZES) for axis in "mnk"} for _ in range(BATCH)]


def _batch(api: Program, shapes: Shapes) -> dict[str, Any]:
    body, began = {"shapes": shapes, "device_model": MODEL}, time.perf_counter()
    path = f"http://127.0.0.1:{api.port}/v1/kernels/{KERNEL}/best:batch"
    answer = httpx.post(path, json=body, timeout=60).raise_for_status()
    took_s, items = time.perf_counter() - began, answer.json()["items"]
    matches = Counter(f"{one['match']}{' (pending)' if one['pending'] else ''}" for one in items)
    return {"seconds": took_s, "matches": dict(matches), "predicted": matches[Match.PREDICTED.value]}


def _predicted_by_a_core(url: str) -> tuple[int, float]:
    """Predictions that a process with one thread makes in CORE_S with a fit, and the CPU seconds that it got."""
    words, alone = [sys.executable, "-m", "installation.unknown", url], {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=HERE, env={**os.environ, **alone}, stdout=subprocess.PIPE, check=True)
    count, used_s = json.loads(done.stdout)
    return count, used_s


def _predict(url: str) -> tuple[int, float]:
    store_session.configure(url)
    asked = Asked.of(KERNEL, MODEL, _shapes(2)[:ENOUGH])
    find_in(asked.rows(), Asked.of(KERNEL, MODEL, _shapes(4)[:WARM_UP]).problems)
    began_cpu_s = time.process_time()
    found = find_in(asked.rows(until=time.monotonic() + CORE_S), asked.problems)
    return sum(one.match is Match.PREDICTED for one in found.values()), time.process_time() - began_cpu_s


def _register(url: str) -> None:
    store_session.configure(url)
    model = DeviceModel(MODEL, "NVIDIA H200", "cuda", LIMITS, 50 * 2**20, {"float32": 66_900.0}, 4_800.0)
    with store_session.session_scope() as session:
        registry.register_device(session, model, f"GPU-{MODEL}", "no-host", 0, ENVIRONMENT)
    store_session.configure(None)


if __name__ == "__main__":
    print(json.dumps(_predict(sys.argv[1])))
