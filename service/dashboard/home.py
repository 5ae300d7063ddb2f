"""The top of the first page: what is tuned, how much that gained, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewright.service.dashboard import formatting
from tilewright.service.operations.views.cells import CellStatus
from tilewright.service.operations.views.kernel_summaries import KernelSummary


@dataclass(frozen=True)
class Home:
    """Sums over all kernels, a line for each, and what to do next as sentences with their addresses."""

    kernels: Sequence[KernelSummary]
    tuned: int
    over_library: float | None
    over_default: float | None
    is_stand_in: bool
    next: Sequence[tuple[str, str]]

    @classmethod
    def of(cls, kernels: Sequence[KernelSummary]) -> Home:
        """From the summaries of all kernels; those of a stand-in count only where there is no GPU's."""
        tuned = [one for one in kernels if one.tuned]
        is_stand_in = bool(tuned) and all(one.is_stand_in for one in tuned)
        counted = [one for one in tuned if one.is_stand_in is is_stand_in]
        return cls(
            kernels,
            sum(one.tuned for one in tuned),
            _mean((one.over_library, one.compared) for one in counted),
            _mean((one.over_default, one.improved) for one in counted),
            is_stand_in,
            _next([one for one in kernels if not one.is_stand_in]) if tuned else (),
        )


def _mean(pairs: Iterable[tuple[float | None, int]]) -> float | None:
    """The geometric mean of means of so many values each."""
    known = [(math.log(mean) * count, count) for mean, count in pairs if mean is not None]
    return math.exp(sum(log for log, _ in known) / sum(count for _, count in known)) if known else None


def _next(kernels: Sequence[KernelSummary]) -> list[tuple[str, str]]:
    """What is worth doing, the most urgent first."""

    def count(status: CellStatus) -> int:
        return sum(one.counts[status] for one in kernels)

    requested = sum(one.requested for one in kernels)
    found = (
        (count(CellStatus.FAILED), "problem", "that only failed: read why", "/attention?kind=failing"),
        (count(CellStatus.REGRESSED), "result", "slower than before: see since when", "/attention?kind=regressed"),
        (requested, "requested problem", "not tuned: tune the most requested", "/demand"),
        (count(CellStatus.BEHIND), "result", "behind the library: tune longer", "/attention?kind=behind"),
        (count(CellStatus.STALE), "stale result", "to be measured again", "/attention?kind=stale"),
    )
    return [(f"{formatting.counted(number, noun)} {rest}", path) for number, noun, rest, path in found if number]
