"""The configuration for a step: one known to be best, the winner of a short search, or the author's default."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import OptionValue, Problem
from tilewright.kernels.space import Configuration, Constraint, SearchSpace
from tilewright.tuner.devices.device import Bench, DeviceModel
from tilewright.tuner.errors import TunerError
from tilewright.tuner.loop.measure import DEFAULT_PLAN
from tilewright.tuner.loop.study import Hooks, Knowledge, Progress, Trial, TuneResult
from tilewright.tuner.loop.tune import Budget, tune
from tilewright.tuner.report.ladders import Step
from tilewright.tuner.report.scales import SEARCH_PLAN, Scale

SEED = 1
_FEW = 50
"""A step with no more configurations than this keeps the table's at every size."""

LEAST_TRIALS = 12
"""The trials that a search needs to tell of its step: it goes on past its time, and says if that was not enough."""

_MOST_TIMES = 8
"""How many times its time a search may take to come to the least trials."""

_FEW_PLAN = replace(DEFAULT_PLAN, least_samples=3, warm_up_samples=6, max_samples=5, side_samples=1, limit_s=0.2)
"""The plan that tells a few clearly different configurations apart; the reported rounds follow."""


class KnownFileError(TunerError):
    """A file of known configurations cannot be read."""


@dataclass(frozen=True)
class KnownConfiguration:
    """The best configuration of an earlier tuning for a problem; `source` names where it is from."""

    kernel: str
    shape: Mapping[str, int]
    dtype: str
    options: Mapping[str, OptionValue]
    configuration: Configuration
    source: str

    def fits(self, problem: Problem) -> bool:
        """Whether the choice was tuned for this problem, whatever arithmetic was admitted."""
        mine = (self.kernel, dict(self.shape), self.dtype, _but_accuracy(self.options))
        return mine == (problem.kernel, problem.stated_shape, problem.dtype, _but_accuracy(problem.options))


@dataclass(frozen=True)
class StepChoice:
    """A step's configuration, and how it was chosen, in words; `is_short`: too few were tried."""

    configuration: Configuration
    chosen: str
    is_short: bool = False


def step_kernel(kernel: Kernel, step: Step) -> Kernel:
    """The kernel with only the step's variants, and of those only the configurations that the step admits."""
    variants = [kernel.variant(name) for name in step.variants] if step.variants else list(kernel.variants)
    rule = Constraint(f"is a step of {step.title}", lambda c, _p, _d: step.admits(c))
    return replace(kernel, variants=tuple(replace(v, constraints=(*v.constraints, rule)) for v in variants))


def step_space(kernel: Kernel, step: Step, problem: Problem, model: DeviceModel) -> SearchSpace:
    """The configurations that a step may choose from; empty where device or problem do not admit its variants."""
    return step_kernel(kernel, step).space(problem, model.limits)


def choose(
    bench: Bench,
    kernel: Kernel,
    step: Step,
    space: SearchSpace,
    scale: Scale,
    known: Sequence[KnownConfiguration] = (),
    *,
    longest_s: float = float("inf"),
    on_trial: Callable[[], None] = lambda: None,
) -> StepChoice | None:
    """The step's configuration for the table's problem; None where none works.

    A search that tried too few goes on for at most `longest_s`, so that the steps after it get their time too.
    """
    mine = step_kernel(kernel, step)
    default = mine.default_configuration(space)
    earlier = _fitting(known, step, space)
    if earlier is not None:
        return StepChoice(earlier.configuration, f"known: {earlier.source}")
    if not step.is_searched or not scale.search_trials:
        return StepChoice(default, "as declared")
    begun = time.monotonic()
    trials: list[Trial] = []

    def heard(progress: Progress) -> None:
        trials.append(progress.trial)
        on_trial()

    def search(most: int, seconds: float | None) -> TuneResult:
        budget, knowledge = Budget(trials=most - len(trials), seconds=seconds), Knowledge(list(trials))
        return tune(bench, mine, space, budget, seed=SEED, knowledge=knowledge, hooks=Hooks(heard), plan=SEARCH_PLAN)

    least = min(LEAST_TRIALS, len(space))
    result = search(scale.search_trials, scale.search_s)
    more_s = min(_MOST_TIMES * scale.search_s, longest_s)
    if len(trials) < min(least, scale.search_trials) and more_s > 0:
        result = search(least, more_s)
    if not trials:
        result = search(1, None)  # the default, however long it takes
    if result.best is None:
        return None
    is_short = len(trials) < least
    words = "searched too little" if is_short else "searched"
    spent = f"{words}: {len(trials)} of {len(space)} configurations in {time.monotonic() - begun:.1f} s"
    return StepChoice(result.best.configuration, spent, is_short)


def at_size(
    bench: Bench,
    step: Step,
    space: SearchSpace,
    chosen: Configuration,
    *,
    l2: str,
    draws: int,
    known: Sequence[KnownConfiguration] = (),
) -> Configuration | None:
    """The step's configuration for a size of the sweep: a known one, or the fastest of a few; None: none works.

    The few are the table's choice (or the nearest to it that this size admits), where the authors of variants would
    start, and some drawn at random. A step with few configurations, or one that is not searched, keeps the nearest.
    """
    if not len(space):
        return None
    earlier = _fitting(known, step, space)
    if earlier is not None:
        return earlier.configuration
    near = chosen if chosen in space else space.nearest(chosen, exclude=frozenset())
    if near is None or not step.is_searched or not draws or len(space) <= _FEW:
        return near
    generator = np.random.default_rng(SEED)
    drawn = [space.feasible[int(place)] for place in generator.integers(0, len(space), draws)]
    times: dict[Configuration, float] = {}
    for candidate in dict.fromkeys([near, *space.defaults(), *drawn]):
        incumbent_ms = min(times.values(), default=None)
        time_ms = bench.evaluate(candidate, l2, _FEW_PLAN, incumbent_ms).time_ms
        if time_ms is not None:
            times[candidate] = time_ms
    return min(times, key=lambda candidate: times[candidate], default=None)


def _fitting(known: Sequence[KnownConfiguration], step: Step, space: SearchSpace) -> KnownConfiguration | None:
    """The known configuration of a step that is searched; other steps keep their declared one."""
    fitting = (one for one in known if one.fits(space.problem) and one.configuration in space)
    return next(fitting, None) if step.is_searched else None


def read_known(path: Path) -> list[KnownConfiguration]:
    """The configurations of a bundle, or of a file of `make bench-kernels`; raises KnownFileError.

    Both are JSON with a list (`results` or `rows`) whose entries hold a problem and a configuration.
    """
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        rows = document.get("results") or document.get("rows") or []
        return [found for row in rows if (found := _known(row, path.name)) is not None]
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise KnownFileError(f"cannot read configurations from {path} ({type(error).__name__}: {error})") from error


def _known(row: Mapping[str, Any], source: str) -> KnownConfiguration | None:
    if "configuration" not in row:
        return None
    named = {"variant": row["variant"]} if "variant" in row else {}
    configuration = Configuration.from_json({**named, **row["configuration"]})
    return KnownConfiguration(row["kernel"], row["shape"], row["dtype"], row["options"], configuration, source)


def _but_accuracy(options: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    return {name: value for name, value in options.items() if name != "accuracy"}
