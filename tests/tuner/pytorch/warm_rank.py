"""A rank of a distributed program that calls `tw.warm`; each knows another configuration for its layer.

`torchrun --nproc-per-node 2 -m tests.tuner.pytorch.warm_rank FOLDER SLOW …`: on rank 0 SLOW, `pytorch` or `ours`, takes
longer, on rank 1 the other, by a clock for the CPU. With `neither` it is the time of GPUs, one a rank where there are
as many. Prints in JSON, for each SLOW, what the ranks came to.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.nn import functional

import tilewright.torch as tw
from tests.timed_calls import time_calls
from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.pytorch import plans
from tilewright.tuner.pytorch.tuned_call import TunedCall
from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches.devices import place_of

SLOW_MS = 3.0
LINEAR = catalogue().get("linear")
PROBLEM = LINEAR.problem({"m": 6, "n": 24, "k": 8})


def knowing(folder: Path, width: int, library_ms: float, device: str = "cpu") -> Runtime:
    """A runtime that expects something of the layer."""
    runtime = Runtime(only_tuned=True, answers=AnswerCache(folder))
    facts = {
        "variant": "tiled",
        "configuration": {"TILE_WIDTH": width},
        "match": "predicted",
        "time_ms": 1.0,
        "library": {"name": "a library", "time_ms": library_ms, "faster": library_ms < 1},
        "source_hash": LINEAR.source_hash("tiled"),
    }
    runtime.learn(PROBLEM, place_of(device), facts)
    return runtime


def slow_down(patch: pytest.MonkeyPatch, *, is_pytorch_slow: bool) -> None:
    """A CPU on which one of both takes milliseconds, as its clock says."""
    clock, linear, called = time_calls(patch, torch), functional.linear, TunedCall.__call__

    def library(*given: object, **named: object) -> torch.Tensor:
        clock.spend(SLOW_MS if is_pytorch_slow else 0.0)
        return linear(*given, **named)

    def ours(self: TunedCall, arguments: object) -> object:
        clock.spend(0.0 if is_pytorch_slow else SLOW_MS)
        return called(self, arguments)

    patch.setattr(functional, "linear", library)
    patch.setattr(TunedCall, "__call__", ours)


def main() -> None:
    """One rank."""
    folder, *every_slow = sys.argv[1:]
    distributed.init_process_group("gloo")
    found = {}
    for slow in every_slow:
        with pytest.MonkeyPatch.context() as patch:
            mine = warmed(Path(folder) / slow, slow, patch)
        every: list[object] = [None] * distributed.get_world_size()
        distributed.all_gather_object(every, mine)
        found[slow] = every
    if distributed.get_rank() == 0:
        sys.stdout.write(json.dumps(found) + "\n")
    distributed.destroy_process_group()


def warmed(folder: Path, slow: str, patch: pytest.MonkeyPatch) -> dict[str, object]:
    """What this rank came to, with a runtime of its own."""
    rank, device = distributed.get_rank(), "cpu"
    if slow == "neither":
        device = f"cuda:{rank % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    else:
        slow_down(patch, is_pytorch_slow=(slow == "pytorch") == (rank == 0))
    tw.use(knowing(folder / str(rank), 8 * (1 + rank), 2.0 if rank else 0.5, device))
    torch.manual_seed(0)
    x, w, calls = torch.randn(6, 8).to(device), torch.randn(24, 8).to(device), []

    def layer() -> torch.Tensor:
        calls.append(tw.linear(x, w))
        distributed.all_reduce(torch.zeros(1))  # which every rank has to call as often
        return calls[-1]

    alone = tw.linear(x, w)
    before = [one.reason for one in tw.status()]
    [decision] = tw.warm(layer)
    found = layer()
    torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)
    return {
        "before": before,
        "is_ours": decision.is_ours,
        "reason": decision.reason,
        "configuration": str(plans.runtime().choose(LINEAR, PROBLEM, place_of(device)).configuration),
        "calls": len(calls),
        "output": hashlib.sha256(found.cpu().numpy().tobytes()).hexdigest(),
    }


if __name__ == "__main__":
    with torch.inference_mode(mode=False), torch.no_grad():
        main()
