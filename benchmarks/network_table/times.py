"""Times of the network's ways: sums of kernel times by CUPTI, whole passes by CUDA events, the CPU's by the clock."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from network_table.paths import DevicePath

from tilewright.tuner.loop import statistics

ROUNDS, REPEATS = 21, 10
"""Rounds, in each of which every way takes its turn, and passes in a turn."""
MARKER = "spin_kernel"
"""The name of torch.cuda._sleep's kernel, which marks in a trace where a turn begins."""
ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
WARM_UP_S = 0.5

Row = dict[str, Any]


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Median, its 95 % interval and the interquartile range."""
    interval = statistics.median_interval(samples)
    return {
        "median": statistics.median(samples),
        "low": interval.low,
        "high": interval.high,
        "spread": statistics.spread(samples),
    }


def turns(count: int, rounds: int) -> list[int]:
    """Who is next: every round begins with another one, so that nobody always follows the same."""
    return [(shift + place) % count for shift in range(rounds) for place in range(count)]


def traced(torch: Any, paths: Sequence[DevicePath], rounds: int = ROUNDS, repeats: int = REPEATS) -> list[list[Row]]:
    """What CUPTI saw of each way, a row a round: `us`, the time of all kernels of a pass, and `kernels`, their number.

    torch.profiler hears of every kernel of the process through CUPTI, whoever launched it, also from inside of graphs.
    """
    order = turns(len(paths), rounds)
    _warm_up(torch, paths)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for place in order:
            torch.cuda._sleep(1)  # noqa: SLF001 - the shortest kernel that nobody else launches
            for _ in range(repeats):
                paths[place].enqueue()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    found: list[list[Row]] = [[] for _ in paths]
    for place, turn in zip(order, sections(events, len(order)), strict=True):
        names: dict[str, float] = {}
        for event in turn:
            names[event["name"]] = names.get(event["name"], 0.0) + event["dur"] / repeats
        found[place].append({"us": sum(names.values()), "kernels": len(turn) / repeats, "by_name": names})
    return found


def sections(events: Sequence[Row], count: int) -> list[list[Row]]:
    """The device's events between marks, in order; raises ValueError where the trace does not hold as many marks."""
    on_device = sorted((e for e in events if e.get("cat") in ON_DEVICE), key=lambda event: event["ts"])
    turns: list[list[Row]] = []
    for event in on_device:
        if MARKER in event["name"]:
            turns.append([])
        elif turns:
            turns[-1].append(event)
    if len(turns) != count or not all(turns):
        raise ValueError(f"the trace holds {len(turns)} turns, {sum(map(bool, turns))} with kernels, not {count}")
    return turns


def passes(
    torch: Any, paths: Sequence[DevicePath], before: Callable[[DevicePath], None], after: Callable[[DevicePath], None]
) -> list[list[float]]:
    """Microseconds of a pass by CUDA events, a median a round for each way; `before` and `after` count as its part."""
    _warm_up(torch, paths)
    pairs: list[list[tuple[Any, Any]]] = [[] for _ in paths]
    for place in turns(len(paths), ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(REPEATS):
            before(paths[place])
            paths[place].enqueue()
            after(paths[place])
        end.record()
        pairs[place].append((start, end))
        torch.cuda.synchronize()
    return [[start.elapsed_time(end) * 1e3 / REPEATS for start, end in each] for each in pairs]


def _warm_up(torch: Any, paths: Sequence[DevicePath]) -> None:
    """Runs all of them until the clock has risen."""
    begun = time.monotonic()
    while time.monotonic() - begun < WARM_UP_S:
        for path in paths:
            path.enqueue()
        torch.cuda.synchronize()
