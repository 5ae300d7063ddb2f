"""CUDA graphs of calls: a model's `forward` that replays itself, and graphs of which only times are taken."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch.acceleration import outputs
from tilewright.tuner.pytorch.acceleration.quantised import is_current, layers_with
from tilewright.tuner.pytorch.acceleration.timing import Contestant
from tilewright.tuner.pytorch.acceleration.traced import UntraceableError, described, filled
from tilewright.tuner.pytorch.operator import PLAIN, is_watched
from tilewright.tuner.pytorch.plans import is_off, prepare

WARM_CALLS = 3
"""Ahead of the capture, on a stream of its own: libraries take memory in their first calls (PyTorch's manual)."""


def first_line(error: BaseException) -> str:
    """What an error says, or else its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class CaptureError(TunerError):
    """The model cannot be replayed as a CUDA graph."""


def captured(
    call: Callable[[], Any], count: int = 1, pool: Any = None, *, is_compiled: bool = False
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A CUDA graph of so many calls, and the last result, which replays write.

    `pool`: of memory, which other graphs may have too. Raises CaptureError, and ahead of that what the call raises.
    The code is that of eager mode, unless that waits for the GPU: transformers 5.17 asks whether it is captured, and
    makes a mask for attention that has none if so. What torch.compile made (`is_compiled`) has asked already, and would
    be made again where somebody else answers.
    """
    stream, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(stream)
    with torch.cuda.stream(side):
        for _ in range(WARM_CALLS):
            call()
        prepare()  # in a capture nothing is checked, and replays read no verdicts
        waits = _waits(call)
        if waits and is_compiled:
            raise CaptureError("it waits for the GPU")
        around = nullcontext() if waits or is_compiled else _unnoticed()
    stream.wait_stream(side)
    graph, result = torch.cuda.CUDAGraph(), None
    try:
        # The stream once more, since a graph's capture leaves its own current if it fails.
        with _own_workspaces(), torch.cuda.stream(stream), torch.cuda.graph(graph, pool=pool), around:
            for _ in range(count):
                result = None  # so that the next one has its memory
                result = call()
    except Exception as error:  # the end of a capture fails because something in it did
        raise CaptureError(first_line(error.__context__ or error)) from error
    return graph, result


def _waits(call: Callable[[], Any]) -> bool:
    """Whether a call waits for the GPU. A capture in which it does fails, and PyTorch does not always get over that."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")  # an error would be one in other threads too
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return any("called a synchronizing CUDA operation" in str(one.message) for one in said)


@contextmanager
def _unnoticed() -> Iterator[None]:
    """In this thread, code in Python that asks PyTorch whether it is captured is told that it is not."""
    asks, own = torch.cuda.is_current_stream_capturing, threading.get_ident()
    torch.cuda.is_current_stream_capturing = lambda: threading.get_ident() != own and asks()
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = asks


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """The graph's calls of cuBLAS have their scratch memory in its own pool.

    PyTorch keeps one for each stream, and all graphs are captured on the same: it would lie in the pool of the first
    graph, and be unmapped once that is gone and torch.compile clears what is kept (an H200's illegal memory access).
    """
    torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - torch.compile's own CUDA graphs do it so
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001


def replay_timed(call: Callable[[], Any], count: int, pool: Any, held: Sequence[Tensor] = ()) -> Contestant:
    """The calls as a graph of which only times are taken, so that graphs of one pool may write where others do.

    `held`: tensors that it reads, and that somebody may give another memory meanwhile. Raises as `captured` does.
    """
    graph, _ = captured(call, count, pool)
    return Contestant(partial(_replay, graph, held), times=count)


def _replay(graph: torch.cuda.CUDAGraph, _held: Sequence[Tensor]) -> None:
    graph.replay()


class GraphForward:
    """The `forward` of a whole model. `before`: the instance's own, None where it had none; `is_on`: it replays.

    It replays for tensors that lie as those of the capture, of its thread and its stream, while every parameter and
    buffer is where it was, and weights that it has as whole numbers are what they were; otherwise, with gradients and
    in training, the model runs as before. Outputs are copies. A copy, and what is read from a file, has no graph.
    """

    def __init__(self, model: nn.Module, before: Callable[..., Any] | None = None) -> None:
        self.model, self.is_on = model, False
        self._inputs: list[Tensor] = []
        self._stand_before(before)

    def _stand_before(self, before: Callable[..., Any] | None) -> None:
        self.before, self._forward = before, before or type(self.model).forward.__get__(self.model)

    def __reduce__(self) -> tuple[type[GraphForward], tuple[nn.Module, Callable[..., Any] | None]]:
        """Without the graph."""
        return GraphForward, (self.model, self.before)

    def put(self) -> None:
        """Makes it the forward of the model, in which the same is installed as when it was captured."""
        self._stand_before(vars(self.model).get("forward"))
        self.model.forward = self

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """The model's result."""
        given: list[Tensor] = []
        if self.is_on and self._is_captured(positional, named, given):
            for own, new in zip(self._inputs, given, strict=True):
                own.copy_(new)
            self._graph.replay()
            return pytree.tree_map(lambda one: one.clone() if isinstance(one, Tensor) else one, self._outputs)
        return self._forward(*positional, **named)

    def capture(
        self,
        positional: tuple[Any, ...],
        named: dict[str, Any],
        tolerance: float,
        compiled: Callable[..., Any] | None = None,
    ) -> None:
        """Captures such a call, and compares replays with other numbers; raises CaptureError, or what PyTorch does.

        `compiled`: what torch.compile made of the model, to be captured instead of the model's own code.
        """
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
        self._quantised = layers_with(self.model)
        own, own_named = filled(self._key, iter(self._inputs))
        self._thread, self._stream = threading.get_ident(), torch.cuda.current_stream()
        code = self._forward if compiled is None else compiled
        self._code = code  # kept, with the tensors that it has
        self._graph, self._outputs = captured(lambda: code(*own, **own_named), is_compiled=compiled is not None)
        if any(not isinstance(one, Tensor | int | float | str | None) for one in pytree.tree_leaves(self._outputs)):
            raise CaptureError("its output has parts that cannot be copied")
        self.is_on = True
        for numbers in (changed, given, changed):
            self._check(numbers, tolerance)

    def _check(self, numbers: list[Tensor], tolerance: float) -> None:
        own, own_named = filled(self._key, iter(numbers))
        expected = self._code(*own, **own_named)
        if not outputs.difference(self(*own, **own_named), expected) <= tolerance:
            raise CaptureError("a replay with other numbers computes something else")

    def _is_captured(self, positional: tuple[Any, ...], named: dict[str, Any], given: list[Tensor]) -> bool:
        is_asked_otherwise = torch.is_grad_enabled() or self.model.training or is_watched() or is_off()
        if is_asked_otherwise or torch.cuda.is_current_stream_capturing():
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
            and all(map(is_current, self._quantised))
        )
