"""Whole models with random weights: eager PyTorch, as a CUDA graph, torch.compile, and what `tw.accelerate` makes.

    python benchmarks/models --model bert --tune-seconds 3
    python benchmarks/models --goals

Needs PyTorch and transformers. Kernels are tuned here first, which `tune_s` tells, unless
they are known already (TILEWRIGHT_URL, TILEWRIGHT_BUNDLE, answers on disk) or with --tune-seconds 0. Copies of the
model, one of which `tw.accelerate` has, are then timed in interleaved rounds. TF32 is off in all of them. A row is
written as soon as it is there, to models.json in the folder of the device. --compile-graph adds `reduce-overhead`,
which is torch.compile with CUDA graphs; --compile-ours lets accelerate have torch.compile, and times replacements
under it in each mode, unless it has taken that way itself. --goals runs the programs that have goals and the twelve
that were drawn from population.json, with nothing tuned and PyTorch's ways as graphs too, each decided within
--decide-seconds; `again_s` is what deciding takes once that is kept. `accelerate_ms` are the times by which it decided.
A run with --tune-seconds 0 keeps the `tuned_s` of the row that it takes the place of.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from architectures import DRAWN, GOALS, MODELS, Architecture

import tilewright.torch as tw
from tilewright.tuner.devices.cuda.model import slug_of
from tilewright.tuner.loop import statistics
from tilewright.tuner.pytorch.acceleration import kept_results
from tilewright.tuner.pytorch.acceleration.graphs.graph import GraphForward
from tilewright.tuner.pytorch.acceleration.graphs.graph_capture import first_line
from tilewright.tuner.pytorch.acceleration.installation.installed import install
from tilewright.tuner.pytorch.acceleration.judgement.pace import within
from tilewright.tuner.pytorch.acceleration.judgement.sample import Sample
from tilewright.tuner.pytorch.acceleration.judgement.timing import Contestant, play
from tilewright.tuner.pytorch.acceleration.result import BOTH_GRAPH

SEED = 0
ROUNDS, COMPILE_S = 15, 600.0
Row = dict[str, Any]


def main() -> None:
    """Reads the command line, makes the rows, and writes each as it comes."""
    given = parse()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_grad_enabled(False)
    torch._dynamo.config.recompile_limit = 64  # noqa: SLF001 - rows of one class; over it models run eager
    document = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {"rows": []}
    until, scratch = time.monotonic() + given.stop_after, tempfile.TemporaryDirectory()
    kept_results.folder = lambda: Path(scratch.name)  # another run's decision is not this one's
    for row in (row for name in given.model or MODELS for row in whatever_fails(name, given, until)):
        name = row["model"]
        before = next((one for one in document["rows"] if one["model"] == name), {})
        if not given.tune_seconds and "tuned_s" in before:
            row["tuned_s"] = before["tuned_s"]
        document["rows"] = [one for one in document["rows"] if one["model"] != name] + [row]
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(as_text(document["rows"]), encoding="utf-8")


def as_text(rows: list[Row]) -> str:
    """The rows as JSON, a line a column."""
    columns = (",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in row.items()) for row in rows)
    return '{"rows": [\n' + ",\n".join(f" {{\n{one}\n }}" for one in columns) + "\n]}\n"


def whatever_fails(name: str, given: argparse.Namespace, until: float) -> Iterator[Row]:
    """The row's states; one with the reason where the model is not built or does not run."""
    try:
        yield from rows(name, MODELS[name], given, until)
    except Exception as error:  # noqa: BLE001 - an architecture that was drawn stays in the table
        print(f"{name}: {type(error).__name__}: {first_line(error)}", file=sys.stderr, flush=True)
        about = {"model": name, "drawn": name in DRAWN, "device": device_name(given.device)}
        yield about | {"failed": {"model": f"{type(error).__name__}: {first_line(error)}"}, "date": now()}


