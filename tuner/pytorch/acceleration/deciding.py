"""Decisions of `accelerate` for a model: taken from an earlier start, or found, compared and timed now."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch import plans
from tilewright.tuner.pytorch.acceleration import kept_results
from tilewright.tuner.pytorch.acceleration import lock as locks
from tilewright.tuner.pytorch.acceleration.graphs.graph import graph_of
from tilewright.tuner.pytorch.acceleration.graphs.graph_capture import first_line
from tilewright.tuner.pytorch.acceleration.installation.installed import uninstall
from tilewright.tuner.pytorch.acceleration.installation.quantised import INT8
from tilewright.tuner.pytorch.acceleration.installation.quantised import TOLERANCE as QUANTISED_TOLERANCE
from tilewright.tuner.pytorch.acceleration.judgement import outputs
from tilewright.tuner.pytorch.acceleration.judgement.candidates import Candidate, cost, look_up, pose, predict_ahead
from tilewright.tuner.pytorch.acceleration.judgement.judge import Compiles, Judge
from tilewright.tuner.pytorch.acceleration.judgement.pace import Pace
from tilewright.tuner.pytorch.acceleration.judgement.sample import Sample
from tilewright.tuner.pytorch.acceleration.judgement.settling import settle
from tilewright.tuner.pytorch.acceleration.judgement.standard import Standard
from tilewright.tuner.pytorch.acceleration.recognition.fusions import search
from tilewright.tuner.pytorch.acceleration.recognition.left import left_alone
from tilewright.tuner.pytorch.acceleration.recognition.sites import Site, observe, quantised_sites
from tilewright.tuner.pytorch.acceleration.result import EAGER, GRAPH, OURS_GRAPH, Acceleration
from tilewright.tuner.pytorch.acceleration.tuning import tune_now
from tilewright.tuner.runtime.launches.devices import resolved

LOOKING = 0.35
"""The share of the limit for finding configurations: a prediction takes a tenth of a second and more."""

PREDICTING_S = 3.0
"""The time below which no processes are started to predict for all operators at once."""

MOST_GRAPHS = 4
"""Each keeps the memory of one run."""


class NothingReplacedError(TunerError):
    """There is a reason to leave the model as it is."""


class NothingKnownError(NothingReplacedError):
    """No site has an answer; the sites say why, each for itself."""

    def __init__(self, reason: str, candidates: Sequence[Candidate]) -> None:
        super().__init__(reason)
        self.candidates = candidates


@dataclass(frozen=True)
class Request:
    """The caller's arguments; see `accelerate`."""

    tune: str | None
    tune_seconds: float
    tolerance: float | None
    rounds: int
    limit_s: float
    compiles: Compiles | None
    graph: bool
    weights: str | None
    keep: bool
    progress: bool | None
    others: Sequence[Any] = ()


def decided(model: nn.Module, run: Sample, request: Request, said: list[Warning]) -> Acceleration:
    """The acceleration, as an earlier start decided it or decided now."""
    device, path = device_of(model), None
    if request.keep:
        asked = {name: value for name, value in vars(request).items() if name not in {"keep", "progress", "others"}}
        asked["any_size"] = plans.runtime().serves_any_size("linear")
        path = kept_results.path_of(model, run, device, asked)
        with _evaluating(model):
            result = kept_results.restore(path, model, run, device, request.compiles)
        if result is not None:
            _add_samples(result, request)
            return result
    is_told = sys.stderr.isatty() if request.progress is None else request.progress
    pace = Pace(request.limit_s, sys.stderr if is_told else None)
    try:
        result = _judged(model, run, request, said, pace)
    finally:
        pace.end()
    if pace.left_out:
        words = (
            f"{pace.left_out} operators were not compared within limit_s={pace.limit_s:g}; a longer one decides anew."
        )
        result.remarks.append(words)
    if path is not None:
        kept_results.keep(path, result)
    _add_samples(result, request)
    return result


def _add_samples(result: Acceleration, request: Request) -> None:
    """Compares the model's output for the other samples, and captures graphs for some; raises where one is wrong."""
    if result.way == EAGER or not request.others:
        return
    model, graphs = result.model, int(result.is_graph and result.way in {GRAPH, OURS_GRAPH})
    with _evaluating(model):
        for number, one in enumerate(request.others, 2):
            run = Sample(one)
            plans.off()
            try:
                run.learn(model)
                standard = Standard.of(run, model, request.tolerance).of_program
            finally:
                plans.on()
            verdict = standard.verdict(run(model))
            if not verdict.is_right:
                raise NothingReplacedError(f"with sample {number} the model's output is {verdict}")
            if 0 < graphs < MOST_GRAPHS:
                try:
                    graph_of(model, run, standard).put()
                    graphs += 1
                except Exception as error:  # noqa: BLE001 - it runs without a graph
                    result.remarks.append(f"Sample {number} runs without a graph: {first_line(error)}.")
    if result.stands and not any(stand.any_rows for stand in result.stands):
        result.remarks.append("Other sizes than the first sample's run as PyTorch's own: set TILEWRIGHT_ANY_SIZE=1.")


