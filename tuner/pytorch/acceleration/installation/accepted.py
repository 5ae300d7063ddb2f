"""The inputs with which our operator runs in the place of PyTorch's."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache

import torch
from torch import Tensor

from tilewright.tuner.pytorch.acceleration.recognition.call import entry, opened


class Accepted:
    """The inputs with which our operator runs; with any other PyTorch's own does.

    `open_keys`: those of inputs that may have any number of rows. `with_gradients`: it was judged with gradients
    recorded, and so runs then too.
    """

    def __init__(
        self,
        eager: frozenset[Hashable],
        compiled: frozenset[Hashable],
        open_keys: frozenset[Hashable] = frozenset(),
        *,
        with_gradients: bool,
    ) -> None:
        self.eager, self.compiled, self.open_keys = eager, compiled, open_keys
        self.with_gradients = with_gradients

    def takes_any_rows_of(self, x: Tensor) -> bool:
        """Whether inputs that have only another number of rows are ours too."""
        return bool(self.open_keys) and opened(entry(x)) in self.open_keys

    def takes(self, key: Hashable) -> bool:
        """Whether a call with that entry is ours."""
        if torch.is_grad_enabled() and not self.with_gradients:
            return False
        if torch.compiler.is_compiling():
            return key in self.compiled
        is_accepted = key in self.eager or (self.open_keys and opened(key) in self.open_keys)
        return bool(is_accepted) and torch._C._functorch.peek_interpreter_stack() is None  # noqa: SLF001 - as in operator.py; there is no rule for vmap


@cache
def accepted_inputs(
    eager: frozenset[Hashable], compiled: frozenset[Hashable], open_keys: frozenset[Hashable], *, with_gradients: bool
) -> Accepted:
    """The same object for the same inputs: torch.compile makes code for an object."""
    return Accepted(eager, compiled, open_keys, with_gradients=with_gradients)
