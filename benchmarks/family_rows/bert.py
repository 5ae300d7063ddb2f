"""BERT-base in FP32 at random batches and lengths after one `accelerate`, beside the model as PyTorch runs it."""

from __future__ import annotations

import copy
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import BertConfig, BertModel

import tilewright.torch as tw
from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.known.answers import AnswerCache

MOST_BATCH, LENGTHS = 16, (16, 512)
SAMPLE = (8, 256)
"""Batch and length that `accelerate` is given: the middle of both."""

WARM_UP = (*((1, 2**power) for power in range(4, 10)), (2, 512), (4, 512), (8, 512), (16, 512))
"""Batches and lengths that double the number of rows each time: the code of every range is loaded by them."""

MOST_ERROR = 1e-4  # of the output after twelve layers: in FP32 it is some 1e-6
COSTLIEST = 12  # kernels that are listed


def sizes_of(count: int, seed: int) -> list[tuple[int, int]]:
    """That many batches and lengths, each drawn by itself."""
    generator = random.Random(seed)
    return [(generator.randint(1, MOST_BATCH), generator.randint(*LENGTHS)) for _ in range(count)]


def bert(count: int, seed: int, limit_s: float) -> dict[str, Any]:
    """Times of both models over the same calls: kernels' and the host's, and the ratios, PyTorch's over ours.

    Neither model has met the sizes of a first pass (`first_total_s`, `first_host_ms`), for which nothing compiles.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(seed)
    config = BertConfig()
    with torch.device("cuda"):
        eager = BertModel(config).eval()
    ours = copy.deepcopy(eager)

    def texts(sizes: Sequence[tuple[int, int]]) -> list[Any]:
        return [torch.randint(config.vocab_size, size, device="cuda") for size in sizes]

    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        tw.use(Runtime(answers=AnswerCache(Path(folder) / "answers"), any_size_operators=True))
        begun = time.perf_counter()
        result = tw.accelerate(ours, *texts([SAMPLE]), compiles=None, keep=False, limit_s=limit_s)
        accelerated = time.perf_counter()
        for one in texts(WARM_UP):
            _check(eager(one)[0], ours(one)[0])
        torch.cuda.synchronize()
        facts = {
            "way": result.way,
            "reason": result.reason,
            "remarks": result.remarks,
            "replaced": len(result.stands),
            "any_rows": sum(stand.any_rows for stand in result.stands),
            "accelerate_s": accelerated - begun,
            "warm_up_s": time.perf_counter() - accelerated,
        }
        measured = _measured(
            {"eager": eager, "ours": ours}, texts(sizes_of(count, seed)), texts(sizes_of(count, seed + 1))
        )
        tw.use(None)
    return facts | measured


def _measured(models: dict[str, Callable[[Any], Any]], texts: Sequence[Any], others: Sequence[Any]) -> dict[str, Any]:
    """`others`: as many texts of other sizes, for the host's time."""
    rows: dict[str, Any] = {}
    passes = (
        ("first_total_s", _total_s, texts),
        ("total_s", _total_s, texts),
        ("first_host_ms", _host_ms, others),
        ("host_ms", _host_ms, others),
    )
    for name, measure, calls in passes:
        rows[name] = {way: measure(model, calls) for way, model in models.items()}
    kernels = {way: _kernels(model, texts) for way, model in models.items()}
    rows["gpu_s"] = {way: sum(found.values()) / 1e6 for way, found in kernels.items()}
    for name in ("first_total", "total", "gpu"):
        rows[f"{name}_ratio"] = rows[f"{name}_s"]["eager"] / rows[f"{name}_s"]["ours"]
    rows["kernels_ms"] = {
        way: {name: round(us / 1e3, 2) for name, us in found.most_common(COSTLIEST)} for way, found in kernels.items()
    }
    return rows


def _total_s(model: Callable[[Any], Any], texts: Sequence[Any]) -> float:
    """From the first call to the end of the last."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for one in texts:
        model(one)
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def _host_ms(model: Callable[[Any], Any], texts: Sequence[Any]) -> float:
    """The median time until a call returns, where the GPU has nothing to do before it."""
    times = []
    for one in texts:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        model(one)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e3


def _kernels(model: Callable[[Any], Any], texts: Sequence[Any]) -> Counter[str]:
    """Microseconds in which each kernel ran, by name."""
    for calls in (texts[:1], texts):  # the profiler's first run sets it up
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            for one in calls:
                model(one)
            torch.cuda.synchronize()
    found: Counter[str] = Counter()
    for event in seen.events():
        if event.device_type.name == "CUDA":
            found[event.name[:72]] += event.time_range.end - event.time_range.start
    return found


def _check(expected: Any, found: Any) -> None:
    error = ((found - expected).norm() / expected.norm()).item()
    if not error < MOST_ERROR:
        raise ValueError(f"the replaced model's output at {tuple(found.shape)} is off by {error:.1e}")
