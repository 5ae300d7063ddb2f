"""A model's `forward` that replays a CUDA graph of itself, with the arguments that it was captured for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch.acceleration import outputs
from tilewright.tuner.pytorch.acceleration.traced import UntraceableError, described, filled
from tilewright.tuner.pytorch.operator import PLAIN, is_watched

WARM_CALLS = 3
"""Ahead of the capture, on a stream of its own: libraries take memory in their first calls (PyTorch's manual)."""


class CaptureError(TunerError):
    """The model cannot be replayed as a CUDA graph."""


class GraphForward:
    """The `forward` of a whole model. `before`: the instance's own, None where it had none; `is_on`: it replays.

    It replays for tensors that lie as those of the capture, of its thread and its stream, while every parameter and
    buffer is where it was; otherwise, with gradients and in training, the model runs as before. Outputs are copies. A
    copy, and what is read from a file, has no graph.
    """

    def __init__(self, model: nn.Module, before: Callable[..., Any] | None = None) -> None:
        self.model, self.before, self.is_on = model, before, False
        self._forward = before or type(model).forward.__get__(model)
        self._inputs: list[Tensor] = []

    def __reduce__(self) -> tuple[type[GraphForward], tuple[nn.Module, Callable[..., Any] | None]]:
        """Without the graph."""
        return GraphForward, (self.model, self.before)

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """The model's result."""
        given: list[Tensor] = []
        if self.is_on and self._is_captured(positional, named, given):
            for own, new in zip(self._inputs, given, strict=True):
                own.copy_(new)
            self._graph.replay()
            return pytree.tree_map(lambda one: one.clone() if isinstance(one, Tensor) else one, self._outputs)
        return self._forward(*positional, **named)

    def capture(self, positional: tuple[Any, ...], named: dict[str, Any], tolerance: float) -> None:
        """Captures such a call, and compares replays with other numbers; raises CaptureError, or what PyTorch does."""
        given: list[Tensor] = []
        self._key = described((positional, named), given)
        changed = [one.flip(-1) if one.dim() else one for one in given]
        if all(torch.equal(one, other) for one, other in zip(given, changed, strict=True)):
            raise CaptureError("no argument could be changed, so that replays cannot be checked")
        with torch.inference_mode(mode=False):  # so that a later call may write into them in any mode
            self._inputs = [one.clone() for one in given]
        self._places = [
            (place, name, one, one.data_ptr())
            for module in self.model.modules()
            for place in (module._parameters, module._buffers)  # noqa: SLF001 - no public name has them without a call each
            for name, one in place.items()
            if one is not None
        ]
        own, own_named = filled(self._key, iter(self._inputs))
        self._thread, self._stream = threading.get_ident(), torch.cuda.current_stream()
        side = torch.cuda.Stream()
        side.wait_stream(self._stream)
        with torch.cuda.stream(side):
            for _ in range(WARM_CALLS):
                self._forward(*own, **own_named)
        self._stream.wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._outputs = self._forward(*own, **own_named)
        if any(not isinstance(one, Tensor | int | float | str | None) for one in pytree.tree_leaves(self._outputs)):
            raise CaptureError("its output has parts that cannot be copied")
        self.is_on = True
        for numbers in (changed, given, changed):
            self._check(numbers, tolerance)

    def _check(self, numbers: list[Tensor], tolerance: float) -> None:
        own, own_named = filled(self._key, iter(numbers))
        expected = self._forward(*own, **own_named)
        if not outputs.error(self(*own, **own_named), expected) <= tolerance:
            raise CaptureError("a replay with other numbers computes something else")

    def _is_captured(self, positional: tuple[Any, ...], named: dict[str, Any], given: list[Tensor]) -> bool:
        if torch.is_grad_enabled() or self.model.training or is_watched() or torch.cuda.is_current_stream_capturing():
            return False
        try:
            is_alike = described((positional, named), given) == self._key
        except UntraceableError:
            return False
        return (
            is_alike
            and all(type(one) in PLAIN for one in given)
            and threading.get_ident() == self._thread
            and torch.cuda.current_stream() == self._stream
            and all(place.get(name) is one and one.data_ptr() == at for place, name, one, at in self._places)
        )