def now() -> str:
    """In UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS, help="repeatable; default: all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tune-seconds", type=float, default=5.0, help="of each problem without a result; 0: none")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--compile-graph", action="store_true", help="time torch.compile with CUDA graphs too")
    parser.add_argument("--compile-ours", action="store_true", help="time replacements under torch.compile too")
    parser.add_argument("--stop-after", type=float, default=3600.0, metavar="SECONDS", help="then nothing new begins")
    parser.add_argument("--goals", action="store_true", help="the programs that have goals, with nothing tuned")
    parser.add_argument("--decide-seconds", type=float, default=20.0, help="accelerate's limit_s")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/DEVICE/models.json, as h200")
    given = parser.parse_args()
    if given.goals:
        given.model, given.tune_seconds, given.compile_graph = given.model or [*GOALS], 0.0, True
    folder = slug_of(device_name(given.device)).removeprefix("nvidia-")
    given.out = given.out or Path(__file__).parents[1] / "results" / folder / "models.json"
    return given


def device_name(device: str) -> str:
    """The product's name, for instance NVIDIA H200."""
    return torch.cuda.get_device_name() if device.startswith("cuda") else "CPU"


def rows(name: str, architecture: Architecture, given: argparse.Namespace, until: float) -> Iterator[Row]:
    """The row with what is known so far: first without torch.compile, then with one more of its ways each time."""
    if time.monotonic() >= until:
        return
    torch.manual_seed(SEED)
    device = torch.device(given.device)
    with device:
        model, sample = architecture.build(architecture.batch, architecture.dtype)
    model = model.eval().to(device)
    call = Sample(sample)
    call.learn(model)
    ours, begun = copy.deepcopy(model), time.perf_counter()
    tuning = {"tune": "now", "tune_seconds": given.tune_seconds} if given.tune_seconds else {}
    asked = {"rounds": given.rounds, "limit_s": given.decide_seconds, "weights": architecture.weights, **tuning}
    asked["compiles"] = torch.compile if given.compile_ours or given.goals else None
    result = tw.accelerate(ours, sample, **asked)
    about = {"tuned_s" if tuning else "known_s": time.perf_counter() - begun, "drawn": name in DRAWN}
    begun, again = time.perf_counter(), copy.deepcopy(model)
    tw.accelerate(again, sample, **asked).undo()
    about["again_s"], again = time.perf_counter() - begun, None
    ways = {"eager_ms": model, **graph(model, sample), "ours_ms": ours}
    failed: dict[str, str] = {}
    about |= {"failed": failed}
    latest = row(name, architecture, given, timed(call, ways, given, device), result) | about
    yield latest
    for way, which, mode in compiled_ways(model, result, given):
        compiled_begun = time.perf_counter()
        try:
            with within(max(1.0, min(COMPILE_S, until - time.monotonic()))):
                made = torch.compile(which, mode=mode, dynamic=False)
                call(made)
                call(made)
        except Exception as error:  # noqa: BLE001 - compilers raise what they like, and the other ways are worth a row
            failed[way] = f"{type(error).__name__}: {first_line(error)}"
            print(f"{way}: {failed[way]}", file=sys.stderr)
            yield latest
            continue
        about |= {f"{way.removesuffix('_ms')}_s": time.perf_counter() - compiled_begun}
        ways[way] = made
        latest = row(name, architecture, given, timed(call, ways, given, device), result) | about
        yield latest


def graph(model: torch.nn.Module, sample: Any) -> dict[str, Any]:
    """The model as a CUDA graph of PyTorch's own kernels, where it becomes one."""
    if next(model.parameters()).device.type != "cuda":
        return {}
    forward, (positional, named) = GraphForward(model), ((), sample) if isinstance(sample, dict) else ((sample,), {})
    try:
        forward.capture(positional, named, 1e-2)
    except Exception as error:  # noqa: BLE001 - what cannot be captured raises what it likes
        print(f"graph_ms: {error}", file=sys.stderr)
        return {}
    return {"graph_ms": forward}


