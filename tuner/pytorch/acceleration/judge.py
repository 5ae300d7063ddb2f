"""The model as the judge: which replacements win in the whole of it, in eager mode and under torch.compile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from tilewright.tuner import statistics
from tilewright.tuner.pytorch.acceleration import outputs
from tilewright.tuner.pytorch.acceleration.candidates import Candidate
from tilewright.tuner.pytorch.acceleration.graph import GraphForward
from tilewright.tuner.pytorch.acceleration.installed import install
from tilewright.tuner.pytorch.acceleration.result import BOTH, COMPILED, EAGER, OURS, OURS_GRAPH
from tilewright.tuner.pytorch.acceleration.timing import Contestant, play

MOST_ALONE = 12
"""Candidates that are judged one by one, those first that save most by themselves; each costs a model a round."""

Compiles = Callable[[nn.Module], Callable[..., Any]]
Times = dict[str, list[float]]


@dataclass(frozen=True)
class Settled:
    """The whole model's times in every way; the error of ours under torch.compile, or why that is not among them."""

    times_ms: Times
    compiled_error: float | None = None
    failure: str = ""


@dataclass(frozen=True)
class Judge:
    """A model with its sample and its own output.

    `run(callable)` calls the model, or what was made of it, with the sample.
    """

    model: nn.Module
    run: Callable[[Callable[..., Any]], Any]
    expected: Any
    device: torch.device
    rounds: int
    limit_s: float
    with_gradients: bool

    def install(self, chosen: Sequence[Candidate], compiled: Sequence[Candidate] = ()) -> None:
        """Replaces these, those of `compiled` under torch.compile too."""
        stands = [one.site.stand(compiled=one in compiled) for one in chosen]
        install(self.model, stands, with_gradients=self.with_gradients)

    def choose(self, candidates: Sequence[Candidate], beside: Sequence[Candidate] = ()) -> list[Candidate]:
        """Those without which the model is slower than with all of them and those beside; the others get a reason."""
        ordered = sorted(candidates, key=lambda one: -one.saved_ms)[:MOST_ALONE]
        if not candidates or len(candidates) + len(beside) == 1:
            return list(candidates)
        contestants = {OURS: self._eager([*candidates, *beside])}
        for place, left_out in enumerate(ordered):
            contestants[str(place)] = self._eager([one for one in [*candidates, *beside] if one is not left_out])
        times_ms = play(contestants, self.device, self.rounds, self.limit_s)
        for place, left_out in enumerate(ordered):
            left_out.gain, _ = statistics.ratio_interval(times_ms[str(place)], times_ms[OURS])
            if left_out.gain <= 1:
                left_out.reason = "the whole model is no slower without it"
        return [one for one in candidates if not one.reason]

    def error_of(self, chosen: Sequence[Candidate]) -> float:
        """That of the model's output with these, which stay; infinite where it does not run with a fusion."""
        self.install(chosen)
        try:
            return self.error()
        except Exception:
            if not any(one.site.fusion for one in chosen):
                raise
            return math.inf

    def error(self) -> float:
        """That of the model's output as it is now."""
        return outputs.error(self.run(self.model), self.expected)

    def settle(self, chosen: Sequence[Candidate], compiles: Compiles | None) -> Settled:
        """What all these replacements bring, under torch.compile too where it works."""
        contestants, failure, error = {EAGER: self._eager([]), OURS: self._eager(chosen)}, "", None
        if compiles is not None:
            try:
                compiled, error = self._compiled(chosen, compiles)
                contestants |= compiled
            except Exception as problem:  # noqa: BLE001 - the model's code and compilers raise what they like, and eager is left
                failure = f"torch.compile does not work here: {_first_line(problem)}"
        return Settled(play(contestants, self.device, self.rounds, self.limit_s), error, failure)

    def graph(self, given: tuple[Any, ...], named: dict[str, Any], tolerance: float) -> str:
        """Puts a CUDA graph around the model as it is where its replays are right and win; what to say of it."""
        if self.device.type != "cuda" or self.with_gradients:
            return ""
        forward = GraphForward(self.model, vars(self.model).get("forward"))
        self.model.forward = forward
        try:
            forward.capture(given, named, tolerance)
            ways = {way: partial(setattr, forward, "is_on", way == OURS_GRAPH) for way in (OURS, OURS_GRAPH)}
            contestants = {way: Contestant(lambda: self.run(self.model), prepare) for way, prepare in ways.items()}
            times_ms = play(contestants, self.device, self.rounds, self.limit_s)
            forward.is_on = wins(times_ms, OURS_GRAPH, OURS) and self.error() <= tolerance
            ratio, interval = statistics.ratio_interval(times_ms[OURS], times_ms[OURS_GRAPH])
            words = f"x {ratio:.3f} ({interval.low:.3f} to {interval.high:.3f}) over ours alone"
        except Exception as problem:  # noqa: BLE001 - what cannot be captured raises what it likes, and runs as it did
            forward.is_on, words = False, _first_line(problem)
        if not forward.is_on:
            del self.model.forward
            if forward.before is not None:
                self.model.forward = forward.before
        return f"As a CUDA graph ({OURS_GRAPH}): {words}{'' if forward.is_on else '; not taken'}."

    def _eager(self, chosen: Sequence[Candidate]) -> Contestant:
        return Contestant(lambda: self.run(self.model), lambda: self.install(chosen))

    def _compiled(self, chosen: Sequence[Candidate], compiles: Compiles) -> tuple[dict[str, Contestant], float]:
        """Both ways, compiled now, and the error of ours.

        One compiled model has code for both, and takes that of what is installed.
        """
        compiled = compiles(self.model)
        ways, error = {}, 0.0
        for way, those in ((COMPILED, ()), (BOTH, chosen)):
            self.install(those, those)
            error = outputs.error(self.run(compiled), self.expected)
            ways[way] = Contestant(lambda: self.run(compiled), partial(self.install, those, those))
        return ways, error


def wins(times_ms: Times, way: str, over: str) -> bool:
    """Whether one way is faster than another beyond the noise."""
    _, interval = statistics.ratio_interval(times_ms[over], times_ms[way])
    return interval.low > 1


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
