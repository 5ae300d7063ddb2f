"""Decides what stays in the model: each candidate alone, then all together, then the way in which it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.tuner.pytorch.acceleration.installation.installed import uninstall
from tilewright.tuner.pytorch.acceleration.judgement.candidates import Candidate, refine, weigh
from tilewright.tuner.pytorch.acceleration.judgement.judge import Compiles, Judge, Settled, best_way, wins
from tilewright.tuner.pytorch.acceleration.result import (
    BOTH,
    BOTH_GRAPH,
    COMPILED,
    COMPILED_GRAPH,
    EAGER,
    GRAPH,
    OURS,
    Acceleration,
)

FITS = 0.9
"""The share of the allowed error for choosing replacements: another capture sums in another order."""

LOOK_S, LEAST_MS = 0.05, 1e-6
WEIGHING, REFINING = 0.45, 0.3
"""Shares of the remaining time: for operators alone, and again for their more accurate configurations."""


def _expected(candidate: Candidate) -> tuple[float, int]:
    """The known milliseconds of one run, and the calls in it."""
    choice, calls = candidate.choice, candidate.site.calls
    return calls * ((choice.time_ms if choice else None) or 0.0), calls


def settle(result: Acceleration, judge: Judge, tolerance: float | None, compiles: Compiles | None) -> None:
    """Fills in times and kept candidates, and leaves the model so; `tolerance` is for each candidate's result."""
    _weigh_all(result.candidates, tolerance, judge)
    chosen = _fit([one for one in result.candidates if not one.reason], tolerance, judge, result)
    single = judge.choose([one for one in chosen if not one.site.fusion])
    chosen = judge.choose([one for one in chosen if one.site.fusion], beside=single) + single
    if chosen or judge.pool is not None:
        settled = judge.settle(chosen, compiles)
        result.times_ms, result.compiled_verdict = settled.times_ms, settled.compiled_verdict
        result.remarks += settled.failures
        result.way = best_way(settled.times_ms)
    if result.way in {EAGER, GRAPH, COMPILED_GRAPH}:
        _turn_down(chosen, "the whole model is no faster with it")
        chosen, result.reason = [], "no replacement makes the model faster"
    compiled = _compiled(chosen, settled, result) if chosen else []
    result.stands = [one.site.stand(compiled=one.is_compiled) for one in chosen]
    if chosen:
        is_graph = result.way in settled.graphs
        result.is_installed = not is_graph or wins(settled.times_ms, OURS, EAGER) or bool(compiled)
        judge.install(chosen if result.is_installed else [], compiled)  # what is not replayed is no slower than it was
        if is_graph:
            settled.graphs[result.way].put()
            result.remarks += filter(None, [settled.graphs[result.way].remark])
    else:
        uninstall(judge.model)
        if result.way != EAGER:  # again, as parameters have been moved back
            graph = judge.captured([], settled.compiled if result.way == COMPILED_GRAPH else None)
            graph.put()
            result.remarks += filter(None, [graph.remark])
    if result.way != EAGER:
        result.verdict = judge.verdict()


def _weigh_all(candidates: Sequence[Candidate], tolerance: float | None, judge: Judge) -> None:
    """Compares each remaining candidate alone with PyTorch's own, as long as there is time."""
    pace, left_s = judge.pace, judge.pace.left_s
    waiting = sorted((one for one in candidates if not one.reason), key=_expected)
    for place, one in enumerate(_as_loaded(waiting[::-1], judge, WEIGHING * left_s)):
        pace.tell(f"{place} of {len(waiting)} operators compared")
        if one.is_loading or pace.left_s <= (1 - WEIGHING) * left_s:
            pace.left_out += 1
            one.reason = f"limit_s={pace.limit_s:g} was over before it was compared; others take longer"
            continue
        weigh(one, tolerance, judge.pool)
        if one.verdict is not None and not one.verdict.is_right and refine(one):
            _take_finer(one, pace.left_s - (1 - WEIGHING) * left_s)
            if not one.reason:
                weigh(one, tolerance, judge.pool)


