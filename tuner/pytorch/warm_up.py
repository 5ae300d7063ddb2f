"""`warm`: a function is called until its operators are decided; of several ranks the first decides for all."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import distributed

from tilewright.tuner.pytorch.operator import OPERATORS
from tilewright.tuner.pytorch.plans import PROCESS, Decision, look_again, prepare, runtime, status
from tilewright.tuner.runtime.launches.devices import place_of
from tilewright.tuner.turns.contest import MOST_CALLS
from tilewright.tuner.turns.turns import deciding, held

T = TypeVar("T")

MOST_ROUNDS = MOST_CALLS + 2
"""Calls of the function; what could not be timed in them stays as the records say."""

LONGEST_MS = 200.0
CYCLES_A_MS = 2_000_000
"""Cycles of a GPU at 2 GHz in a millisecond; a slower clock only keeps it busy for longer."""


def warm(function: Callable[..., Any], *arguments: Any, **named: Any) -> list[Decision]:
    """Calls the function until its operators have decided which side computes what; returns `status()`.

    All ranks of torch.distributed call it together, each calls the function equally often, and all have the
    configurations and decisions of rank 0 in the end. The GPU is kept busy before each call, so that times have nothing
    of the host in them. Configurations that were never verified at their shape are verified.
    """
    call = partial(function, *arguments, **named)
    _prepare(call)
    with deciding() if _is_first() else nullcontext():
        busy_ms = LONGEST_MS
        for _ in range(MOST_ROUNDS):
            for operator in OPERATORS.values():
                operator.plans.wait()
            busy_ms = min(LONGEST_MS, 2 * _called_behind(busy_ms, call))
            if _of_first(not _is_open()):
                break
    if _has_ranks():
        _agree()
    look_again()  # and find each range decided
    _prepare(call)
    return status()


def _prepare(call: Callable[[], Any]) -> None:
    """Makes one call, which looks up and loads everything, and the checks that it left open."""
    with held():
        call()
    prepare()


def _called_behind(busy_ms: float, call: Callable[[], Any]) -> float:
    """Makes a call while the GPU has so much to do first; the host's time for the call, in ms."""
    is_on_gpu = torch.cuda.is_initialized()
    if is_on_gpu:
        torch.cuda._sleep(int(busy_ms * CYCLES_A_MS))  # noqa: SLF001 - PyTorch's own tests wait so
    begun = time.perf_counter()
    call()
    host_ms = 1e3 * (time.perf_counter() - begun)
    if is_on_gpu:
        torch.cuda.synchronize()
    return host_ms


def _is_open() -> bool:
    """Whether a range is undecided; asked when the GPU is idle."""
    return PROCESS.contests.are_open() or runtime().contests.are_open()


def _agree() -> None:
    """Gives all ranks the knowledge of rank 0 about its device model, and its decisions."""
    device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_initialized() else "cpu"
    slug, contests = place_of(device).slug, (PROCESS.contests, runtime().contests)
    known, decided = _of_first((runtime().known(slug), [one.verdicts(device) for one in contests]))
    if not _is_first():
        runtime().adopt(known, slug)
    for one, verdicts in zip(contests, decided, strict=True):
        one.adopt(verdicts, device)


def _is_first() -> bool:
    return not _has_ranks() or distributed.get_rank() == 0


def _has_ranks() -> bool:
    is_there = distributed.is_available() and distributed.is_initialized()
    return bool(is_there and distributed.get_world_size() > 1)


def _of_first(mine: T) -> T:
    """The value of rank 0."""
    box = [mine]
    if _has_ranks():
        distributed.broadcast_object_list(box, src=0)
    return box[0]
