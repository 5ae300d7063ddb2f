"""Checks each row of an import against the kernel's declaration, the device model and the error bounds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from tilewright.kernels.space import Configuration
from tilewright.service.operations.best.answer import BestQuery
from tilewright.service.operations.exchange.document import TrialPart
from tilewright.service.operations.exchange.report import Reason
from tilewright.service.operations.exchange.rows import Source
from tilewright.tuner import roofline
from tilewright.tuner.devices.device import DeviceModel
from tilewright.tuner.loop.verify import C_DEFAULT

GAP, FEWEST = 10.0, 20
"""In a study of so many times, a few that are faster than all the rest by this factor were not measured. In the eight
recordings of docs/measuring/search.md, random parts of 8 to 50 times have gaps up to 3.1 in their fastest quarter."""


@dataclass(frozen=True)
class ImportContext:
    """A study's problem and device model, with the facts its rows are checked against."""

    asked: BestQuery
    described: DeviceModel
    sources: Collection[Source]  # that were ever registered, and today's
    least_ms: float = 0.0  # by the other times of the study

    @property
    def work(self) -> tuple[int | None, int | None]:
        """FLOPs and bytes of one launch; None where the kernel does not count them."""
        return self.asked.kernel.flops(self.asked.problem), self.asked.kernel.bytes_moved(self.asked.problem)

    @cached_property
    def usable(self) -> list[str]:
        """The names of the variants that the problem and the device model admit."""
        return [variant.name for variant in self.asked.usable_variants]

    @cached_property
    def least_launch_ms(self) -> float:
        """The least time of one launch, by the peak where that is known."""
        return roofline.least_ms(self.asked.kernel, self.asked.problem, self.described)

    def with_current_source(self, part: TrialPart) -> TrialPart:
        """The row with its source's hash of today, if an earlier version wrote another for the same code."""
        if part.variant not in self.usable:
            return part
        current = self.asked.kernel.current_hash(part.variant, part.source_hash)
        return part if current == part.source_hash else part.model_copy(update={"source_hash": current})

    def is_proven(self, bound_ratio: float | None) -> bool:
        """Whether the error is that of a verified result; one judged by a kernel's own check has none."""
        if bound_ratio is None:
            return self.asked.kernel.check is not None
        return bound_ratio <= C_DEFAULT

    @property
    def _least_memory_ms(self) -> float:
        """The least time for the bytes that the L2 cache cannot hold, by the data sheet; 0 where that is not known."""
        bytes_moved, gb_per_s = self.work[1], self.described.datasheet_gb_per_s
        if bytes_moved is None or not gb_per_s:
            return 0.0
        return max(bytes_moved - self.described.l2_bytes, 0) / gb_per_s / 1e6

    def impossible(self, time_ms: float) -> str | None:
        """The reason why no device of the model can be that fast; None where one can."""
        too_fast = roofline.too_fast(self.asked.kernel, self.asked.problem, self.described, time_ms)
        if too_fast is not None:
            return too_fast
        if time_ms * roofline.OVER_PEAK < self._least_memory_ms:
            return (
                f"{time_ms:g} ms is too fast: the memory takes {self._least_memory_ms:.3g} ms for what no cache holds"
            )
        if time_ms < self.least_ms:
            return (
                f"{time_ms:g} ms is too fast: the study's others begin at {self.least_ms:.3g} ms, {GAP:g} times as much"
            )
        return None


def least_of(times_ms: Collection[float]) -> float:
    """The least credible time of a study: above a gap in the fastest quarter that no time fills."""
    ranked = sorted(times_ms)
    if len(ranked) < FEWEST:
        return 0.0
    fastest = pairwise(ranked[: 1 + len(ranked) // 4])
    return max((slower for faster, slower in fastest if slower > GAP * faster), default=0.0)


def refusal(part: TrialPart, place: ImportContext, *, is_verified: bool) -> tuple[Reason, str] | None:
    """The reason why this row is not taken, or None."""
    if part.variant not in place.usable:
        return (
            Reason.UNKNOWN_VARIANT,
            f"{part.variant} cannot be used here; usable variants: {', '.join(place.usable) or 'none'}",
        )
    if (part.variant, part.source_hash) not in place.sources:
        return (
            Reason.UNKNOWN_SOURCE,
            f"no source of {part.variant} with the hash {part.source_hash[:12]} was ever registered here",
        )
    if not place.asked.is_member(Configuration.of(part.variant, part.configuration)):
        return (
            Reason.OUTSIDE_THE_SPACE,
            "the configuration is not in the search space of this problem on this device model",
        )
    return None if part.time_ms is None else _refused_time(part, part.time_ms, place, is_verified=is_verified)


def _refused_time(
    part: TrialPart, time_ms: float, place: ImportContext, *, is_verified: bool
) -> tuple[Reason, str] | None:
    if is_verified and not place.is_proven(part.bound_ratio):
        return Reason.NOT_VERIFIED, f"its bound ratio is not at most {C_DEFAULT:g}"
    detail = place.impossible(time_ms)
    return None if detail is None else (Reason.IMPOSSIBLE_TIME, detail)


def figures(place: ImportContext, time_ms: float) -> dict[str, float | None]:
    """Rates of the time, from this installation's own counts of the work."""
    kernel, problem = place.asked.kernel, place.asked.problem
    percent = roofline.percent_of_roof(kernel, problem, place.described, time_ms)
    roof_ratio = None if percent is None else percent / 100
    return {**roofline.rates(kernel, problem, time_ms), "roof_ratio": roof_ratio}