def _as_loaded(waiting: Sequence[Candidate], judge: Judge, limit_s: float) -> Iterator[Candidate]:
    """The candidates, those with compiled configurations first; those not ready in time come last.

    Only where times are those of graphs, which have nothing of the host: otherwise the compilers are waited for.
    """
    until, left = judge.pace.used_s + limit_s, list(waiting)
    for one in left if judge.pool is None else ():
        one.wait(until - judge.pace.used_s)
    while left:
        one = next((one for one in left if not one.is_loading), left[0])
        if one.is_loading:
            judge.pace.tell("configurations are compiled")
            one.wait(min(LOOK_S, until - judge.pace.used_s))
            if one.is_loading and judge.pace.used_s < until:
                continue
        left.remove(one)
        yield one


def _compiled(chosen: Sequence[Candidate], settled: Settled, result: Acceleration) -> list[Candidate]:
    """The candidates that are replaced under torch.compile too."""
    if settled.compiled_verdict is None:
        return []
    is_right, times_ms = settled.compiled_verdict.is_right, settled.times_ms
    is_faster = wins(times_ms, BOTH, COMPILED)
    if BOTH_GRAPH in times_ms and COMPILED_GRAPH in times_ms:  # the GPU's time, if the host's is no worse
        is_faster |= wins(times_ms, BOTH_GRAPH, COMPILED_GRAPH) and not wins(times_ms, COMPILED, BOTH)
    if is_right and is_faster:
        for one in chosen:
            one.is_compiled = one.site.can_compile
    else:
        why = "is no faster with it there" if is_right else "computes something else there"
        result.remarks.append(f"Under torch.compile nothing is replaced: the model {why}.")
    return [one for one in chosen if one.is_compiled]


def _fit(chosen: list[Candidate], tolerance: float | None, judge: Judge, result: Acceleration) -> list[Candidate]:
    """The replacements with which the model's output is right: all, more accurate ones if need be, or all but some.

    Those are left out that add most to its error for their gain. Fusions are then added one by one.
    """

    def is_right(those: list[Candidate]) -> bool:
        result.verdict = judge.verdict_with(those)
        return result.verdict.excess <= FITS

    if not chosen or is_right(chosen):
        return chosen
    chosen = _refined(chosen, tolerance, judge)
    if is_right(chosen):
        return chosen
    kept = sorted((one for one in chosen if not one.site.fusion), key=_strain)
    while kept and not is_right(kept):
        kept.pop().reason = f"with it the model's output is {result.verdict}"
    for one in chosen:
        if one.site.fusion and is_right([*kept, one]):
            kept.append(one)
        elif one.site.fusion:
            one.reason = "the model fails with it, or its output is off by more than is allowed"
    if kept:
        is_right(kept)
    return kept


def _refined(chosen: list[Candidate], tolerance: float | None, judge: Judge) -> list[Candidate]:
    """The candidates with more accurate configurations where there are any, weighed anew while there is time.

    Those that add most to the error come first. The model's own times tell what the others bring.
    """
    judge.pace.tell("more accurate configurations are compiled")
    uninstall(judge.model)
    finer, least_s = [one for one in chosen if refine(one)], (1 - REFINING) * judge.pace.left_s
    for one in sorted(finer, key=_strain, reverse=True):
        _take_finer(one, judge.pace.left_s - least_s)
        if not one.reason and judge.pace.left_s > least_s:
            weigh(one, tolerance, judge.pool)
    return [one for one in chosen if not one.reason]


def _take_finer(candidate: Candidate, limit_s: float) -> None:
    candidate.wait(limit_s)
    candidate.reason = "" if not candidate.is_loading else "its more accurate configuration was not compiled in time"


def _strain(candidate: Candidate) -> float:
    """The squared error that a replacement adds to the model's for each millisecond saved; 0 without a verdict."""
    if candidate.verdict is None:
        return 0.0
    error, own = candidate.verdict.error.whole, candidate.verdict.eager.whole
    return candidate.site.calls * (error**2 - own**2) / max(candidate.saved_ms, LEAST_MS)


def _turn_down(candidates: Sequence[Candidate], reason: str) -> None:
    for one in candidates:
        one.reason = reason
