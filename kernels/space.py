"""Parameters, constraints and the exact enumeration of a kernel's search space."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.enumeration.configuration import Configuration, Values
from tilewright.kernels.enumeration.feasible import Feasible, Part
from tilewright.kernels.enumeration.points import Enumeration
from tilewright.kernels.problem import Limits, Problem

__all__ = [
    "Configuration",
    "Constraint",
    "Parameter",
    "Predicate",
    "SearchSpace",
    "Values",
    "VariantSpace",
    "choice",
    "no_start",
    "powers_of_two",
]


@dataclass(frozen=True)
class Parameter:
    """One tunable constant: its name in the source, the values it may take and the default, which is one of them."""

    name: str
    values: tuple[int, ...]
    default: int
    doc: str = ""

    def __post_init__(self) -> None:
        if self.default not in self.values or len(set(self.values)) != len(self.values):
            raise ValueError(
                f"parameter {self.name}: the default {self.default} must be one of {self.values}, each once"
            )


def powers_of_two(name: str, low: int, high: int, *, default: int, doc: str = "") -> Parameter:
    """A parameter that takes every power of two from `low` to `high`, both included."""
    values = tuple(1 << e for e in range(low.bit_length() - 1, high.bit_length()))
    return Parameter(name, values, default, doc)


def choice(name: str, *values: int, default: int | None = None, doc: str = "") -> Parameter:
    """A parameter with listed values; the first is the default unless one is named."""
    return Parameter(name, values, values[0] if default is None else default, doc)


Predicate = Callable[[Values, Problem, Limits], bool]
Start = Callable[[Problem, Limits], Mapping[str, int]]


def no_start(_problem: Problem, _limits: Limits) -> Mapping[str, int]:
    """No values: a search begins with the parameters' defaults."""
    return {}


@dataclass(frozen=True)
class Constraint:
    """A named reason some configurations are out: `holds(values, problem, limits)` is true where they are in.

    `is_thrift`: those that break it are right, only not worth a trial. If an axis has its size from the launch,
    such constraints apply at the sizes that are measured, and all others at every size.
    `is_costly`: it looks at launches, which takes as long as all others.
    """

    name: str
    holds: Predicate
    is_thrift: bool = False
    is_costly: bool = False


@dataclass(frozen=True)
class VariantSpace:
    """The parameters of one variant and the constraints among them.

    `starts_search`: a search tries the start before it proposes anything.
    """

    variant: str
    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...] = ()
    start: Start = no_start
    starts_search: bool = True

    def default(self) -> Configuration:
        """The configuration that the source compiles to when nothing is defined."""
        return Configuration.of(self.variant, {p.name: p.default for p in self.parameters})

    def start_for(self, problem: Problem, limits: Limits) -> Configuration:
        """The default, with the values that `start` has for the problem; it may be infeasible."""
        return Configuration.of(self.variant, {**dict(self.default().items), **self.start(problem, limits)})

    def product_size(self) -> int:
        """How many points there are before constraints."""
        return math.prod(len(parameter.values) for parameter in self.parameters)

    def violated(self, values: Values, problem: Problem, limits: Limits) -> str | None:
        """The name of the first constraint that these values break, or None."""
        return next((c.name for c in self.constraints if not c.holds(values, problem, limits)), None)

    def admits(self, values: Values, problem: Problem, limits: Limits) -> bool:
        """Whether they break none, in less time than `violated`."""
        return all(c.holds(values, problem, limits) for c in self._cheapest_first)

    @cached_property
    def _cheapest_first(self) -> list[Constraint]:
        return sorted(self.constraints, key=lambda constraint: constraint.is_costly)


@dataclass(frozen=True)
class SearchSpace:
    """Every feasible configuration of one kernel for one problem on one device, over all variants asked for."""

    spaces: tuple[VariantSpace, ...]
    problem: Problem
    limits: Limits

    @cached_property
    def feasible(self) -> Feasible:
        """All configurations that satisfy every constraint, in a stable order: variants, then values, as declared."""
        return Feasible([self._part(space) for space in self.spaces])

    def _part(self, space: VariantSpace) -> Part:
        domains = {p.name: p.values for p in space.parameters}
        looked_at = [{p.name: p.values[place] for p in space.parameters} for place in (0, -1)]
        constraints = [self._on_values(constraint) for constraint in space.constraints]
        enumeration = Enumeration(domains, constraints, [dict(space.default().items), *looked_at])
        return Part(space.variant, domains, enumeration.ranks())

    def _on_values(self, constraint: Constraint) -> Callable[[Values], bool]:
        return lambda values: constraint.holds(values, self.problem, self.limits)

    @property
    def positions(self) -> Mapping[Configuration, int]:
        """The place of each feasible configuration in `feasible`."""
        return self.feasible.positions

    @property
    def ranks(self) -> Mapping[str, NDArray[np.int16]]:
        """Per variant, a row for each feasible configuration: the place of each value in its parameter's list."""
        return {part.variant: part.ranks for part in self.feasible.parts}

    def __len__(self) -> int:
        return len(self.feasible)

    def __contains__(self, configuration: object) -> bool:
        return configuration in self.feasible

    @property
    def start_variants(self) -> list[str]:
        """The variants whose starts a search tries before it proposes anything."""
        return [space.variant for space in self.spaces if space.starts_search]

    def variant(self, name: str) -> VariantSpace:
        """The space of one variant; raises KeyError."""
        return next(s for s in self.spaces if s.variant == name)

    def defaults(self) -> Sequence[Configuration]:
        """One feasible start per variant: its own for the problem, or the feasible configuration nearest to that."""
        starts = []
        for space in self.spaces:
            start = space.start_for(self.problem, self.limits)
            if start in self:
                starts.append(start)
                continue
            near = self.nearest(start, exclude=frozenset())
            if near is not None and near.variant == space.variant:
                starts.append(near)
        return starts

    def nearest(
        self, wanted: Configuration, exclude: frozenset[Configuration] | set[Configuration]
    ) -> Configuration | None:
        """The feasible configuration nearest to `wanted` that is not excluded, or None when all are.

        Distance counts steps along each parameter's list of values; another variant is farther than any step.
        """
        excluded = [position for c in exclude if (position := self.positions.get(c)) is not None]
        distances = self.feasible.distances(wanted)
        distances[excluded] = np.iinfo(distances.dtype).max
        return self.feasible[int(np.argmin(distances))] if len(excluded) < len(distances) else None

    def hash(self) -> str:
        """SHA-256 over parameters, values and constraint names: changes when the space does."""
        shape = [
            [s.variant, [[p.name, list(p.values), p.default] for p in s.parameters], [c.name for c in s.constraints]]
            for s in self.spaces
        ]
        return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()
