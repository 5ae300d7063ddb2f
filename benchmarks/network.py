"""Times the digits network at batch 256 on a GPU: each step of the kernels, and PyTorch in three ways.

    python benchmarks/network.py [--seconds 4] [--out FILE]
    python benchmarks/network.py --table benchmarks/results/h200/network.json [--docs]

Needs PyTorch beside the project's own packages. Kernels are tuned first, a search a layer and variant. The sum of
kernel times is CUPTI's, by torch.profiler, for PyTorch's kernels and ours alike; all take turns in one trace.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from documents.file import now, put_into, write
from network_table import table as network_table
from network_table import times as network_times
from network_table import tuning as network_tuning
from network_table.paths import DevicePath, compiled, eager, graphed, launched, uncaptured

from tilewright.tuner.devices.local import open_device
from tilewright.tuner.loop import statistics
from tilewright.tuner.loop.tune import Budget
from tilewright.tuner.network import digits
from tilewright.tuner.network.network import Matrix, Network

BATCH, SECONDS = 256, 4.0
COMPILED = ("default", "max-autotune")
"""Modes of torch.compile."""
HELD_OUT = Path(__file__).parents[1] / "tests" / "data" / "digits_held_out.npz"
RESULT = Path(__file__).parent / "results" / "h200" / "network.json"
DOCS = Path("docs/network.md")

Row = dict[str, Any]


def main() -> None:
    """Reads the command line; tunes, times, writes and prints the table, or only prints one."""
    arguments = parse()
    if arguments.table:
        document = json.loads(arguments.table.read_text(encoding="utf-8"))
        if arguments.docs:
            put_into(DOCS, "network", network_table.table(document) + "\n")
        print(network_table.table(document))
        return
    network = digits.trained()
    x, labels = batch_of_digits(arguments.batch)
    device = open_device("cuda:0")
    steps = network_tuning.tuned_steps(device, network, arguments.batch, Budget(seconds=arguments.seconds))
    device.close()
    document = {
        "written_at": now(),
        "command": f"python benchmarks/network.py --batch {arguments.batch} --seconds {arguments.seconds:g}",
        "sizes": list(network.sizes),
        "batch": arguments.batch,
        "flops": network.flops(arguments.batch),
        "weights": dict(network.about),
        "device": device.model.name,
        "environment": asdict(device.environment),
        "budget": {"seconds": arguments.seconds, "searches": "one a layer and step, one for softmax and classifier"},
    }
    measure(document, network, x, labels, steps)
    write(arguments.out, document)
    print(network_table.table(document))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each search")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--table", type=Path, help="only print what this file holds")
    parser.add_argument("--docs", action="store_true", help=f"with --table: put its table into {DOCS}")
    return parser.parse_args()


def batch_of_digits(batch: int) -> tuple[Matrix, Any]:
    """Inputs (batch, 784) and labels: held-out digits, from the first, again from the first where they end."""
    with np.load(HELD_OUT) as stored:
        chosen = np.arange(batch) % len(stored["labels"])
        return digits.images(stored["cells"][chosen]), stored["labels"][chosen]


def measure(document: Row, network: Network, x: Matrix, labels: Any, steps: Sequence[network_tuning.Step]) -> None:
    """Adds the GPU's rows and the facts about PyTorch to the document."""
    import torch  # noqa: PLC0415 - the tuner's processes are done with the GPU first

    exact = reference(network, x)
    document["torch"] = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "allow_tf32": torch.backends.cuda.matmul.allow_tf32,
    }
    stream = torch.cuda.Stream()
    with torch.inference_mode(), torch.cuda.stream(stream):
        placed = torch.from_numpy(x).cuda()
        paths = ways(torch, network, placed, steps)
        document["rows"] = device_rows(torch, paths, exact, labels)
    absent = {step.name: step.absent for step in steps if step.absent}
    for row in document["rows"]:
        row["absent"] = absent.get(row["name"], [])


def ways(torch: Any, network: Network, x: Any, steps: Sequence[network_tuning.Step]) -> list[DevicePath]:
    """Every way on the GPU, ready; what PyTorch cannot compile here is left out, with its reason on standard error."""
    paths = [launched(torch, network, x, step) for step in steps]
    paths.append(uncaptured(paths[-1], f"{paths[-1].label}; launched one by one"))
    model = eager(torch, network, x)
    paths += [model, graphed(torch, model)]
    for mode in COMPILED:
        label = "PyTorch, torch.compile" + ("" if mode == "default" else f" ({mode})")
        path = compiled(torch, model, mode, label)
        try:
            for _ in range(3):
                path.enqueue()
            torch.cuda.synchronize()
        except (RuntimeError, OSError) as error:  # no compiler, no Triton, no room
            print(f"{label}: {error}", file=sys.stderr)
            continue
        paths.append(path)
    return paths


def reference(network: Network, x: Matrix) -> Any:
    """Probabilities in float64."""
    y = x.astype(np.float64)
    for layer in network.layers:
        y = y @ layer.weights.T.astype(np.float64) + layer.bias
        y = np.maximum(y, 0) if layer.activation == "relu" else y
    y = np.exp(y - y.max(axis=1, keepdims=True))
    return y / y.sum(axis=1, keepdims=True)


def checked(probabilities: Matrix, exact: Any, labels: Any) -> Row:
    """The worst error of a probability, and the share that it gets right."""
    return {
        "max_error": float(np.abs(probabilities - exact).max()),
        "accuracy": round(float((probabilities.argmax(axis=1) == labels).mean()), 4),
    }


def device_rows(torch: Any, paths: Sequence[DevicePath], exact: Any, labels: Any) -> list[Row]:
    """The rows of the GPU, each with its ratio to eager PyTorch, round by round."""
    batch, classes = exact.shape
    given, taken = torch.empty(tuple(paths[0].x.shape), pin_memory=True), torch.empty((batch, classes), pin_memory=True)
    given.copy_(paths[0].x)
    traced = network_times.traced(torch, paths)
    alone = network_times.passes(torch, paths, lambda _path: None, lambda _path: None)
    whole = network_times.passes(
        torch,
        paths,
        lambda path: path.x.copy_(given, non_blocking=True),
        lambda path: taken.copy_(path.probabilities(), non_blocking=True),
    )
    base = next(place for place, path in enumerate(paths) if path.name == "torch_eager")
    eager_us = [turn["us"] for turn in traced[base]]
    rows = []
    for path, turns, passed, carried in zip(paths, traced, alone, whole, strict=True):
        kernels_us = [turn["us"] for turn in turns]
        ratio, interval = statistics.ratio_interval(eager_us, kernels_us)
        path.enqueue()
        torch.cuda.synchronize()
        rows.append(
            {
                "name": path.name,
                "label": path.label,
                "kernels_us": network_times.summary(kernels_us),
                "kernels": turns[0]["kernels"],
                "by_kernel_us": {
                    name: statistics.median([turn["by_name"].get(name, 0.0) for turn in turns])
                    for name in turns[0]["by_name"]
                },
                "times_eager": {"median": ratio, "low": interval.low, "high": interval.high},
                "pass_us": network_times.summary(passed),
                "with_transfers_us": network_times.summary(carried),
                "configurations": dict(path.configurations),
            }
            | checked(path.probabilities().cpu().numpy(), exact, labels)
        )
    return rows


if __name__ == "__main__":
    main()
