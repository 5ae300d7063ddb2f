"""One configuration: a variant and a value for each of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property


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
