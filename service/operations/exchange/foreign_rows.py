"""Rows of other tools' files as trials, where they can be read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from tilewright.kernels.errors import UnknownNameError
from tilewright.kernels.kernel import Kernel
from tilewright.service.operations.exchange.document import OwnPart, TrialPart
from tilewright.service.operations.exchange.incoming import ImportOptions, UnreadableRow, refused
from tilewright.tuner.outcome import Outcome


class NoRowError(ValueError):
    """The row cannot be read; the message says why."""


@dataclass
class Rows:
    """Rows read so far, by their places, and the rows that cannot be read."""

    kernel: Kernel
    target: ImportOptions
    own: OwnPart | None
    trials: dict[int, TrialPart] = field(default_factory=dict)
    pointers: dict[int, str] = field(default_factory=dict)
    unread: list[UnreadableRow] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)

    def add(self, pointer: str, configuration: Any, outcome: Outcome, time_ms: float | None, compile_ms: Any) -> None:
        """The row as a trial."""
        variant, values = self._configuration(configuration)
        try:
            trial = TrialPart.model_validate(
                {
                    "variant": variant,
                    "configuration": values,
                    "source_hash": self._source_hash(variant),
                    "outcome": outcome,
                    "l2": "warm",
                    "warm_ms": time_ms,
                    "compile_ms": compile_ms if isinstance(compile_ms, int | float) and compile_ms >= 0 else None,
                }
            )
        except ValidationError as error:
            raise NoRowError(refused(error).args[0]) from None
        row = len(self.trials)
        self.trials[row], self.pointers[row] = trial, pointer

    def _configuration(self, configuration: Any) -> tuple[str, dict[str, int]]:
        if not isinstance(configuration, dict):
            raise NoRowError("the configuration is not a JSON object")
        values: dict[str, Any] = {self._ours(str(name)): value for name, value in configuration.items()}
        if len(values) != len(configuration):
            raise NoRowError("two parameters get the same name")
        named = values.pop("variant", None) or self.target.variant
        values = {name: int(value) if isinstance(value, bool) else value for name, value in values.items()}
        other = [name for name, value in values.items() if type(value) is not int]
        if other:
            raise NoRowError(f"the value of {', '.join(other)} is not a whole number")
        return same_name(str(named), self._variants) if named else self._variant_with(values), values

    def _ours(self, name: str) -> str:
        """Our name of a foreign file's parameter, found regardless of case."""
        if name not in self._names:
            renamed = self.target.rename.get(same_name(name, self.target.rename), name)
            self._names[name] = same_name(renamed, (p.name for v in self.kernel.variants for p in v.parameters))
        return self._names[name]

    @property
    def _variants(self) -> list[str]:
        return [variant.name for variant in self.kernel.variants]

    def _variant_with(self, values: Mapping[str, int]) -> str:
        """The only variant with these parameters."""
        variants = [v.name for v in self.kernel.variants if {p.name for p in v.parameters} == set(values)]
        if not variants:
            raise NoRowError(self._difference(values.keys()))
        if len(variants) > 1:
            raise NoRowError(f"name the variant: {', '.join(variants)} have these parameters")
        return variants[0]

    def _difference(self, names: Iterable[str]) -> str:
        """The differences between these parameters and those of the nearest variant, in words."""
        given = set(names)
        variant = min(self.kernel.variants, key=lambda v: len(given ^ {p.name for p in v.parameters}))
        own = {parameter.name for parameter in variant.parameters}
        missing, unknown = ", ".join(sorted(own - given)), ", ".join(sorted(given - own))
        lacks = f"the row lacks its {missing}" if missing else ""
        more = f"it has no {unknown}" if unknown else ""
        nearest = f"no variant of {self.kernel.name} has these parameters; the nearest is {variant.name}"
        return f"{nearest}: {' and '.join(filter(None, (lacks, more)))}. --rename maps a parameter's name"

    def _source_hash(self, variant: str) -> str:
        """The source's hash: that of our own file, else today's, because a foreign file does not name sources."""
        if self.own and variant in self.own.sources:
            return self.own.sources[variant]
        try:
            return self.kernel.source_hash(variant)
        except UnknownNameError as error:
            raise NoRowError(str(error)) from None


def same_name(name: str, known: Iterable[str]) -> str:
    """The known name that differs only in case; the name itself where no known name does."""
    return next((candidate for candidate in known if candidate.casefold() == name.casefold()), name)
