"""A PyTorch whose modules lose against kernels on the CPU, without work that a busy machine would have to do."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

SLOW_S = 0.008
"""Eighty times what a launch of a small kernel takes: others may use the cores meanwhile."""


def slow_down(patch: pytest.MonkeyPatch, *kinds: type[nn.Module], slow_s: float = SLOW_S) -> None:
    """Modules of these kinds wait before they compute, in compiled code too."""
    pause = torch.compiler.disable(time.sleep)  # here: at the import it would load all of the compiler
    for kind in kinds:

        def forward(self, x, plain=kind.forward):
            pause(slow_s)
            return plain(self, x)

        patch.setattr(kind, "forward", forward)
