"""Layers of public models in a process that knows nothing of them: their first calls, and what is settled then.

Sizes are drawn by a seed, or stated. The first 20 calls of each layer are timed one by one beside PyTorch's, with
everything that they cost. Then it is called until the choice between ours and PyTorch's is made, and both are timed in
turns behind a kernel that waits, so that events do not time the host: ten calls behind one another, and single ones.
With --tune each is then searched for so many seconds, and the answer timed as well, which may be a call of the
library's.

    python benchmarks/first_calls.py --count 40 --seed 11 --out benchmarks/results/h200/day_one_models.json
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import first_layers
import torch
from documents.file import now, write
from first_layers import Layer

import tilewright.torch as tw
from tilewright.tuner.devices.cuda import nvml
from tilewright.tuner.pytorch import plans
from tilewright.tuner.pytorch.acceleration.tuning import tune_now

CALLS, ROUNDS, LONGEST_S = 20, 15, 60.0
SLEEP_CYCLES = 1_000_000  # about half a millisecond
BATCH, BATCH_MS = 10, 2.0
"""Calls behind one another that are timed as one, as a model has them, and what these may take in all."""
SLACK_MS = 0.2
"""What a first call may take beyond twice PyTorch's."""

Call = Callable[[], Any]


def main() -> None:
    """Measures, prints a line a layer and the means, and writes the JSON where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=16, help="of layers a dtype")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--shape", action="append", type=sizes, help="a layer in place of those: m=2,n=3584,k=18944")
    parser.add_argument("--kernels", nargs="+", default=["linear"], choices=sorted(first_layers.SIDES))
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--tune", type=float, default=0.0, metavar="SECONDS", help="of a search for each layer")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    torch.backends.cudnn.benchmark = True
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TILEWRIGHT_CACHE_DIR"] = folder
        for kernel, dtype in product(arguments.kernels, arguments.dtypes):
            drawn = arguments.shape or first_layers.shapes(kernel, arguments.count, arguments.seed)
            layers = [{"kernel": kernel, "shape": shape, "dtype": dtype} for shape in drawn]
            rows += (made := measured(layers, arguments.tune))
            for name in ["ratio", "tuned_ratio"] if arguments.tune else ["ratio"]:
                ratios = [row[name] for row in made]
                mean = statistics.geometric_mean(ratios)
                print(f"{kernel} {dtype} {name}: {mean:.3f} in the geometric mean, {min(ratios):.3f} at least")
            if arguments.out:
                command = shlex.join(["python", "benchmarks/first_calls.py", *sys.argv[1:]])
                device = {"device": torch.cuda.get_device_name(), "driver": nvml.driver_version()}
                write(arguments.out, {"command": command, **device, "made_at": now(), "rows": rows})


def sizes(text: str) -> first_layers.Shape:
    """The sizes that a text such as "m=2,n=3584,k=18944" states."""
    return {axis: int(size) for axis, _, size in (pair.partition("=") for pair in text.split(","))}


def measured(rows: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """The rows with what was measured; `seconds` of a search for each."""
    layers = [first_layers.layer(row["kernel"], row["shape"], row["dtype"]) for row in rows]
    for row, one in zip(rows, layers, strict=True):
        alone = [called_ms(one.library) for _ in range(CALLS)]
        first = [called_ms(one.ours) for _ in range(CALLS)]
        row.update(first_calls_ms=sum(first), library_calls_ms=sum(alone), longest_ms=max(first))
        row["library_longest_ms"] = max(alone)
        row["longest_allowed_ms"] = 2 * statistics.median(alone) + SLACK_MS
    for row, one in zip(rows, layers, strict=True):
        row["decision"] = settled(one)
        row.update(in_turns(one))
        print(row, flush=True)
    if seconds:
        tune(layers, seconds)
        for row, one in zip(rows, layers, strict=True):
            row["tuned"], row["known_ms"] = settled(one), [told(one).ours_ms, told(one).pytorch_ms]
            row.update({f"tuned_{name}": value for name, value in in_turns(one).items()})
            print(row, flush=True)
    return rows


def tune(layers: Sequence[Layer], seconds: float) -> None:
    """Searches each of the layers."""
    found = [one.operator.plans.find(*one.arguments) for one in layers]
    known = {one.launcher.posed(*one.posed.arrays)[0]: one.choice.configuration for one in found}
    failures = tune_now(plans.runtime(), known, "cuda:0", seconds, known)
    if failures:
        print(failures)
    plans.look_again()


def called_ms(call: Call) -> float:
    """Of one call and its result, as the caller's clock has it."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) * 1e3


def settled(layer: Layer) -> str:
    """What was decided, after calls behind a kernel that waits."""
    begun = time.perf_counter()
    while True:
        torch.cuda._sleep(SLEEP_CYCLES)  # noqa: SLF001 - no public call waits on the GPU
        for _ in range(4):
            layer.ours()
        torch.cuda.synchronize()
        one = told(layer)
        is_open = "takes turns" in one.reason or "until a configuration is found" in one.reason
        if not is_open or time.perf_counter() - begun > LONGEST_S:
            return f"{'ours' if one.is_ours else 'PyTorch'}: {one.reason}"


def told(layer: Layer) -> Any:
    """What `status` says of the layer."""
    own = (one for one in tw.status() if one.operator == layer.operator.name)
    return next(one for one in own if one.call.startswith(layer.shown) and one.call.endswith(layer.dtype))


def in_turns(layer: Layer) -> dict[str, float]:
    """Medians of both a call, and how many times as fast the layer is as PyTorch's: in batches, and `single`."""
    both = {"settled_ms": layer.ours, "torch_ms": layer.library}
    single = medians(both, 1)
    count = max(1, min(BATCH, int(BATCH_MS / max(single.values()))))
    found = medians(both, count) if count > 1 else single
    ratios = {name: one["torch_ms"] / one["settled_ms"] for name, one in {"ratio": found, "single": single}.items()}
    return found | ratios


def medians(calls: dict[str, Call], count: int) -> dict[str, float]:
    """Milliseconds a call, of `count` behind one another, in interleaved rounds behind a kernel that waits."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS):
        for name, call in sorted(calls.items(), reverse=number % 2 == 0):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(SLEEP_CYCLES * (1 + count // 2))  # noqa: SLF001 - no public call waits on the GPU
            begin.record()
            for _ in range(count):
                call()
            end.record()
            torch.cuda.synchronize()
            times[name].append(begin.elapsed_time(end) / count)
    return {name: statistics.median(of_one) for name, of_one in times.items()}


if __name__ == "__main__":
    main()
