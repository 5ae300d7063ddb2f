"""The result of tuning a family as one document: ranges with expected times, and the measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.device import Environment
from tilewright.tuner.families.cover import Span, Times, mean_loss, serving
from tilewright.tuner.library.names import without_algorithm
from tilewright.tuner.runtime.any_size.tables import FORMAT


@dataclass(frozen=True)
class Table:
    """The ranges of a family on a device model, and the times that they rest on.

    `library_ms`: the time of `library` by size, where it has such a product; `own_choice_ms`: that of the call
    `own_choice`, which serves ranges, where it was timed beside ours. `verified`: the sizes at which each
    range's configuration was verified, its ends and random ones: each kind of inputs at one of them, the first at all.
    """

    family: Family
    device_model: str
    environment: Environment
    spans: tuple[Span, ...]
    times: Times
    library_ms: Mapping[int, float]
    library: str | None  # its name
    verified: Mapping[int, Sequence[int]]  # by the number of the range
    trials: int
    compilations: int
    seconds: float
    own_choice_ms: Mapping[int, float] = field(default_factory=dict)
    own_choice: str | None = None

    @property
    def sizes(self) -> list[int]:
        """The measured sizes in order."""
        return sorted({size for of_one in self.times.values() for size in of_one})

    def time_ms(self, size: int) -> float:
        """The time of the configuration that serves a measured size."""
        return self.times[serving(self.spans, size)][size]

    def best(self, size: int) -> tuple[float, Configuration]:
        """The fastest configuration of all at a measured size, and its time."""
        return min((of_one[size], configuration) for configuration, of_one in self.times.items() if size in of_one)

    def as_json(self, kernel: Kernel) -> dict[str, object]:
        """The document: plain JSON, which `TableFolder` stores and launchers read."""
        mean, largest = mean_loss(self.spans, self.times)
        return {
            "format": FORMAT,
            **self.family.as_json(),
            "family_hash": self.family.hash,
            "device_model": self.device_model,
            "environment": asdict(self.environment),
            "ranges": [self._range(kernel, number) for number in range(len(self.spans))],
            "loss": {"mean": mean, "largest": largest},
            "library": self.library and without_algorithm(self.library),
            "measured": [self._measured(size) for size in self.sizes],
            "trials": self.trials,
            "compilations": self.compilations,
            "seconds": round(self.seconds, 1),
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def _range(self, kernel: Kernel, number: int) -> dict[str, object]:
        span = self.spans[number]
        inside = [size for size in self.sizes if span.low <= size <= span.high]
        ours = self.times[span.configuration]
        told = [self.library_ms[size] < ours[size] for size in inside if size in self.library_ms]
        name = self.own_choice if span.is_library else self.library and without_algorithm(self.library)
        library = {"name": name, "faster": all(told), "launched": span.is_library}
        return {
            "low": span.low,
            "high": span.high,
            "variant": span.configuration.variant,
            "configuration": dict(span.configuration.values),
            "source_hash": kernel.source_hash(span.configuration.variant),
            "times_ms": {str(size): ours[size] for size in inside},
            "library": library if told else None,
            "verified_at": list(self.verified.get(number, ())),
        }

    def _measured(self, size: int) -> dict[str, object]:
        best_ms, configuration = self.best(size)
        return {
            "size": size,
            "time_ms": self.time_ms(size),
            "best_ms": best_ms,
            "best": str(configuration),
            "library_ms": self.library_ms.get(size),
            "own_choice_ms": self.own_choice_ms.get(size),
        }


@dataclass
class Measured:
    """Measurements so far. Configurations in `barred` were wrong at some size; `failed`: what gave no time there."""

    times: dict[Configuration, dict[int, float]] = field(default_factory=dict)
    library_ms: dict[int, float] = field(default_factory=dict)
    library: str | None = None  # its name
    own_choice_ms: dict[int, float] = field(default_factory=dict)
    own_choice: str | None = None
    barred: set[Configuration] = field(default_factory=set)
    failed: set[tuple[Configuration, int]] = field(default_factory=set)
    compiled: set[Configuration] = field(default_factory=set)
    trials: int = 0

    def note(self, configuration: Configuration, size: int, time_ms: float | None) -> None:
        """Notes one evaluation, without a time where it failed."""
        self.trials += 1
        self.compiled.add(configuration)
        if time_ms is None:
            self.failed.add((configuration, size))
        else:
            self.times.setdefault(configuration, {})[size] = time_ms

    def ranked(self, size: int) -> list[Configuration]:
        """The configurations measured at that size, the fastest first."""
        measured = [c for c, of_one in self.times.items() if size in of_one and c not in self.barred]
        return sorted(measured, key=lambda one: self.times[one][size])

    def best_ms(self, size: int) -> float | None:
        """The least time at that size; None where nothing was right there."""
        return min(
            (of_one[size] for c, of_one in self.times.items() if size in of_one and c not in self.barred), default=None
        )
