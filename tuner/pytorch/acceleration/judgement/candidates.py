"""Candidates: sites whose answer is no slower than the library, and which are right and faster here."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.loop.statistics import median
from tilewright.tuner.pytorch import plans
from tilewright.tuner.pytorch.acceleration.graphs.graph_capture import first_line, replay_timed
from tilewright.tuner.pytorch.acceleration.judgement.standard import ALONE, Standard, Verdict
from tilewright.tuner.pytorch.acceleration.judgement.timing import Contestant, play
from tilewright.tuner.pytorch.acceleration.recognition.sites import Site
from tilewright.tuner.pytorch.operator_plans import Found
from tilewright.tuner.pytorch.recording.operators import REFUSALS, posed_problem
from tilewright.tuner.pytorch.tuned_call import on_device_of
from tilewright.tuner.runtime.choice import Choice, is_admitted
from tilewright.tuner.runtime.launches.devices import place_of, resolved
from tilewright.tuner.runtime.launches.library_calls import call_of
from tilewright.tuner.turns.turns import beside_captures

ROUNDS, LIMIT_S, SAMPLE_S = 7, 1.0, 4e-3
"""Limits for timing a site alone, which only spares the model a trial."""

PROMOTE_K = "PROMOTE_K"
"""The parameter of tensor-core variants on which the error depends most."""

GRAPH_CALLS = 20
"""The calls in a graph of a site alone, whose replay costs the host as much as a call or two."""


WORTH_PROCESSES = 4
"""Problems of a kernel for whose predictions processes are started, each of which takes a second to load."""

FLOPS_A_BYTE = 16
"""What a GPU computes in FP32 while it moves a byte."""


@dataclass(eq=False)
class Candidate:
    """A site, what is known of its problem, and what was measured. `reason`: why PyTorch's own stays, else empty."""

    site: Site
    problem: Problem | None = None
    choice: Choice | None = None
    pytorch_ms: float | None = None
    ours_ms: float | None = None
    verdict: Verdict | None = None
    gain: float | None = None
    is_compiled: bool = False
    loading: threading.Thread | None = None
    reason: str = ""

    @property
    def saved_ms(self) -> float:
        """Milliseconds that its calls in one run save together, by times alone; 0 where a time is not known."""
        if self.pytorch_ms is None or self.ours_ms is None:
            return 0.0
        return self.site.calls * (self.pytorch_ms - self.ours_ms)

    @property
    def is_tf32(self) -> bool:
        """Whether it may compute in TF32, as the program allows PyTorch's own."""
        return self.problem is not None and self.problem.options.get("accuracy") == "tf32"

    @property
    def slower_alone(self) -> str:
        """A sentence that PyTorch's own is no slower by itself, with both times; empty where it is slower."""
        if self.pytorch_ms is None or self.ours_ms is None or self.ours_ms < self.pytorch_ms:
            return ""
        return f"PyTorch's own takes {self.pytorch_ms:.4g} ms here, ours {self.ours_ms:.4g} ms"

    @property
    def call(self) -> str | None:
        """The library's call that our operator makes instead of the configuration; PyTorch's own may be another."""
        if self.problem is None or self.choice is None or not _tensor(self.site.call.arguments).is_cuda:
            return None
        return call_of(self.problem, self.choice)[0]

    @property
    def is_loading(self) -> bool:
        """Whether the candidate's configuration is still being compiled."""
        return self.loading is not None and self.loading.is_alive()

    def wait(self, limit_s: float) -> None:
        """Waits until the configuration is compiled and loaded, or for `limit_s` seconds."""
        if self.loading is not None:
            self.loading.join(max(0.0, limit_s))

    @property
    def is_disputed(self) -> bool:
        """Whether the answer says that the library is slower at this problem, and the times here say it is not.

        Calls behind one another in a graph find a matrix in the L2 cache that the model does not: at (1, 4096, 4096) in
        bfloat16 PyTorch's took 9.9 us so, 15.6 in a decoder and ours 12.4 (H100, 2026-11-26).
        """
        known = self.choice
        if not self.slower_alone or known is None or known.match != "exact":
            return False
        return known.time_ms is not None and known.library_ms is not None and known.time_ms < known.library_ms


def pose(site: Site) -> Candidate:
    """The candidate of a site: with its problem, or with the reason why no kernel has such a problem."""
    candidate = Candidate(site)
    try:
        candidate.problem = _problem(site, _as_called(site))
    except REFUSALS as error:
        candidate.reason = str(error)
    return candidate


def cost(candidate: Candidate) -> float:
    """The work of a candidate's calls as bytes read, written and computed, which orders them; infinite if refused."""
    problem = candidate.problem
    if problem is None:
        return math.inf
    kernel = plans.runtime().kernels.get(problem.kernel)
    return candidate.site.calls * (kernel.estimated_bytes(problem) + kernel.estimated_flops(problem) / FLOPS_A_BYTE)


