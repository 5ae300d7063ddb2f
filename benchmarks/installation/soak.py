"""The row of `make bench-service` about memory over time: two APIs and a worker under load, for as long as is asked."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, cycle, pairwise

import httpx
from installation.fill import MODELS
from installation.host import Host, Program, load
from installation.jobs import Shop
from installation.rows import PER_SECOND, Row, Served

SAMPLES, SERIES, SAID = 600, 60, 20
"""Memory is read so often, kept as so many medians, and said so often, however long the run."""
PARTS = 10
T_95 = 2.306  # Student's t for 95 % and PARTS - 2 degrees of freedom
FLAT_MIB_PER_H = 2.0
"""Growth that counts as none: below a percent an hour of an API process, and what an hour can tell from noise."""

TELLS_S = 1200.0
"""A shorter run is warm-up in its second half too, and is judged neither flat nor growing."""

JOB_EVERY_S, ASIDE_EVERY_S = 6.0, 1.0
TRIALS = 4
SHAPES = [{"m": 16 + 8 * step, "n": 16, "k": 20} for step in range(12)]
"""A fixed set: every new problem would add its best configuration to what an API keeps, which is no leak."""
UNSERVED = "synthetic-01"
LOOKS = (
    "/v1/jobs?limit=50",
    "/v1/devices",
    "/metrics",
    "/v1/results?limit=50",
    "/v1/audit?limit=50",
    "/",
    "/fleet",
    "/jobs",
)

Sample = tuple[float, float]
"""Seconds since the start, MiB."""


@dataclass
class Traffic:
    """Jobs that are worked on, one at a time and followed to their end, and beside them all else that callers do."""

    shop: Shop
    stopping: threading.Event = field(default_factory=threading.Event)
    counted: Counter[str] = field(default_factory=Counter)
    _numbers: count[int] = field(default_factory=count)

    def tune(self) -> None:
        """A job every JOB_EVERY_S, or as soon as the last has ended; its events are read as they come."""
        model = self.shop.model
        with self.shop.client as client:
            for shape in cycle(SHAPES):
                due_s = time.monotonic() + JOB_EVERY_S
                self._try("jobs", lambda shape=shape: self._job(client, model, shape))  # type: ignore[misc]
                if self.stopping.wait(max(0.0, due_s - time.monotonic())):
                    return

    def look(self) -> None:
        """Every ASIDE_EVERY_S a list or a page, and a job that is cancelled again: for a device that has no worker."""
        model = UNSERVED
        with self.shop.client as client:
            for path in cycle(LOOKS):
                if self.stopping.wait(ASIDE_EVERY_S):
                    return
                self._try("cancelled", lambda: self._cancelled(client, model))
                self._try("looks", lambda path=path: client.get(path).raise_for_status())  # type: ignore[misc]

    def _try(self, what: str, does: Callable[[], object]) -> None:
        """One refusal or timeout of an hour is counted, and ends nothing."""
        try:
            does()
        except httpx.HTTPError as error:
            self.counted[f"failed: {type(error).__name__}"] += 1
        else:
            self.counted[what] += 1

    def _job(self, client: httpx.Client, model: str, shape: Mapping[str, int]) -> None:
        made = self._post(client, model, shape, TRIALS)
        with client.stream("GET", f"/v1/jobs/{made}/events", timeout=60) as events:
            for _ in events.raise_for_status().iter_lines():
                if self.stopping.is_set():
                    return
        client.get(f"/v1/jobs/{made}/trials").raise_for_status()
        client.get(f"/jobs/{made}").raise_for_status()

    def _cancelled(self, client: httpx.Client, model: str) -> None:
        made = self._post(client, model, SHAPES[0], 1)
        client.post(f"/v1/jobs/{made}/cancel").raise_for_status()

    def _post(self, client: httpx.Client, model: str, shape: Mapping[str, int], trials: int) -> str:
        body = {"kernel": "gemm", "shape": shape, "device_model": model, "sampler": "random"}
        body |= {"seed": next(self._numbers), "budget": {"trials": trials}}
        return str(client.post("/v1/jobs", json=body).raise_for_status().json()["id"])


@dataclass
class Watch:
    """Reads the memory and the CPU time of processes, and says both on stderr, SAID times in all."""

    programs: Mapping[str, Program]
    seconds: float
    samples: dict[str, list[Sample]] = field(init=False)
    cpu_s: dict[str, list[Sample]] = field(init=False)

    def __post_init__(self) -> None:
        self.samples = {name: [] for name in self.programs}
        self.cpu_s = {name: [] for name in self.programs}

    def run(self, stopping: threading.Event, counted: Mapping[str, int]) -> None:
        """Until `stopping`."""
        began = last_message = time.perf_counter()
        while not stopping.wait(max(0.1, self.seconds / SAMPLES)):
            now = time.perf_counter()
            for name, program in self.programs.items():
                with suppress(OSError, TypeError):  # it has just ended: the line that is missing is the answer
                    self.samples[name].append((now - began, program.own_mb()))
                    self.cpu_s[name].append((now - began, program.cpu_s(children=True)))
            if now - last_message >= self.seconds / SAID:
                last_message = now
                memory = ", ".join(f"{name} {rows[-1][1]:.1f}" for name, rows in self.samples.items() if rows)
                so_far = ", ".join(f"{times} {what}" for what, times in sorted(counted.items()))
                sys.stderr.write(f"soak {now - began:.0f} of {self.seconds:.0f} s: {memory} MiB; {so_far}\n")

    def cores(self, name: str) -> float:
        """CPU seconds a second of the second half."""
        (began_s, before), *_, (ended_s, after) = second_half(self.cpu_s[name])
        return (after - before) / (ended_s - began_s)


def soak(host: Host, served: Served, seconds: float) -> list[Row]:
    """Memory over time: an API under PER_SECOND questions, another under jobs, and that one's worker."""
    shop = Shop.open(host, "soak", MODELS)
    traffic = Traffic(shop)
    names = (f"API under {PER_SECOND} requests/s", "API under jobs", "worker under jobs")
    watch = Watch(dict(zip(names, (served.api, shop.api, shop.worker), strict=True)), seconds)
    server_s, own_s = host.server_cpu_s(), time.process_time()
    targets = (traffic.tune, traffic.look, lambda: watch.run(traffic.stopping, traffic.counted))
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    try:
        measured = load(served.job(7, seconds, per_second=PER_SECOND))
        server_s, own_s = host.server_cpu_s() - server_s, time.process_time() - own_s
    finally:
        traffic.stopping.set()
        for thread in threads:
            thread.join()
    shop.close()
    cores = {name: watch.cores(name) for name in names}
    cores |= {"PostgreSQL": server_s / seconds, "this script": own_s / seconds}
    cores["load"] = measured["generator_cpu_share"]
    about = {"requests": measured["answers"], "statuses": measured["statuses"], **traffic.counted}
    return [growth_row(name, watch.samples[name]) | about for name in names] + [cores_row(cores, seconds)]