def compiled_ways(
    model: torch.nn.Module, result: tw.Acceleration, given: argparse.Namespace
) -> Iterator[tuple[str, torch.nn.Module, str | None]]:
    """What torch.compile is to make, with its mode: a column, of which model."""
    modes: dict[str, str | None] = {} if given.no_compile else {"compile_ms": None}
    modes |= {"compile_graph_ms": "reduce-overhead"} if given.compile_graph else {}
    ours = copy.deepcopy(model) if given.compile_ours and result.stands and result.way != BOTH_GRAPH else None
    if ours is not None:
        stands = [one.site.stand(compiled=True) for one in result.replaced]
        install(ours, stands, with_gradients=False)
    for way, mode in modes.items():
        yield way, model, mode
        if ours is not None:
            yield f"ours_{way}", ours, mode


def timed(
    call: Sample, ways: dict[str, Any], given: argparse.Namespace, device: torch.device
) -> dict[str, list[float]]:
    """Milliseconds, a number a round, of every way."""
    prepared = {"prepare": call.put_back, "most_calls": 1} if call.has_state else {}
    contestants = {name: Contestant(partial(call, way), **prepared) for name, way in ways.items()}
    return play(contestants, device, given.rounds, 60.0)


def row(
    name: str,
    architecture: Architecture,
    given: argparse.Namespace,
    times: dict[str, list[float]],
    result: tw.Acceleration,
) -> Row:
    """The row, of medians; `replaced` tells what runs our kernels, `sites` all that could have."""
    ratio = statistics.ratio_interval(times["eager_ms"], times["ours_ms"])
    medians = {way: statistics.median(one) for way, one in times.items()}
    columns = ("eager_ms", "graph_ms", "compile_ms", "ours_ms", "ours_compile_ms")
    theirs = {way: one for way, one in medians.items() if "ours" not in way}
    best = min(theirs, key=theirs.__getitem__)
    command = f"python benchmarks/models --model {name} --tune-seconds {given.tune_seconds:g} --rounds {given.rounds}"
    flags = [
        f"--{one.replace('_', '-')}" for one in ("no_compile", "compile_graph", "compile_ours") if vars(given)[one]
    ]
    flags += ["--goals", f"--decide-seconds {given.decide_seconds:g}"] if given.goals else []
    words = [f"{way[:-3]} {one:.4g} (x {one / medians['ours_ms']:.2f})" for way, one in medians.items()]
    print(f"{name:<16}{'  '.join(words)}  {result.way}, {len(result.stands)} sites replaced", flush=True)
    return {
        "model": name,
        "batch": architecture.batch,
        "precision": str(architecture.dtype).removeprefix("torch."),
        "weights": architecture.weights,
        **{way: medians.get(way) for way in columns},
        **{way: one for way, one in medians.items() if way not in columns},
        f"{architecture.unit}_per_s": {way: architecture.count / one * 1e3 for way, one in medians.items()},
        "ours_over_eager": {"median": ratio[0], "low": ratio[1].low, "high": ratio[1].high},
        "pytorch_way": best.removesuffix("_ms"),
        "pytorch_ms": medians[best],
        "way": result.way,
        "left": dict(result.left),
        "accelerate_ms": result.as_json()["times_ms"],
        **{name: one for name, one in result.as_json().items() if name.endswith("error") or name == "errors_from"},
        "fused": {one.site.words: one.site.calls for one in result.replaced if one.site.fusion and result.is_applied},
        "untraced": dict(result.untraced),
        "remarks": list(result.remarks),
        "replaced": {
            f"{one.site.call.operator.name} {one.site.words}": one.problem.shape_text if one.problem else ""
            for one in result.replaced
        }
        if result.is_applied
        else {},
        "reason": result.reason,
        "sites": [one | {"modules": len(one["modules"])} for one in result.as_json()["sites"]],
        "environment": dict(result.environment),
        "device": device_name(given.device),
        "rounds": given.rounds,
        "tune_seconds": given.tune_seconds,
        "command": " ".join([command, *flags]),
        "date": now(),
    }


if __name__ == "__main__":
    main()