def predict_ahead(candidates: Sequence[Candidate]) -> None:
    """Predicts, in several processes, for sites of which nothing else is known; does nothing if a service is asked."""
    runtime, by_kernel = plans.runtime(), dict[str, list[Problem]]()
    tensors = [_tensor(one.site.call.arguments) for one in candidates if one.problem]
    if runtime.asks_service or not tensors:
        return
    place = place_of(resolved(str(tensors[0].device)))
    for problem in dict.fromkeys(one.problem for one in candidates if one.problem):
        kernel = runtime.kernels.get(problem.kernel)
        if not runtime.serves_any_size(problem.kernel) and not runtime.is_known(kernel, problem, place):
            by_kernel.setdefault(problem.kernel, []).append(problem)
    for name, problems in by_kernel.items():
        if len(problems) >= WORTH_PROCESSES:
            runtime.predict_ahead(runtime.kernels.get(name), problems, place)


def look_up(candidate: Candidate, *, loads: bool = True) -> Candidate:
    """The candidate with the configuration that is known for it, which a thread compiles and loads for a GPU."""
    if candidate.problem is None:
        return candidate
    try:
        found = candidate.site.call.operator.plans.find(*_as_called(candidate.site))
        candidate.choice = found.choice
    except REFUSALS as error:
        candidate.reason = str(error)
        return candidate
    choice, is_called = candidate.choice, candidate.call is not None
    is_slower = choice.library_ms is not None and choice.time_ms is not None and choice.time_ms >= choice.library_ms
    if choice.is_measured and (choice.library_faster or is_slower) and not is_called:  # else times taken here tell
        times = f" ({choice.library_ms:.4g} ms; ours {choice.time_ms:.4g} ms)" if is_slower else ""
        candidate.reason = "; ".join(
            filter(None, (f"the library was faster{times}", call_of(candidate.problem, choice)[1]))
        )
    elif loads:
        candidate.loading = _loading(found)
    return candidate


def _loading(found: Found) -> threading.Thread | None:
    """A thread that compiles and loads the configuration; none on the CPU, where it would take the cores of timing."""
    launcher, arrays = found.launcher, found.posed.arrays
    if not arrays[0].is_cuda:
        return None
    load = beside_captures(partial(launcher.load_for, *launcher.posed(*arrays)))
    thread = threading.Thread(target=load, daemon=True, name="tilewright-load")
    thread.start()
    return thread


def refine(candidate: Candidate) -> bool:
    """Whether there is a more accurate configuration, which the operators then use.

    Tensor cores cut off what they add, so that the error falls with the products between additions to FP32 registers.
    """
    choice, problem = candidate.choice, candidate.problem
    if choice is None or problem is None or PROMOTE_K not in choice.configuration.values:
        return False
    runtime, arguments = plans.runtime(), _as_called(candidate.site)
    values = dict(choice.configuration.values)
    values[PROMOTE_K] //= 2
    finer = Configuration.from_json({"variant": choice.configuration.variant, **values})
    place = place_of(resolved(str(_tensor(arguments).device)))
    if not is_admitted(runtime.kernels.get(problem.kernel), problem, place, finer):
        return False
    match = "nearest" if choice.is_measured else choice.match  # it was not verified
    runtime.pin({problem: finer}, {problem: match})
    plans.look_again()
    candidate.choice = replace(choice, configuration=finer, match=match)
    candidate.loading = _loading(candidate.site.call.operator.plans.find(*arguments))
    return True


def weigh(candidate: Candidate, tolerance: float | None, pool: Any) -> None:
    """Compares it with PyTorch's own on the sample's tensors: the result, then the time.

    With a pool of memory for CUDA graphs it is the time of replays, else that of calls of the host.
    """
    site = candidate.site
    try:
        standard = Standard.of(lambda _: site.original(), tolerance=tolerance, margin=ALONE)
        standard = standard.of_program if candidate.is_tf32 else standard
        found = site.call.run()
    except REFUSALS as error:
        candidate.reason = str(error)
        return
    candidate.verdict = standard.verdict(found)
    if not candidate.verdict.is_right:
        candidate.reason = f"its result is {candidate.verdict}"
        return
    contestants = {"PyTorch": Contestant(site.original), "ours": Contestant(site.call.run)}
    if pool is not None:
        try:
            contestants = {name: replay_timed(one.call, GRAPH_CALLS, pool) for name, one in contestants.items()}
        except Exception as error:  # noqa: BLE001 - what cannot be captured raises what it likes
            candidate.reason = f"it cannot be captured in a CUDA graph: {first_line(error)}"
            return
    times_ms = play(contestants, _tensor(site.call.arguments).device, ROUNDS, LIMIT_S, SAMPLE_S)
    candidate.pytorch_ms, candidate.ours_ms = median(times_ms["PyTorch"]), median(times_ms["ours"])
    if pool is None or not candidate.is_disputed:  # else the model, whose caches are as they are, says it
        candidate.reason = candidate.slower_alone


def _problem(site: Site, arguments: Sequence[Any]) -> Problem:
    operator = site.call.operator
    with on_device_of(_tensor(arguments)):
        posed = operator.plans.posed(*arguments)
        return posed_problem(operator.kernel, posed, _tensor(arguments).dtype)


def _as_called(site: Site) -> Sequence[Any]:
    """The operator's arguments, under autocast in its precision."""
    kind = _tensor(site.call.arguments).device.type
    if torch.is_autocast_enabled(kind):
        return site.call.operator.cast(kind, site.call.arguments)
    return site.call.arguments


def _tensor(arguments: Sequence[Any]) -> Tensor:
    return next(one for one in arguments if isinstance(one, Tensor))
