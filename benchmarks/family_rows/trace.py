"""A trace of launches of one product, none of whose sizes was met before, beside torch.mm."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tilewright.kernels.family import Family
from tilewright.tuner.devices.device import Device
from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.any_size.ranges import Ranges
from tilewright.tuner.runtime.known.answers import AnswerCache

ROUNDS = 3


def sizes_of(count: int, seed: int, largest: int) -> list[int]:
    """That many sizes, log-normal around 300."""
    generator = random.Random(seed)
    return [min(largest, max(1, round(generator.lognormvariate(5.7, 1.0)))) for _ in range(count)]


def trace(device: Device, family: Family, found: Callable[[], Ranges | None], count: int, seed: int) -> dict[str, Any]:
    """One trace through our launcher and through torch.mm, in turns of three; no call warms up.

    Times are the host's, from the first call to the end of the last. Ranges are the table's where there is one, else
    those that a launcher finds for itself.
    """
    import torch  # noqa: PLC0415 - the other parts need none

    torch.backends.cuda.matmul.allow_tf32 = False
    is_gpu = device.model.kind == "cuda"
    place, wait = ("cuda", torch.cuda.synchronize) if is_gpu else ("cpu", lambda: None)
    free = torch.cuda.mem_get_info if is_gpu else lambda: (0, 0)
    n, k = family.largest.shape["n"], family.largest.shape["k"]
    sizes, kind = sizes_of(count, seed, family.high), getattr(torch, family.dtype)
    x, w = (torch.randn(*shape, device=place).to(kind) for shape in ((family.high, k), (k, n)))
    y = torch.empty(family.high, n, device=place, dtype=kind)
    torch.mm(x[:64], w, out=y[: min(64, family.high)])  # the library is loaded
    ranges = found()
    with tempfile.TemporaryDirectory() as folder:
        runtime = Runtime(answers=AnswerCache(Path(folder) / "answers"), check_first_use=False)  # ours alone
        if ranges is not None:
            runtime.families.pin({family: ranges}, device.model.slug)
        begun, free_bytes = time.perf_counter(), free()[0]
        launch = runtime.any_size("gemm", {"n": n, "k": k}, dtype=family.dtype, largest=family.high)
        launch.prepare("cuda:0" if is_gpu else "cpu")
        prepare_s = time.perf_counter() - begun
    calls: dict[str, Callable[[int], object]] = {
        "ours": lambda m: launch(x[:m], w, y[:m]),
        "library": lambda m: torch.mm(x[:m], w, out=y[:m]),
    }
    first_us: list[float] = []
    warm_us: list[float] = []
    new = set(sizes)
    totals: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            wait()
            start = time.perf_counter()
            for m in sizes:
                before = time.perf_counter_ns()
                call(m)
                if name == "ours":
                    (first_us if m in new else warm_us).append((time.perf_counter_ns() - before) / 1e3)
                    new.discard(m)
            wait()
            totals[name].append(time.perf_counter() - start)
    return {
        "sizes": len(set(sizes)),
        "ranges_from": "table" if ranges is not None else "launcher",
        "ranges": len(launch.ranges("cuda:0" if is_gpu else "cpu")),
        "prepare_s": prepare_s,
        "first_trace_ratio": totals["library"][0] / totals["ours"][0],
        "trace_ratio": statistics.median(totals["library"]) / statistics.median(totals["ours"]),
        "memory_mb": (free_bytes - free()[0]) / 1e6,
        "first_call_us": statistics.median(first_us),
        "first_call_most_us": max(first_us),
        "warm_call_us": statistics.median(warm_us),
    }
