"""Attention in FP32 beside every backend of PyTorch that computes it: times, and errors against float64.

    python benchmarks/attention.py [--out FILE] [--rounds 9]

Needs a GPU of compute capability 9.0, PyTorch and NVRTC. TF32 is off. Times are medians of interleaved rounds, of
several launches behind one another (warm) and of one after 256 MiB have been written (cold), with packing of K and V. A
row's configuration is the fastest of some; all of them are in `configurations`. `same_bits_each_time` is of 50 launches
of each configuration.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilewright.kernels.attention.declaration import KERNEL
from tilewright.kernels.attention.tensor_fp16_sm90_space import TENSOR3XFP16_SM90
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.cache import CubinCache, default_folder
from tilewright.tuner.compile.compilation import Compilation
from tilewright.tuner.compile.compiler import default_compiler
from tilewright.tuner.compile.pool import CompilePool
from tilewright.tuner.pytorch.operators.attention import ATTENTION
from tilewright.tuner.pytorch.recording.operators import posed_problem
from tilewright.tuner.runtime.launches.gpu import gpu_place
from tilewright.tuner.runtime.runtime import Runtime

SHAPES = ((8, 12, 512, 64), (32, 12, 197, 64), (1, 32, 2048, 128), (4, 16, 1024, 64))
MASKS = ("none", "causal")
ACCURACY_KEYS = (64, 512, 2048, 8192)
KINDS = ("normal", "uniform", "large lines", "dominant key", "masked rows")
BACKENDS = {"efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH, "cudnn": SDPBackend.CUDNN_ATTENTION}
TILES = {64: ((64, 2), (64, 3), (80, 2), (112, 2), (128, 2)), 128: ((48, 2), (64, 2))}
WARM_LAUNCHES, REPEATS, COLD_BYTES = 8, 50, 1 << 28

Call = Callable[[], torch.Tensor]


def drawn(shape: Sequence[int], kind: str) -> list[torch.Tensor]:
    """Q, K and V of that kind."""
    generator = torch.Generator("cuda").manual_seed(7)
    draw = torch.rand if kind == "uniform" else torch.randn
    arrays = [draw(*shape, device="cuda", generator=generator) for _ in range(3)]
    if kind == "large lines":
        lines = (*shape[:-1], 1)
        arrays = [x * torch.exp2(torch.randint(-6, 7, lines, device="cuda", generator=generator)) for x in arrays]
    if kind == "dominant key":
        arrays[1][:, :, shape[2] // 3] *= 12
    return arrays


def library(arrays: Sequence[torch.Tensor], mask: Any, backend: SDPBackend) -> torch.Tensor:
    """PyTorch's result by that backend; `mask` is a word, or numbers to add."""
    added = mask if isinstance(mask, torch.Tensor) else None
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(
            *arrays, attn_mask=added, is_causal=mask == "causal" if added is None else False
        )


def errors(found: torch.Tensor, exact: torch.Tensor) -> dict[str, Any]:
    """Of the whole, and of the worst row, relative to their lengths; whether rows of zeros are zero is apart."""
    difference, length = (found.double() - exact).norm(dim=-1), exact.norm(dim=-1)
    counts = length > 0
    difference, zeros = difference[counts], difference[~counts]
    worst = float((difference / length[counts]).max())
    return {"whole": float(difference.norm() / length.norm()), "worst_row": worst, "zeros": bool((zeros == 0).all())}


def posed(arrays: Sequence[torch.Tensor], mask: Any) -> tuple[Problem, tuple[Any, ...]]:
    """The problem of a call of the operator, and the operator's arguments."""
    added = mask if isinstance(mask, torch.Tensor) else None
    arguments = (*arrays, added, mask == "causal" if added is None else False, None, False)
    return posed_problem(KERNEL.name, ATTENTION.plans.posed(*arguments), torch.float32), arguments


