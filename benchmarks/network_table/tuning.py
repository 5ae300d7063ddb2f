"""Configurations for every layer of the network, a search a variant, and the rows of the table that they make."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.device import Device
from tilewright.tuner.loop.finals import Finalist
from tilewright.tuner.loop.tune import Budget, tune
from tilewright.tuner.network.network import Network

SEED = 1

STEPS: Mapping[str, tuple[str, Sequence[str]]] = {
    "tiled": ("tiled", ("tiled",)),
    "wpt_strided": ("more work per thread, not coalesced", ("wpt_strided",)),
    "wpt": ("more work per thread, coalesced", ("wpt",)),
    "register": ("register", ("register",)),
    "tensor": ("tensor cores, FP32 accuracy", ("tensor3xtf32", "tensor3xtf32_sliced", "tensor3xtf32_sm90")),
}
"""The steps that people learn by: what the table calls them, and linear's variants that they are."""


@dataclass
class Step:
    """A row of the table: a configuration for every problem of the network."""

    name: str
    label: str
    pinned: dict[Problem, Configuration] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)  # problems that its variants cannot do

    @property
    def is_fused(self) -> bool:
        """Whether its last two layers and softmax are one launch."""
        return any(problem.kernel == "classifier" for problem in self.pinned)


def problems(network: Network, batch: int) -> list[Problem]:
    """One of `linear` for each layer, then softmax's."""
    linear, softmax = catalogue().get("linear"), catalogue().get("softmax")
    layers = [
        linear.problem({"m": batch, "n": n, "k": k}, "float32", {"activation": layer.activation})
        for layer, (k, n) in zip(network.layers, itertools.pairwise(network.sizes), strict=True)
    ]
    return [*layers, softmax.problem({"m": batch, "n": network.sizes[-1]}, "float32")]


def search(device: Device, problem: Problem, variants: Sequence[str] | None, budget: Budget) -> Finalist | None:
    """The settled winner of these variants; None where none of them runs this problem here."""
    kernel = catalogue().get(problem.kernel)
    if not kernel.usable_variants(problem, device.model.limits, variants):
        return None
    space = kernel.space(problem, device.model.limits, variants)
    if not len(space):
        return None
    bench = device.bench(kernel, problem, SEED)
    try:
        finalist = tune(bench, kernel, space, budget, seed=SEED).best
    finally:
        bench.close()
    words = f"{finalist.time_ms * 1e3:.2f} us {finalist.configuration}" if finalist else "nothing runs"
    print(f"{problem} {'+'.join(variants or ['all'])}: {words}", file=sys.stderr, flush=True)
    return finalist


def tuned_steps(device: Device, network: Network, batch: int, budget: Budget) -> list[Step]:
    """The steps, `tuned`, with the fastest for each layer, and `fused`. Softmax has the same configuration in all."""
    *layers, last = problems(network, batch)
    softmax = search(device, last, None, budget)
    steps = [Step(name, label) for name, (label, _) in STEPS.items()]
    tuned = Step("tuned", "tuned, the fastest of each layer")
    for problem in layers:
        finalists: dict[str, Finalist] = {}
        for step in steps:
            winner = search(device, problem, STEPS[step.name][1], budget)
            if winner is None:
                step.absent.append(str(problem))
            else:
                finalists[step.name] = winner
                step.pinned[problem] = winner.configuration
        tuned.pinned[problem] = min(finalists.values(), key=lambda one: one.time_ms).configuration
    for step in (*steps, tuned):
        if softmax is not None:
            step.pinned[last] = softmax.configuration
        for problem in layers:  # a layer that the step has no variant for takes the tuned one, and the table says so
            step.pinned.setdefault(problem, tuned.pinned[problem])
    served = [step for step in steps if len(step.absent) < len(layers)]
    return [*served, tuned, *fused_step(device, tuned, network, batch, budget)]


def fused_step(device: Device, tuned: Step, network: Network, batch: int, budget: Budget) -> list[Step]:
    """The tuned step with one launch for the last two layers and softmax; none where the layers are too long."""
    k, h, n = network.sizes[-3:]
    together = catalogue().get("classifier").problem({"m": batch, "k": k, "h": h, "n": n}, "float32")
    winner = search(device, together, None, budget)
    if winner is None:
        return []
    pinned = {problem: tuned.pinned[problem] for problem in problems(network, batch)[:-3]}
    label = "tuned, the last two layers and softmax in one launch"
    return [Step("fused", label, pinned | {together: winner.configuration})]
