"""A rank of a distributed program, with a model whose choices are those of a lock.

`torchrun --nproc-per-node 2 -m tests.tuner.pytorch.locked_rank LOCK DEVICE`, in which LOCK may have a {rank}, prints
what each rank came to as a list in JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from pathlib import Path

import torch
from torch import distributed, nn

import tilewright.torch as tw
from tilewright.tuner.pytorch import plans
from tilewright.tuner.pytorch.acceleration import lock
from tilewright.tuner.pytorch.acceleration.judgement.candidates import look_up, pose
from tilewright.tuner.pytorch.acceleration.recognition.sites import observe
from tilewright.tuner.pytorch.acceleration.result import OURS, Acceleration


def model_on(device: str) -> tuple[nn.Module, torch.Tensor]:
    """The same model with the same sample in every process."""
    torch.manual_seed(0)
    layers = nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 64, bias=False), nn.Softmax(-1)
    return nn.Sequential(*layers).eval().to(device), torch.randn(32, 64).to(device)


def lock_for(device: str, path: Path) -> Path:
    """A lock with all that can be replaced, whether or not it wins, by the runtime in use."""
    model, x = model_on(device)
    with torch.no_grad():
        found = [look_up(pose(one)) for one in observe(model, lambda: model(x))]
    stands, environment = [one.site.stand() for one in found], lock.environment(x.device)
    kernels = plans.runtime().kernels
    return Acceleration(model, stands, found, way=OURS, environment=environment, kernels=kernels).save(path)


def main() -> None:
    """One rank."""
    path, device = sys.argv[1:]
    distributed.init_process_group("gloo")
    model, x = model_on(device)
    expected = model(x)
    with warnings.catch_warnings(record=True) as told, torch.no_grad():
        warnings.simplefilter("always")
        result = tw.accelerate(model, lock=path.format(rank=distributed.get_rank()))
        found = model(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    said = [str(one.message) for one in told if issubclass(one.category, tw.AccelerationWarning | tw.FallbackWarning)]
    mine = {
        "applied": result.is_applied,
        "classes": [type(one).__name__ for one in model],
        "chosen": sorted(f"{one.operator} {one.call}: {one.reason}" for one in tw.status() if one.is_ours),
        "said": said,
        "output": hashlib.sha256(found.cpu().numpy().tobytes()).hexdigest(),
    }
    every: list[object] = [None] * distributed.get_world_size()
    distributed.all_gather_object(every, mine)
    if distributed.get_rank() == 0:
        sys.stdout.write(json.dumps(every) + "\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    with torch.inference_mode(mode=False), torch.no_grad():
        main()
