"""Parameters, constraints and the exact enumeration of a kernel's search space."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tilewright.kernels.problem import Limits, Problem


class Values(Mapping[str, int]):
    """The parameter values of one configuration, readable as attributes too: `c.TILE_M`."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self._by_name = dict(values)
        self.__dict__.update(self._by_name)  # constraints read them by the million: a fifth of the time of __getattr__

    def __getitem__(self, name: str) -> int:
        return self._by_name[name]

    def __getattr__(self, name: str) -> int:
        # Copying and pickling ask for attributes before there are any.
        if name.startswith("_") or name not in self._by_name:
            raise AttributeError(name)
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return f"Values({self._by_name})"


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


@dataclass(frozen=True)
class Constraint:
    """A named reason some configurations are out: `holds(values, problem, limits)` is true where they are in."""

    name: str
    holds: Predicate


@dataclass(frozen=True, order=True)
class Configuration:
    """One variant and one value for each of its parameters; hashable, ordered, canonical."""

    variant: str
    items: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, variant: str, values: Mapping[str, int]) -> Configuration:
        """The configuration with these values, in the order of their names."""
        return cls(variant, tuple(sorted(values.items())))

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Configuration:
        """The configuration that `as_json` wrote; raises ValueError where it is not one."""
        values = {name: value for name, value in data.items() if name != "variant"}
        variant = data.get("variant")
        if not isinstance(variant, str) or not all(type(value) is int for value in values.values()):
            raise ValueError('a configuration is {"variant": "…", "PARAMETER": integer, …}')
        return cls.of(variant, values)  # type: ignore[arg-type]

    @cached_property
    def values(self) -> Values:
        """The parameter values by name."""
        return Values(dict(self.items))

    def as_json(self) -> dict[str, str | int]:
        """A plain dictionary: the variant and each parameter."""
        return {"variant": self.variant, **dict(self.items)}

    def __str__(self) -> str:
        return " ".join([self.variant, *(f"{name}={value}" for name, value in self.items)])


@dataclass(frozen=True)
class VariantSpace:
    """The parameters of one variant and the constraints among them."""

    variant: str
    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...] = ()

    def default(self) -> Configuration:
        """The configuration that the source compiles to when nothing is defined."""
        return Configuration.of(self.variant, {p.name: p.default for p in self.parameters})

    def product_size(self) -> int:
        """How many points there are before constraints."""
        size = 1
        for parameter in self.parameters:
            size *= len(parameter.values)
        return size

    def violated(self, values: Values, problem: Problem, limits: Limits) -> str | None:
        """The name of the first constraint that these values break, or None."""
        return next((c.name for c in self.constraints if not c.holds(values, problem, limits)), None)


@dataclass(frozen=True)
class SearchSpace:
    """Every feasible configuration of one kernel for one problem on one device, over all variants asked for."""

    spaces: tuple[VariantSpace, ...]
    problem: Problem
    limits: Limits

    @cached_property
    def feasible(self) -> tuple[Configuration, ...]:
        """All configurations that satisfy every constraint, in a stable order."""
        found: list[Configuration] = []
        for space in self.spaces:
            names = [p.name for p in space.parameters]
            for point in itertools.product(*(p.values for p in space.parameters)):
                values = dict(zip(names, point, strict=True))
                if space.violated(Values(values), self.problem, self.limits) is None:
                    found.append(Configuration.of(space.variant, values))
        return tuple(found)

    @cached_property
    def positions(self) -> Mapping[Configuration, int]:
        """The place of each feasible configuration in `feasible`."""
        return {configuration: i for i, configuration in enumerate(self.feasible)}

    def __len__(self) -> int:
        return len(self.feasible)

    def __contains__(self, configuration: object) -> bool:
        return configuration in self.positions

    def variant(self, name: str) -> VariantSpace:
        """The space of one variant; raises KeyError."""
        return next(s for s in self.spaces if s.variant == name)

    def defaults(self) -> Sequence[Configuration]:
        """One feasible start per variant: its default, or the feasible configuration nearest to it."""
        starts = []
        for space in self.spaces:
            default = space.default()
            if default in self.positions:
                starts.append(default)
                continue
            near = self.nearest(default, exclude=frozenset())
            if near is not None and near.variant == space.variant:
                starts.append(near)
        return starts

    def nearest(
        self, wanted: Configuration, exclude: frozenset[Configuration] | set[Configuration]
    ) -> Configuration | None:
        """The feasible configuration nearest to `wanted` that is not excluded, or None when all are.

        Distance counts steps along each parameter's list of values; another variant is farther than any step.
        """
        best: Configuration | None = None
        best_distance = float("inf")
        for candidate in self.feasible:
            if candidate in exclude:
                continue
            distance = self._distance(wanted, candidate)
            if distance < best_distance:
                best, best_distance = candidate, distance
        return best

    def _distance(self, a: Configuration, b: Configuration) -> float:
        if a.variant != b.variant:
            return 1e6
        ranks = self._ranks[a.variant]
        return sum(abs(ranks[n].get(v, 0) - ranks[n].get(b.values[n], 0)) for n, v in a.items if n in ranks)

    @cached_property
    def _ranks(self) -> dict[str, dict[str, dict[int, int]]]:
        return {
            space.variant: {p.name: {v: i for i, v in enumerate(p.values)} for p in space.parameters}
            for space in self.spaces
        }

    def hash(self) -> str:
        """SHA-256 over parameters, values and constraint names: changes when the space does."""
        shape = [
            [s.variant, [[p.name, list(p.values), p.default] for p in s.parameters], [c.name for c in s.constraints]]
            for s in self.spaces
        ]
        return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()
