"""The model as the judge: which replacements win in the whole of it, eager, as a CUDA graph, under torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from tilewright.tuner.loop import statistics
from tilewright.tuner.pytorch.acceleration.graphs.graph import GraphForward, graph_of
from tilewright.tuner.pytorch.acceleration.graphs.graph_capture import first_line, replay_timed
from tilewright.tuner.pytorch.acceleration.installation.installed import install, uninstall
from tilewright.tuner.pytorch.acceleration.judgement.candidates import Candidate
from tilewright.tuner.pytorch.acceleration.judgement.pace import Pace, can_stop, within
from tilewright.tuner.pytorch.acceleration.judgement.sample import Sample
from tilewright.tuner.pytorch.acceleration.judgement.standard import INFINITE, NONE, Standard, Verdict
from tilewright.tuner.pytorch.acceleration.judgement.timing import MOST_CALLS, Contestant, play
from tilewright.tuner.pytorch.acceleration.result import (
    BOTH,
    BOTH_GRAPH,
    COMPILED,
    COMPILED_GRAPH,
    EAGER,
    GRAPH,
    OURS,
    OURS_GRAPH,
)
from tilewright.tuner.pytorch.operator import is_watched
from tilewright.tuner.pytorch.precision import without_tf32

CHOOSING, PLAYING = 0.25, 0.3
"""Shares of the remaining time: for rounds of the model without each replacement, and reserved for all ways."""

LEAST_COMPILING_S = 4.0
"""The time below which torch.compile is not begun: it would be stopped half-way."""

UNSTOPPABLE_S = 60.0
"""The time that torch.compile needs to be begun where nothing can stop it: outside of the main thread."""

LEFT_OUT = "torch.compile's ways are left out"
MOST_ALONE = 12
"""Candidates that are judged one by one, those first that save most by themselves; each costs a model a round."""

Compiles = Callable[[nn.Module], Callable[..., Any]]
Times = dict[str, list[float]]


@dataclass(frozen=True)
class Settled:
    """Times of the whole model by way; the error under torch.compile; why some ways are missing."""

    times_ms: Times
    compiled_verdict: Verdict | None = None
    failures: list[str] = field(default_factory=list)
    graphs: dict[str, GraphForward] = field(default_factory=dict)  # by way
    compiled: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Judge:
    """A model with its sample, and the standard for its output.

    `run(callable)` calls the model, or what was made of it, with the sample; where calls change something, a sample of
    the clock is one call. `pool`: of memory for the CUDA graphs in
    which replacements are timed, so that the time is the GPU's; None: they are timed as the host calls them.
    """

    model: nn.Module
    run: Sample
    standard: Standard
    device: torch.device
    rounds: int
    pace: Pace
    with_gradients: bool
    pool: Any = None

    def in_graphs(self) -> tuple[Judge, str]:
        """The judge that times CUDA graphs, if the present model becomes a right one; else this judge, and why."""
        if self.device.type != "cuda" or self.with_gradients or is_watched():
            return self, ""
        try:
            self.captured([])
        except Exception as problem:  # noqa: BLE001 - what cannot be captured raises what it likes, and is timed as the host calls it
            return self, f"It is not judged as a CUDA graph: {first_line(problem)}."
        return replace(self, pool=torch.cuda.graph_pool_handle()), ""

    def install(self, chosen: Sequence[Candidate], compiled: Sequence[Candidate] = ()) -> None:
        """Replaces these, those of `compiled` under torch.compile too."""
        stands = [one.site.stand(compiled=one in compiled) for one in chosen]
        install(self.model, stands, with_gradients=self.with_gradients)

    def choose(self, candidates: Sequence[Candidate], beside: Sequence[Candidate] = ()) -> list[Candidate]:
        """The candidates that pay: without one the model is slower than with all and those beside. Others get a reason.

        They leave one at a time, since two may each be a loss only as long as the other is there.
        """
        asked = sorted(candidates, key=lambda one: (not one.is_disputed, -one.saved_ms))[:MOST_ALONE]
        for one in candidates:
            one.reason = "" if one in asked else one.slower_alone
        kept = [one for one in candidates if not one.reason]
        while asked and len(kept) + len(beside) > 1:
            doubtful = self._doubtful(asked, [*kept, *beside])
            if not doubtful:
                break
            worst = min(doubtful, key=lambda one: one.gain or 0.0)
            worst.reason = worst.slower_alone or "the whole model is no slower without it"
            kept.remove(worst)
            asked = [one for one in doubtful if one is not worst]
        return kept

    def _doubtful(self, asked: Sequence[Candidate], chosen: Sequence[Candidate]) -> list[Candidate]:
        """The candidates asked about that do not pay: the model is no slower without them than with all chosen ones."""
        contestants = {OURS: self._timed(chosen)}
        for place, left_out in enumerate(asked):
            self.pace.tell(f"{place} of {len(asked)} operators left out in turn")
            contestants[str(place)] = self._timed([one for one in chosen if one is not left_out])
        times_ms = play(contestants, self.device, self.rounds, CHOOSING * self.pace.left_s)
        found = []
        for place, one in enumerate(asked):
            one.gain, interval = statistics.ratio_interval(times_ms[str(place)], times_ms[OURS])
            found += [one] if (interval.low if one.is_disputed else one.gain) <= 1 else []
        return found

    def verdict_with(self, chosen: Sequence[Candidate]) -> Verdict:
        """The verdict on the model's output with these, which stay; a wrong one where it fails with a fusion.

        PyTorch's own operators compute without TF32 meanwhile: otherwise their error would hide that of replacements.
        Where some of these may compute in TF32 themselves, they may be off as PyTorch's own is with it.
        """
        standard = self.standard.of_program if any(one.is_tf32 for one in chosen) else self.standard
        try:
            self.install(chosen)
            with without_tf32():
                return standard.verdict(self.run(self.model))
        except Exception:
            if not any(one.site.fusion for one in chosen):
                raise
            return Verdict(INFINITE, NONE, NONE)

    def verdict(self) -> Verdict:
        """The verdict on the model's output as it is now."""
        return self.standard.of_program.verdict(self.run(self.model))

    def settle(self, chosen: Sequence[Candidate], compiles: Compiles | None) -> Settled:
        """The gain of all these replacements, as a CUDA graph too and under torch.compile where these work.

        The model of torch.compile is timed as a graph too, in which small kernels between ours are one.
        """
        uninstall(self.model)
        contestants, failures, verdict, compiled = {EAGER: self._eager([])}, list[str](), None, None
        contestants |= {OURS: self._eager(chosen)} if chosen else {}
        graphs = self._graphs({OURS_GRAPH: chosen, GRAPH: ()} if chosen else {GRAPH: ()}, failures)
        if chosen and compiles is not None and self._may_compile(failures):
            try:
                with within((1 - PLAYING) * self.pace.left_s):
                    compiled = compiles(self.model)
                    ways, verdict = self._compiled(chosen, compiled)
                contestants |= ways
            except TimeoutError as late:
                compiled, verdict = None, None
                failures.append(f"{LEFT_OUT}: {late}, which is what limit_s={self.pace.limit_s:g} left for it.")
            except Exception as problem:  # noqa: BLE001 - the model's code and compilers raise what they like, and eager is left
                failures.append(f"torch.compile does not work here: {first_line(problem)}")
        if verdict is not None and compiles is torch.compile:  # others may make graphs of their own
            graphs |= self._graphs({COMPILED_GRAPH: (), BOTH_GRAPH: chosen}, failures, compiled)
        for way, graph in graphs.items():
            those = chosen if way in {OURS_GRAPH, BOTH_GRAPH} else ()
            contestants[way] = self._contestant(self.model, partial(self._put, graph, those))
        self.pace.tell(f"rounds of {len(contestants)} ways")
        times_ms = play(contestants, self.device, self.rounds, self.pace.left_s)
        return Settled(times_ms, verdict, failures, graphs, compiled)

    def _may_compile(self, failures: list[str]) -> bool:
        """Whether there is time for torch.compile, which is the first thing to be left out."""
        left_s = (1 - PLAYING) * self.pace.left_s
        self.pace.tell("operators judged, torch.compile at work")
        if left_s < LEAST_COMPILING_S or not (can_stop() or left_s > UNSTOPPABLE_S):
            failures.append(f"{LEFT_OUT}: {left_s:.2g} s of limit_s={self.pace.limit_s:g} were left for it. Give more.")
            return False
        return True

    def _graphs(
        self,
        ways: Mapping[str, Sequence[Candidate]],
        failures: list[str],
        compiled: Callable[..., Any] | None = None,
    ) -> dict[str, GraphForward]:
        """The graphs of the ways that can be captured, in their order, as replacements may move parameters."""
        graphs: dict[str, GraphForward] = {}
        for way, those in ways.items() if self.pool is not None else ():
            try:
                graphs[way] = self.captured(those, compiled)
            except Exception as problem:  # noqa: BLE001 - what cannot be captured raises what it likes
                failures.append(f"As a CUDA graph ({way}): {first_line(problem)}.")
        return graphs

    def captured(self, chosen: Sequence[Candidate], compiled: Callable[..., Any] | None = None) -> GraphForward:
        """A CUDA graph of the model with these, whose replays are right; raises CaptureError, or PyTorch's own errors.

        `compiled`: what torch.compile made of the model, which is captured instead.
        """
        self.install(chosen, () if compiled is None else chosen)
        return graph_of(self.model, self.run, self.standard.of_program, compiled)

    def _put(self, forward: GraphForward, chosen: Sequence[Candidate]) -> None:
        self.install(chosen)
        forward.put()
        self.run.put_back()

    def _contestant(self, call: Callable[..., Any], prepare: Callable[[], object]) -> Contestant:
        most = 1 if self.run.has_state else MOST_CALLS
        return Contestant(lambda: self.run(call), prepare, most_calls=most)

    def _timed(self, chosen: Sequence[Candidate]) -> Contestant:
        if self.pool is None:
            return self._eager(chosen)
        self.install(chosen)
        held = [one.detach() for one in (*self.model.parameters(), *self.model.buffers())]
        return replay_timed(lambda: self.run(self.model), 1, self.pool, held)

    def _eager(self, chosen: Sequence[Candidate]) -> Contestant:
        return self._contestant(self.model, partial(self._warm, self.model, chosen, ()))

    def _warm(self, call: Callable[..., Any], chosen: Sequence[Candidate], compiled: Sequence[Candidate]) -> None:
        """Installs the replacements and calls once: the first call in a new place looks its launches up."""
        self.install(chosen, compiled)
        self.run(call)
        self.run.put_back()

    def _compiled(
        self, chosen: Sequence[Candidate], compiled: Callable[..., Any]
    ) -> tuple[dict[str, Contestant], Verdict]:
        """Both ways, compiled now, and the error of ours.

        One compiled model has code for both, and takes that of what is installed.
        """
        ways, verdict = {}, Verdict(NONE, NONE, NONE)
        for way, those in ((COMPILED, ()), (BOTH, chosen)):
            self.install(those, those)
            verdict = self.standard.of_program.verdict(self.run(compiled))
            ways[way] = self._contestant(compiled, partial(self._warm, compiled, those, those))
        return ways, verdict


def wins(times_ms: Times, way: str, over: str) -> bool:
    """Whether one way is faster than another beyond the noise."""
    _, interval = statistics.ratio_interval(times_ms[over], times_ms[way])
    return interval.low > 1


def best_way(times_ms: Times) -> str:
    """The last way that is faster than all before it; each way changes the model more."""
    ways = [way for way in (EAGER, OURS, GRAPH, OURS_GRAPH, COMPILED_GRAPH, BOTH_GRAPH) if way in times_ms]
    return [way for place, way in enumerate(ways) if all(wins(times_ms, way, over) for over in ways[:place])][-1]