def second_half(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The readings after half of the time."""
    return [sample for sample in samples if sample[0] >= samples[-1][0] / 2]


def growth_row(name: str, samples: Sequence[Sample]) -> Row:
    """Growth of the second half in MiB an hour with its 95 % interval: what a process takes to warm up is before that.

    Met where the whole interval is below FLAT_MIB_PER_H, missed where it is above; else, and after less than TELLS_S,
    the run was too short to tell.
    """
    late = second_half(samples)
    slope, half = trend(late)
    low, high = slope - half, slope + half
    met = True if high <= FLAT_MIB_PER_H else False if low > FLAT_MIB_PER_H else None
    series = [statistics.median(mb for _, mb in part) for part in parts(samples, min(SERIES, len(samples)))]
    first_mb, middle_mb, last_mb = series[0], series[len(series) // 2], series[-1]
    return {
        "name": f"memory over time: {name}",
        "value": round(slope, 1),
        "interval": [round(low, 1), round(high, 1)],
        "unit": "MiB/h (2nd half)",
        "goal": f"flat: <= {FLAT_MIB_PER_H:g}",
        "met": met if samples[-1][0] >= TELLS_S else None,
        "first_half_mib": round(middle_mb - first_mb, 2),
        "second_half_mib": round(last_mb - middle_mb, 2),
        "last_mib": round(last_mb, 1),
        "seconds": round(samples[-1][0]),
        "series_mib": [round(mb, 2) for mb in series],
    }


def trend(samples: Sequence[Sample]) -> tuple[float, float]:
    """The slope in MiB an hour and half of its 95 % interval: a line through the medians of PARTS equal parts."""
    made = parts(samples, PARTS)
    hours = [statistics.median(at for at, _ in part) / 3600 for part in made]
    memory = [statistics.median(mb for _, mb in part) for part in made]
    line = statistics.linear_regression(hours, memory)
    left = [mb - line.slope * at - line.intercept for at, mb in zip(hours, memory, strict=True)]
    spread = sum((at - statistics.fmean(hours)) ** 2 for at in hours)
    return line.slope, T_95 * (sum(one * one for one in left) / (PARTS - 2) / spread) ** 0.5


def parts(samples: Sequence[Sample], number: int) -> list[Sequence[Sample]]:
    """So many parts of about the same length, in order."""
    ends = [place * len(samples) // number for place in range(number + 1)]
    return [samples[begin:end] for begin, end in pairwise(ends)]


def cores_row(cores: Mapping[str, float], seconds: float) -> Row:
    """How much of the machine the load took."""
    return {
        "name": "CPU under that load",
        "value": round(sum(cores.values()), 2),
        "unit": "cores",
        "goal": None,
        "met": None,
        "seconds": round(seconds),
        "each": {name: round(one, 2) for name, one in cores.items()},
    }