def configurations(problem: Problem) -> list[Configuration]:
    """Some of the search space that are worth a try; the order of tiles matters where they have unequal work."""
    tiles = [{"TILE_KEYS": keys, "MULTIPLIERS": warpgroups} for keys, warpgroups in TILES[problem.shape["depth"]]]
    orders = [{"HEADS_TOGETHER": count} for count in ((8, 32, 1024) if problem.options["mask"] == "causal" else (8,))]
    usual = {p.name: p.default for p in TENSOR3XFP16_SM90.parameters}
    tried = [Configuration.of(TENSOR3XFP16_SM90.name, usual | tile | order) for tile in tiles for order in orders]
    space = KERNEL.space(problem, gpu_place(0).limits)
    return [configuration for configuration in tried if configuration in space]


def launcher(problem: Problem, arguments: tuple[Any, ...], configuration: Configuration) -> Call:
    """A launch of that configuration into one array."""
    runtime = Runtime(pinned={problem: configuration}, only_tuned=True, shipped_records=False)
    result = torch.full_like(arguments[0].transpose(1, 2), math.nan, memory_format=torch.contiguous_format).transpose(
        1, 2
    )
    call = ATTENTION.plans.posed(*arguments)
    launch = runtime.best(KERNEL.name, **call.named)
    arrays = (*call.arrays[:-1], result)

    def run() -> torch.Tensor:
        launch(*arrays, **call.numbers)
        return result

    return run


