"""Interleaved times of whole calls, by the host's clock: what a program waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

SAMPLE_S = 10e-3
"""A sample has as many calls as fit in this: waiting for a GPU cost up to 0.3 ms a sample (H200, 2026-11-23)."""

MOST_CALLS = 100
FEWEST_ROUNDS = 5
"""The rounds whose range is the 95 % interval of their median; fewer have no such interval."""


@dataclass(frozen=True)
class Contestant:
    """Something to be timed: `prepare` is untimed and comes before each of its samples.

    `times`: how often a `call` does what is timed. `most_calls`: of one sample.
    """

    call: Callable[[], object]
    prepare: Callable[[], object] = lambda: None
    times: int = 1
    most_calls: int = MOST_CALLS


def play(
    contestants: Mapping[str, Contestant],
    device: torch.device,
    rounds: int,
    limit_s: float,
    sample_s: float = SAMPLE_S,
) -> dict[str, list[float]]:
    """Milliseconds of one call, one number a round, by contestant; each round starts with another contestant.

    After `limit_s` no more rounds begin than FEWEST_ROUNDS.
    """
    counts = {name: _calls_of_a_sample(one, device, sample_s) for name, one in contestants.items()}
    times_ms: dict[str, list[float]] = {name: [] for name in contestants}
    names, begun = list(contestants), time.monotonic()
    for number in range(rounds):
        if number >= FEWEST_ROUNDS and time.monotonic() - begun > limit_s:
            break
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            times_ms[name].append(_sample_ms(contestants[name], device, counts[name]))
    return times_ms


def _calls_of_a_sample(contestant: Contestant, device: torch.device, sample_s: float) -> int:
    """How many calls take as long as a sample, timed after two that warm up."""
    _sample_ms(contestant, device, 1)
    _sample_ms(contestant, device, 1)
    once_ms = _sample_ms(contestant, device, 1) * contestant.times
    return max(1, min(contestant.most_calls, int(sample_s * 1e3 / max(once_ms, 1e-6))))


def _sample_ms(contestant: Contestant, device: torch.device, count: int) -> float:
    contestant.prepare()
    _wait(device)
    begun = time.perf_counter()
    for _ in range(count):
        contestant.call()
    _wait(device)
    return (time.perf_counter() - begun) * 1e3 / (count * contestant.times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