def _judged(model: nn.Module, run: Sample, request: Request, said: list[Warning], pace: Pace) -> Acceleration:
    device = device_of(model)
    if request.weights not in {None, INT8}:
        raise NothingReplacedError(f"weights are {INT8!r} or as they are, not {request.weights!r}")
    with _evaluating(model):
        _check_repeats(model, run, request.tolerance)
        sites = observe(model, lambda: run(model))
        fused, untraceable = search(model, lambda: run(model))
        sites += fused
        if request.weights:
            sites = quantised_sites(sites)
        if request.tolerance is None and any(one.weights for one in sites):
            request = replace(request, tolerance=QUANTISED_TOLERANCE)
        standard = Standard.of(run, model, request.tolerance)
        left = left_alone(model)
        candidates, nothing = _candidates(sites, device, request, said, pace)
        may_be_graph = request.graph and device.type == "cuda" and not torch.is_grad_enabled()
        _refuse(None if may_be_graph else nothing, left)
        result = Acceleration(
            model,
            candidates=candidates,
            left=left,
            measure=standard.measure,
            with_gradients=torch.is_grad_enabled(),
            environment=locks.environment(device),
            kernels=plans.runtime().kernels,
            untraced=untraceable,
        )
        judge = Judge(model, run, standard, device, request.rounds, pace, torch.is_grad_enabled())
        try:
            if request.graph:
                judge, why_not = judge.in_graphs()
                result.remarks += [why_not] if why_not else []
            _refuse(nothing if judge.pool is None else None, left)
            settle(result, judge, request.tolerance, request.compiles)
            locks.settle(result.as_json()["sites"], plans.runtime().kernels, str(device))
        except BaseException:
            uninstall(model)
            raise
        finally:
            run.put_back()
    return result


def _refuse(nothing: NothingReplacedError | None, left: Mapping[str, str]) -> None:
    """Raises the error, if there is one, with the modules that were left alone."""
    if nothing is not None:
        nothing.args = ("; ".join([str(nothing), *[f"{kind}: {reason}" for kind, reason in left.items()]]),)
        raise nothing


def _candidates(
    sites: Sequence[Site],
    device: torch.device,
    request: Request,
    said: list[Warning],
    pace: Pace,
) -> tuple[list[Candidate], NothingReplacedError | None]:
    """Every site with its answer, tuned now where that was requested; and an error where no site has one."""
    candidates = _looked_up(sites, request, pace)
    if request.tune == "now":
        candidates = _tuned(candidates, device, request.tune_seconds, pace)
    if not sites:
        return [], NothingReplacedError("it calls nothing that a kernel of ours computes")
    if all(one.choice is None for one in candidates):
        first = next((one.reason for one in candidates if one.problem), candidates[0].reason)
        because = f" ({said[0]})" if said else ""
        words = f"none of its {len(sites)} problems has an answer{because}: {first}"
        return candidates, NothingKnownError(words, candidates)
    return candidates, None


def _looked_up(sites: Sequence[Site], request: Request, pace: Pace) -> list[Candidate]:
    """The sites with known configurations, looked up for the costliest first, as time may not suffice for all."""
    candidates = [pose(site) for site in sites]
    if request.tune is None and LOOKING * pace.left_s > PREDICTING_S:
        predict_ahead(candidates)
    for place, one in enumerate(sorted(candidates, key=cost, reverse=True)):
        pace.tell(f"{place} of {len(candidates)} operators looked up")
        if request.tune is not None or pace.used_s < LOOKING * pace.limit_s:
            look_up(one, loads=request.tune is None)
        else:
            pace.left_out += 1
            one.reason = f"limit_s={pace.limit_s:g} was over before it was looked up; others take longer"
    return candidates


def _tuned(candidates: Sequence[Candidate], device: torch.device, seconds: float, pace: Pace) -> list[Candidate]:
    """The sites with the results of a search, so many seconds each, where a problem has no result of its own."""
    known = {one.problem: one.choice for one in candidates if one.problem and one.choice}
    exact = {problem for problem, choice in known.items() if choice.match == "exact"}
    missing = dict.fromkeys(one.problem for one in candidates if one.problem and one.problem not in exact)
    begin_with = {problem: choice.configuration for problem, choice in known.items()}
    place, begun_s = resolved(str(device)), pace.used_s
    failures = tune_now(plans.runtime(), missing, place, seconds, begin_with) if missing else {}
    pace.exclude(pace.used_s - begun_s)
    plans.look_again()
    tuned = [look_up(pose(one.site)) for one in candidates]
    for one in tuned:
        if one.choice is None and one.problem in failures:
            one.reason = failures[one.problem]
    return tuned


def _check_repeats(model: nn.Module, run: Sample, tolerance: float | None) -> None:
    """Raises where the model's own output is not the same in every call."""
    expected = run.learn(model)
    if not outputs.difference(run(model), expected) <= max(outputs.tolerance_of(expected), tolerance or 0.0):
        raise NothingReplacedError("its output differs from call to call, so that nothing can be compared with it")


def device_of(model: nn.Module) -> torch.device:
    """The device of the parameters; raises where they are on several."""
    devices = {one.device for one in [*model.parameters(), *model.buffers()]}
    if len(devices) > 1:
        raise NothingReplacedError(f"its parameters are on several devices: {', '.join(sorted(map(str, devices)))}")
    device: torch.device = devices.pop() if devices else torch.get_default_device()
    if device.type not in {"cpu", "cuda"}:
        raise NothingReplacedError(f"kernels run on CUDA GPUs and on the CPU, not on {device.type}")
    return device


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """A context in which the model is in `eval()`; then each module has its own mode again."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, is_training in modes.items():
            module.training = is_training
