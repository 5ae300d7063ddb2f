"""Normalisations, softmax and gated pairs beside eager PyTorch, and beside a copy of as many bytes.

Our winner takes turns with torch.nn.functional's function, and with a copy by PyTorch of half the bytes that the
problem must move, on one stream of one process, with a cold L2 cache. Launches of PyTorch's for a gated pair, two
products and what follows, are one CUDA graph, so that nothing waits for the host.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from documents.file import now
from kernel_table.rows import SEED, Row, paired
from kernel_table.suite import Entry
from torch.nn import functional

from tilewright.kernels.norm.kernel import EPS
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner import roofline
from tilewright.tuner.devices.device import Device
from tilewright.tuner.devices.local import DeviceSpec, find_device
from tilewright.tuner.loop.tune import Budget, tune
from tilewright.tuner.loop.verify import verify_configuration

KERNELS = frozenset({"rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm", "softmax", "linear_gated"})


def best(device: Device, entry: Entry, budget: Budget) -> Configuration | None:
    """The winner of a search; None where no configuration was right."""
    kernel, problem = entry.declared, entry.problem
    bench = device.bench(kernel, problem, SEED)
    result = tune(bench, kernel, kernel.space(problem, device.model.limits), budget, seed=SEED)
    bench.close()
    return result.best.configuration if result.best else None


def rows(searching: Device, chosen: Iterable[tuple[Entry, Budget]]) -> Iterator[Row]:
    """A row for each entry whose winner is right with every kind of inputs, as soon as its search is over.

    `searching` is a process of its own and idle meanwhile; rows are measured in this one, as PyTorch's functions are.
    """
    device: Any = DeviceSpec(find_device("cuda:0").uuid).open()
    stream = torch.cuda.ExternalStream(device.stream.handle)
    for entry, budget in chosen:
        configuration = best(searching, entry, budget)
        if configuration is None:
            print(f"{entry.row}: the search found no right configuration", file=sys.stderr, flush=True)
            continue
        bench = device.bench(entry.declared, entry.problem, SEED)
        ours = bench.compile(configuration)
        if verify_configuration(bench, ours).is_right:
            with torch.cuda.stream(stream), torch.no_grad():
                yield _row(entry, configuration, bench, ours)
        else:
            print(f"{entry.row}: {configuration} is not right with every kind of inputs", file=sys.stderr, flush=True)
        bench.close()
    device.close()


def _row(entry: Entry, configuration: Configuration, bench: Any, ours: Any) -> Row:
    kernel, problem = entry.declared, entry.problem
    size = kernel.bytes_moved(problem) or 0
    by_torch = paired(bench, ours, bench.executable(eager(entry.kernel, problem)), "cold")
    copy = paired(bench, ours, bench.executable(copied(size // 2)), "cold")
    return {
        "name": entry.row,
        "kernel": entry.kernel,
        "dtype": entry.dtype,
        "shape": problem.stated_shape,
        "configuration": configuration.as_json(),
        "source_hash": kernel.source_hash(configuration.variant),
        "bytes_moved": size,
        "l2": "cold",
        **{key: by_torch[key] for key in ("time_ms", "ci_ms", "speedup", "speedup_ci")},
        "eager_ms": by_torch["library_ms"],
        "copy_ms": copy["library_ms"],
        "of_copy": copy["speedup"],
        "of_copy_ci": copy["speedup_ci"],
        "gb_per_s": roofline.gb_per_s(size, by_torch["time_ms"]),
        "measured_at": now(),
    }


def eager(kernel: str, problem: Problem) -> Callable[[], Any]:
    """PyTorch's call, or calls, on inputs of its own."""
    m, n = problem.shape["m"], problem.shape["n"]
    draw = partial(torch.randn, dtype=getattr(torch, problem.dtype), device="cuda")
    if kernel == "linear_gated":
        return gated_pair(draw(m, problem.shape["k"]), draw(n, problem.shape["k"]), draw(n, problem.shape["k"]))
    x, r, w, b = draw(m, n), draw(m, n), draw(n), draw(n)
    if kernel == "softmax":
        return lambda: functional.softmax(x, dim=-1)
    norms = {
        "rms_norm": lambda s: functional.rms_norm(s, (n,), w, EPS),
        "layer_norm": lambda s: functional.layer_norm(s, (n,), w, b, EPS),
    }
    norm = norms[kernel.removeprefix("add_")]
    return (lambda: norm(x + r)) if kernel.startswith("add_") else (lambda: norm(x))


def gated_pair(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> Callable[[], Any]:
    """Replays silu(x gate^T) * (x up^T)."""
    torch.cuda.current_stream().synchronize()
    graph = torch.cuda.CUDAGraph()
    functional.linear(x, gate)  # loads what is loaded once
    with torch.cuda.graph(graph):
        y = functional.silu(functional.linear(x, gate)) * functional.linear(x, up)

    def replay() -> tuple[torch.Tensor, ...]:
        graph.replay()
        return y, x, gate, up  # which live as long as the graph

    return replay


def copied(size: int) -> Callable[[], Any]:
    """PyTorch's copy of so many bytes."""
    source = torch.randint(256, (size // 16 * 16,), dtype=torch.uint8, device="cuda").view(torch.float32)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def line(row: Row) -> str:
    """The row as a line of the table in docs/measuring/normalisations.md."""
    low, high = row["speedup_ci"]
    cells = [
        f"`{row['name']}`",
        " ".join(f"{key}={value}" for key, value in row["configuration"].items() if key != "variant"),
        f"{row['time_ms'] * 1e3:.1f}",
        f"{row['gb_per_s']:.0f}",
        f"{row['eager_ms'] * 1e3:.1f}",
        f"{row['speedup']:.3f} [{low:.3f}, {high:.3f}]",
        f"{row['copy_ms'] * 1e3:.1f}",
        f"{row['of_copy']:.3f}",
    ]
    return "| " + " | ".join(cells) + " |"
