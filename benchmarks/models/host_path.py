"""The host's time for one warm call of a replaced module, up to the launch: where a model's layers wait for Python.

    python benchmarks/models/host_path.py

On the CPU device, with the launch itself left out, so that no GPU is needed: what is left is the same on any device but
for the driver's call. Medians over rounds of 2,000 calls each. PyTorch's own module, whose kernels of a few
numbers run too, stands beside ours.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from unittest import mock

import torch
from torch import nn

import tilewright.torch as tw
from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.pytorch.acceleration.calls import entry
from tilewright.tuner.pytorch.acceleration.installed import Replacement, install
from tilewright.tuner.runtime import Runtime, host

CALLS, ROUNDS = 2000, 15
ROWS = Configuration.of("walk", {"BLOCK": 32, "VECTOR_WIDTH": 1})
TILED = Configuration.of("tiled", {"TILE_WIDTH": 8})


def call_us(call: Callable[[], object]) -> float:
    """Microseconds of one call."""
    begun = time.thread_time()
    for _ in range(CALLS):
        call()
    return (time.thread_time() - begun) * 1e6 / CALLS


def main() -> None:
    """Prints a row for each module."""
    torch.set_num_threads(1)
    runtime, x = Runtime(only_tuned=True), torch.randn(2, 4, 8)
    shape = {"m": 8, "n": 8}
    for name, axes, configuration in (("linear", {"k": 8}, TILED), ("layer_norm", {}, ROWS), ("rms_norm", {}, ROWS)):
        runtime.pin({catalogue().get(name).problem(shape | axes): configuration})
    tw.use(runtime)
    modules = {"nn.Linear": nn.Linear(8, 8), "nn.LayerNorm": nn.LayerNorm(8), "nn.RMSNorm": nn.RMSNorm(8)}
    with torch.inference_mode():
        for name, module in modules.items():
            pytorch_us = statistics.median(call_us(partial(module, x)) for _ in range(ROUNDS))
            with mock.patch.object(host.HostFunction, "launch", lambda *_: None):  # noqa: PT008 - a mock takes 7 us
                install(module, [Replacement(entry(x), ("",))], with_gradients=False)
                ours_us = statistics.median(call_us(partial(module, x)) for _ in range(ROUNDS))
            print(f"{name:<14}{pytorch_us:6.2f} us PyTorch's{ours_us:8.2f} us ours up to the launch")
    if not all(one.is_ours for one in tw.status()):
        raise SystemExit(str(tw.status()))


if __name__ == "__main__":
    main()
