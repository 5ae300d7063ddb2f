"""Captures of CUDA graphs: of any call, with the line of a program that stands in the way."""

from __future__ import annotations

import linecache
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch.acceleration.judgement.timing import Contestant
from tilewright.tuner.pytorch.plans import prepare

REMEDY = "keep the number on the GPU, with torch.where in place of if, or make it an argument of the model"

WARM_CALLS = 3
"""Ahead of the capture, on a stream of its own: libraries take memory in their first calls (PyTorch's manual)."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or else the name of its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def program_line(frames: Iterable[FrameType | tuple[FrameType, int]]) -> str:
    """The program's innermost line among the frames, with its text; empty where there is none."""
    found = ""
    for one in frames:
        frame, line = one if isinstance(one, tuple) else (one, one.f_lineno)
        module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if module not in {"torch", "tilewright", "warnings"}:
            path = frame.f_code.co_filename
            found = f"{Path(path).name}:{line} ({linecache.getline(path, line).strip()})"
    return found


WAITS = "called a synchronizing CUDA operation"
"""PyTorch's warning about a call that waits for the GPU."""


class CaptureError(TunerError):
    """The model cannot be replayed as a CUDA graph."""


def captured(
    call: Callable[[], Any],
    count: int = 1,
    pool: Any = None,
    *,
    is_compiled: bool = False,
    before: Callable[[], None] = lambda: None,
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A CUDA graph of so many calls, and the last result, which replays overwrite.

    `pool`: of memory, which other graphs may have too. `before`: what puts back what calls change, ahead of each.
    Raises CaptureError, and ahead of that what the call raises.
    The code is that of eager mode, unless that waits for the GPU: transformers 5.17 asks whether it is captured, and
    makes a mask for attention that has none if so. What torch.compile made (`is_compiled`) has asked already, and would
    be made again where somebody else answers.
    """
    stream, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(stream)
    with torch.cuda.stream(side):
        for _ in range(WARM_CALLS):
            before()
            call()
        prepare()  # in a capture nothing is checked, and replays read no verdicts
        before()
        with nullcontext() if is_compiled else _filled_in():
            waits = _waits(call)
        if waits and is_compiled:
            raise CaptureError(waits)
        before()
    inside = [] if is_compiled else [_filled_in()] if waits else [_filled_in(), _unnoticed()]
    stream.wait_stream(side)
    graph, result = torch.cuda.CUDAGraph(), None
    try:
        # The stream once more, since a graph's capture leaves its own current if it fails.
        with _own_workspaces(), torch.cuda.stream(stream), torch.cuda.graph(graph, pool=pool), ExitStack() as around:
            for one in inside:
                around.enter_context(one)
            for _ in range(count):
                result = None  # so that the next one has its memory
                result = call()
    except Exception as error:  # the end of a capture fails because something in it did
        cause = error.__context__ or error
        line = program_line(traceback.walk_tb(cause.__traceback__))
        raise CaptureError(waits or f"{line}: {first_line(cause)}" if line else first_line(cause)) from error
    return graph, result


def _waits(call: Callable[[], Any]) -> str:
    """The line that makes a call wait for the GPU, and what to change; empty where none does.

    A capture in which one does fails, and PyTorch does not always get over that.
    """
    before, lines, show = torch.cuda.get_sync_debug_mode(), list[str](), warnings.showwarning

    def note(message: Warning | str, *told: Any, **named: Any) -> None:
        if WAITS not in str(message):
            show(message, *told, **named)
        else:
            lines.append(program_line(reversed([frame for frame, _ in traceback.walk_stack(sys._getframe())])))  # noqa: SLF001 - as the module traceback does it

    with warnings.catch_warnings():
        warnings.filterwarnings("always", f".*{WAITS}")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")  # an error would be one in other threads too
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return f"{lines[0] or 'its code'} waits for the GPU; {REMEDY}" if lines else ""


@contextmanager
def _unnoticed() -> Iterator[None]:
    """Hides the capture from this thread's Python code: it is told that PyTorch captures nothing."""
    asks, own = torch.cuda.is_current_stream_capturing, threading.get_ident()
    torch.cuda.is_current_stream_capturing = lambda: threading.get_ident() != own and asks()
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = asks


@contextmanager
def _filled_in() -> Iterator[None]:
    """Fills plain numbers in on the GPU, in this thread, where PyTorch would copy them there and wait.

    Such are `torch.tensor(number, device="cuda")`, and a host tensor without a dimension whose `to` names a GPU: a
    graph keeps either as the constant that it is.
    """
    make, move, own = torch.tensor, Tensor.to, threading.get_ident()

    def tensor(data: Any, *given: Any, dtype: Any = None, device: Any = None, **named: Any) -> Tensor:
        is_number = isinstance(data, bool | int | float) and not given and not named and device is not None
        if is_number and threading.get_ident() == own and torch.device(device).type == "cuda":
            return torch.full((), data, dtype=dtype or make(data).dtype, device=device)
        return make(data, *given, dtype=dtype, device=device, **named)

    def to(one: Tensor, *given: Any, **named: Any) -> Tensor:
        is_number = not one.dim() and one.device.type == "cpu" and not one.requires_grad and "copy" not in named
        if is_number and threading.get_ident() == own:
            device, dtype, *_ = torch._C._nn._parse_to(*given, **named)  # noqa: SLF001 - as nn.Module.to does it
            if device is not None and device.type == "cuda":
                return torch.full((), one.item(), dtype=dtype or one.dtype, device=device)
        return move(one, *given, **named)

    torch.tensor, Tensor.to = tensor, to
    try:
        yield
    finally:
        torch.tensor, Tensor.to = make, move


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
    """A contestant that replays the calls as a graph, for times alone: graphs of one pool may overwrite each other.

    `held`: tensors that it reads, and that somebody may give another memory meanwhile. Raises as `captured` does.
    """
    graph, _ = captured(call, count, pool)
    return Contestant(partial(_replay, graph, held), times=count)


def _replay(graph: torch.cuda.CUDAGraph, _held: Sequence[Tensor]) -> None:
    graph.replay()
