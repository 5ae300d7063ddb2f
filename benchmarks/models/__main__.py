"""Whole models with random weights: eager PyTorch, torch.compile, and tuned kernels in both, in the same rounds.

    python benchmarks/models --model bert --tune-seconds 3 --out benchmarks/results/h200/models.json

Needs PyTorch and transformers (ResNet-50: torchvision). Kernels are tuned here first, which `tune_s` tells, unless
they are known already (TILEWRIGHT_URL, TILEWRIGHT_BUNDLE, answers on disk) or with --tune-seconds 0. `tw.accelerate`
chooses what is replaced; then all ways are timed again in interleaved rounds. TF32 is off in all of them. A row is
written as soon as it is there; --compile-max adds `max-autotune`, for as long as it may take in seconds.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import tilewright.torch as tw
from tilewright.tuner import statistics
from tilewright.tuner.pytorch.acceleration.installed import install, uninstall
from tilewright.tuner.pytorch.acceleration.timing import Contestant, play

SEED = 0
ROUNDS = 15
Row = dict[str, Any]
Built = tuple[torch.nn.Module, Any]
"""A model, and the sample that it is called with."""


@dataclass(frozen=True)
class Architecture:
    """A row to be: what is built for a batch, and what its throughput counts."""

    build: Callable[[int, torch.dtype], Built]
    batch: int
    dtype: torch.dtype
    count: int  # of units in the batch: tokens, samples
    unit: str


def bert(tokens: int) -> Callable[[int, torch.dtype], Built]:
    """BERT-base."""

    def build(batch: int, dtype: torch.dtype) -> Built:
        from transformers import BertConfig, BertModel  # noqa: PLC0415 - each row needs its own

        config = BertConfig()
        return BertModel(config).to(dtype), {"input_ids": torch.randint(0, config.vocab_size, (batch, tokens))}

    return build


def vit(batch: int, dtype: torch.dtype) -> Built:
    """ViT-B/16, images of 224 x 224."""
    from transformers import ViTConfig, ViTModel  # noqa: PLC0415

    return ViTModel(ViTConfig()).to(dtype), {"pixel_values": torch.randn(batch, 3, 224, 224, dtype=dtype)}


def resnet(batch: int, dtype: torch.dtype) -> Built:
    """ResNet-50, images of 224 x 224."""
    from torchvision.models import resnet50  # noqa: PLC0415

    return resnet50().to(dtype), torch.randn(batch, 3, 224, 224, dtype=dtype)


def decoder(tokens: int) -> Callable[[int, torch.dtype], Built]:
    """Four layers with the sizes of Llama-3-8B, without a cache of keys: of one token the attention is nothing."""

    def build(batch: int, dtype: torch.dtype) -> Built:
        from transformers import LlamaConfig, LlamaModel  # noqa: PLC0415

        sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
        model = LlamaModel(LlamaConfig(**sizes, num_hidden_layers=4, vocab_size=1024, use_cache=False)).to(dtype)
        return model, {"inputs_embeds": torch.randn(batch, tokens, 4096, dtype=dtype)}

    return build


FP32, BF16 = torch.float32, torch.bfloat16
MODELS = {
    "bert": Architecture(bert(512), 8, FP32, 8 * 512, "tokens"),
    "bert-1x128": Architecture(bert(128), 1, FP32, 128, "tokens"),
    "vit": Architecture(vit, 32, FP32, 32, "images"),
    "resnet-50": Architecture(resnet, 32, FP32, 32, "images"),
    "decoder-prefill": Architecture(decoder(2048), 1, BF16, 2048, "tokens"),
    "decoder-1": Architecture(decoder(1), 1, BF16, 1, "tokens"),
    "decoder-8": Architecture(decoder(1), 8, BF16, 8, "tokens"),
    "decoder-32": Architecture(decoder(1), 32, BF16, 32, "tokens"),
}


def main() -> None:
    """Reads the command line, makes the rows, and writes each as it comes."""
    given = parse()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_grad_enabled(False)
    document = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {"rows": []}
    for name in given.model or MODELS:
        for row in rows(name, MODELS[name], given):
            document["rows"] = [one for one in document["rows"] if one["model"] != name] + [row]
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS, help="repeatable; default: all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tune-seconds", type=float, default=5.0, help="of each problem without a result; 0: none")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--compile-max", type=float, default=0.0, metavar="SECONDS", help="how long it may compile")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "h200" / "models.json")
    return parser.parse_args()


def rows(name: str, architecture: Architecture, given: argparse.Namespace) -> Iterator[Row]:
    """The row with what is known so far: first of eager mode, then of torch.compile too."""
    torch.manual_seed(SEED)
    device = torch.device(given.device)
    model, sample = architecture.build(architecture.batch, architecture.dtype)
    model = model.eval().to(device)
    sample = {k: v.to(device) for k, v in sample.items()} if isinstance(sample, dict) else sample.to(device)
    call = (lambda way: way(**sample)) if isinstance(sample, dict) else (lambda way: way(sample))
    begun = time.perf_counter()
    tuning = {"tune": "now", "tune_seconds": given.tune_seconds} if given.tune_seconds else {}
    result = tw.accelerate(model, sample, rounds=given.rounds, compiles=None, **tuning)
    accelerate_s = time.perf_counter() - begun
    print(f"{name}: {accelerate_s:.1f} s\n{result}", flush=True)
    ways = {"eager_ms": (model, ()), "ours_ms": (model, result.stands)}
    yield row(name, architecture, given, timed(model, call, ways, given), result) | {"accelerate_s": accelerate_s}
    ways |= compiled_ways(model, call, result, given)
    if len(ways) > 2:
        times = timed(model, call, ways, given)
        yield row(name, architecture, given, times, result) | {"accelerate_s": accelerate_s}
    uninstall(model)


def compiled_ways(
    model: torch.nn.Module, call: Callable[[Any], Any], result: tw.Acceleration, given: argparse.Namespace
) -> dict[str, Any]:
    """The model as torch.compile makes it, without and with replacements; what does not compile is left out."""
    stands = [replace(one, compiled=not one.fusion) for one in result.stands]
    wanted = {} if given.no_compile else {"compile_ms": (None, ()), "ours_compile_ms": (None, stands)}
    wanted |= {"compile_max_ms": ("max-autotune", ())} if given.compile_max else {}
    ways: dict[str, Any] = {}
    for way, (mode, those) in wanted.items():
        begun = time.perf_counter()
        try:
            with within(given.compile_max if mode else 600.0):
                install(model, those, with_gradients=False)
                made = torch.compile(model, mode=mode)
                call(made)
            ways[way] = (made, those)
        except Exception as error:  # noqa: BLE001 - compilers raise what they like, and the other ways are worth a row
            print(f"{way}: {type(error).__name__}: {error}", file=sys.stderr)
        print(f"{way}: compiled in {time.perf_counter() - begun:.1f} s", flush=True)
    return ways


def timed(
    model: torch.nn.Module, call: Callable[[Any], Any], ways: dict[str, Any], given: argparse.Namespace
) -> dict[str, list[float]]:
    """Milliseconds, a number a round, of every way."""
    contestants = {
        name: Contestant(lambda way=way: call(way), lambda those=those: install(model, those, with_gradients=False))
        for name, (way, those) in ways.items()
    }
    return play(contestants, next(model.parameters()).device, given.rounds, 60.0)


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
    columns = ("eager_ms", "compile_ms", "compile_max_ms", "ours_ms", "ours_compile_ms")
    print(name, {way: round(one, 3) for way, one in medians.items()}, flush=True)
    return {
        "model": name,
        "batch": architecture.batch,
        "precision": str(architecture.dtype).removeprefix("torch."),
        **{way: medians.get(way) for way in columns},
        f"{architecture.unit}_per_s": {way: architecture.count / one * 1e3 for way, one in medians.items()},
        "ours_over_eager": {"median": ratio[0], "low": ratio[1].low, "high": ratio[1].high},
        "error": result.error,
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
        "device": torch.cuda.get_device_name() if given.device.startswith("cuda") else "CPU",
        "rounds": given.rounds,
        "tune_seconds": given.tune_seconds,
        "command": f"python benchmarks/models --model {name} --tune-seconds {given.tune_seconds:g}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the block after so long."""

    def late(*_: object) -> None:
        raise TimeoutError(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(max(1, int(seconds)))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    main()
