"""A PyTorch whose modules lose against kernels on the CPU, without work that a busy machine would have to do."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

SLOW_S = 0.008
"""Eighty times what a launch of a small kernel takes: others may use the cores meanwhile."""


class Clock:
    """Moves by what is slept, and a little at each look: how busy the machine is does not matter."""

    now_s = 0.0

    def perf_counter(self) -> float:
        self.now_s += 1e-3
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    monotonic = perf_counter


def slow_down(
    patch: pytest.MonkeyPatch,
    *kinds: type[nn.Module],
    slow_s: float = SLOW_S,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Modules of these kinds wait before they compute, in compiled code too."""
    pause = torch.compiler.disable(sleep)  # here: at the import it would load all of the compiler
    for kind in kinds:

        def forward(self, x, plain=kind.forward):
            pause(slow_s)
            return plain(self, x)

        patch.setattr(kind, "forward", forward)
