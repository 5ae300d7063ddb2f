"""Configurations of the digits network's launches on a device model, as find_best answers for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.service.operations.answers import Match
from tilewright.service.operations.best.find import find_best
from tilewright.service.operations.catalog import kernel_named
from tilewright.service.operations.digits.post import LayerAnswer
from tilewright.tuner.runtime.choice import TargetDevice, default_choice


@dataclass(frozen=True)
class Layer:
    """One launch and its configuration; `match` says how that was found."""

    problem: Problem
    configuration: Configuration
    match: Match

    def answer(self) -> LayerAnswer:
        """The launch as callers see it."""
        return LayerAnswer(
            kernel=self.problem.kernel,
            shape=self.problem.stated_shape,
            variant=self.configuration.variant,
            configuration=dict(self.configuration.items),
            match=self.match,
        )


def best_layers(session: Session, slug: str, problems: Sequence[Problem]) -> list[Layer]:
    """The best known configurations on that device model; raises as find_best does."""
    bests = [find_best(session, p.kernel, slug, p.shape, p.dtype, p.options) for p in problems]
    return [
        Layer(problem, Configuration.of(best.variant, best.configuration), best.match)
        for problem, best in zip(problems, bests, strict=True)
    ]


def safe_layers(slug: str, limits: Limits, problems: Sequence[Problem]) -> list[Layer]:
    """The kernels' defaults, or the nearest configurations that run there; raises LaunchError where none does."""
    place = TargetDevice(slug, limits)
    return [
        Layer(problem, default_choice(kernel_named(problem.kernel), problem, place).configuration, Match.DEFAULT)
        for problem in problems
    ]
