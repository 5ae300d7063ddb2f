"""What the GPU does in one call of a model, kernel by kernel: what binds where a goal is missed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

LONGEST_NAME = 72


def profiled(call: Callable[[], Any]) -> dict[str, Any]:
    """Of one warm call: its launches, the time in which a kernel ran, from the first to the last, and that of each.

    Times are in microseconds. The profiler lengthens the pauses between kernels, so that `span_us` is no model's time.
    """
    for _ in range(2):  # the profiler's first run sets it up
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            call()
            torch.cuda.synchronize()
    spans = [
        (one.time_range.start, one.time_range.end, one.name) for one in seen.events() if one.device_type.name == "CUDA"
    ]
    kernels: dict[str, list[float]] = {}
    for start, end, name in sorted(spans):
        kernels.setdefault(name[:LONGEST_NAME], []).append(end - start)
    by_time = sorted(kernels.items(), key=lambda one: -sum(one[1]))
    return {
        "launches": len(spans),
        "busy_us": round(sum(end - start for start, end, _ in spans), 1),
        "span_us": round(max(end for _, end, _ in spans) - min(start for start, *_ in spans), 1) if spans else 0.0,
        "kernels": {name: [len(times), round(sum(times), 1)] for name, times in by_time},
    }