def times(calls: Mapping[str, Call], rounds: int) -> dict[str, dict[str, float]]:
    """Medians of each, in ms, warm and cold."""
    taken: dict[str, dict[str, list[float]]] = {name: {"time_ms": [], "cold_ms": []} for name in calls}
    flushed = torch.empty(COLD_BYTES, dtype=torch.uint8, device="cuda")
    for call in calls.values():
        for _ in range(3):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            for key, count in (("time_ms", WARM_LAUNCHES), ("cold_ms", 1)):
                if count == 1:
                    flushed.zero_()
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                for _ in range(count):
                    call()
                end.record()
                end.synchronize()
                taken[name][key].append(start.elapsed_time(end) / count)
    return {name: {key: sorted(x)[len(x) // 2] for key, x in one.items()} for name, one in taken.items()}


def compile_all(cases: Sequence[tuple[Problem, Configuration]]) -> None:
    """Fills the cache, several at a time."""
    with CompilePool(cache=CubinCache(default_folder())) as pool:
        waiting = [pool.submit(Compilation.of(KERNEL, p, c, "sm_90", default_compiler())) for p, c in cases]
        for one in waiting:
            one.result()


def measured(shape: Sequence[int], mask: str, rounds: int) -> dict[str, Any]:
    """A row: our fastest configuration and PyTorch's fastest backend."""
    arrays = drawn(shape, "normal")
    problem, arguments = posed(arrays, mask)
    exact = library([x.double() for x in arrays], mask, SDPBackend.MATH)
    calls: dict[str, Call] = {str(c): launcher(problem, arguments, c) for c in configurations(problem)}
    ours, off, steady = list(calls), {}, True
    for name in ours:
        first = calls[name]().clone()
        steady &= all(torch.equal(first, calls[name]()) for _ in range(REPEATS))
        off[name] = errors(first, exact)
    for name, backend in BACKENDS.items():
        try:
            off[name] = errors(library(arrays, mask, backend), exact)
        except RuntimeError:  # it does not compute in FP32
            continue
        calls[name] = lambda backend=backend: library(arrays, mask, backend)
    taken = times(calls, rounds)
    best, other = (
        min(names, key=lambda n: taken[n]["time_ms"]) for names in (ours, [n for n in calls if n not in ours])
    )
    return {
        "shape": dict(zip(("batch", "heads", "length", "depth"), shape, strict=True)),
        "mask": mask,
        **taken[best],
        "configuration": best,
        "error": off[best],
        "library_ms": taken[other]["time_ms"],
        "library_cold_ms": taken[other]["cold_ms"],
        "backend": other,
        "library_error": off[other],
        "gain": taken[other]["time_ms"] / taken[best]["time_ms"],
        "same_bits_each_time": steady,
        "configurations": {name: taken[name] | {"error": off[name]} for name in calls},
    }


def in_words(row: Mapping[str, Any]) -> str:
    """A row's figures in a line."""
    ours, theirs = row["error"], row["library_error"]
    return (
        f"{row['time_ms'] * 1e3:7.1f} us, {row['backend']} {row['library_ms'] * 1e3:7.1f} us: {row['gain']:.2f} x; "
        f"cold {row['cold_ms'] * 1e3:.1f} and {row['library_cold_ms'] * 1e3:.1f} us; errors {ours['whole']:.1e} and "
        f"{theirs['whole']:.1e}, worst row {ours['worst_row']:.1e} and {theirs['worst_row']:.1e}; same bits "
        f"{row['same_bits_each_time']}; {row['configuration']}"
    )


def inputs(keys: int, kind: str) -> tuple[list[torch.Tensor], Any]:
    """Arrays of that kind, and their mask."""
    arrays = drawn((1, 2, keys, 64), kind)
    if kind != "masked rows":
        return arrays, "none"
    generator = torch.Generator("cuda").manual_seed(8)
    is_out = torch.rand(keys, keys, device="cuda", generator=generator) < 0.3
    is_out[keys // 2] = True
    return arrays, torch.zeros(keys, keys, device="cuda").masked_fill_(is_out, -math.inf)


def accuracy(keys: int, kind: str) -> dict[str, Any]:
    """Errors beside those of PyTorch's fast backend."""
    arrays, mask = inputs(keys, kind)
    problem, arguments = posed(arrays, mask)
    wide = [x.double() for x in arrays]
    exact = library(wide, mask.double() if isinstance(mask, torch.Tensor) else mask, SDPBackend.MATH)
    ours = errors(launcher(problem, arguments, configurations(problem)[0])(), exact)
    theirs = errors(library(arrays, mask, SDPBackend.EFFICIENT_ATTENTION), exact)
    return {"keys": keys, "kind": kind, "error": ours, "library_error": theirs}


def main() -> int:
    """Measures, prints a line a row, and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200/attention.json"))
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    every = [(shape, mask) for shape in SHAPES for mask in MASKS]
    cases = [posed(drawn(shape, "normal"), mask)[0] for shape, mask in every]
    some = [posed(*inputs(keys, kind))[0] for keys in ACCURACY_KEYS for kind in ("normal", "masked rows")]
    compile_all([(p, c) for p in cases for c in configurations(p)] + [(p, configurations(p)[0]) for p in some])
    rows = []
    for shape, mask in every:
        row = measured(shape, mask, arguments.rounds)
        rows.append(row)
        print(f"{shape!s:20} {mask:7} {in_words(row)}", flush=True)
    gains = [row["gain"] for row in rows]
    mean = math.exp(sum(map(math.log, gains)) / len(gains))
    print(f"geometric mean {mean:.2f}, least {min(gains):.2f}", flush=True)
    exactness = [accuracy(keys, kind) for keys in ACCURACY_KEYS for kind in KINDS]
    for one in exactness:
        ratios = [one["error"][x] / max(one["library_error"][x], 1e-30) for x in ("whole", "worst_row")]
        print(
            f"{one['keys']:5} keys, {one['kind']:12} {ratios[0]:.2f} and {ratios[1]:.2f} of PyTorch's error", flush=True
        )
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    document = {
        "device": torch.cuda.get_device_name(),
        "driver": subprocess.run(query, stdout=subprocess.PIPE, text=True, check=True).stdout.strip(),
        "torch": torch.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "command": "python benchmarks/attention.py",
        "geometric_mean": mean,
        "least": min(gains),
        "rows": rows,
        "accuracy": exactness,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
