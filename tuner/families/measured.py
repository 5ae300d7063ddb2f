"""Measurements of a family's tuning so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.kernels.space import Configuration


@dataclass
class Measured:
    """Measurements so far. Configurations in `barred` were wrong at some size."""

    times: dict[Configuration, dict[int, float]] = field(default_factory=dict)
    library_ms: dict[int, float] = field(default_factory=dict)
    library: str | None = None  # its name
    barred: set[Configuration] = field(default_factory=set)
    compiled: set[Configuration] = field(default_factory=set)
    trials: int = 0

    def note(self, configuration: Configuration, size: int, time_ms: float | None) -> None:
        """One evaluation; no time where it failed."""
        self.trials += 1
        self.compiled.add(configuration)
        if time_ms is not None:
            self.times.setdefault(configuration, {})[size] = time_ms

    def ranked(self, size: int) -> list[Configuration]:
        """The configurations measured at that size, the fastest first."""
        measured = [c for c, of_one in self.times.items() if size in of_one and c not in self.barred]
        return sorted(measured, key=lambda one: self.times[one][size])
