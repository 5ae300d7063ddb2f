"""What decides about each row of an import: the kernel's declaration, the device model, the bounds on errors."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from tilewright.kernels.space import Configuration
from tilewright.service.operations.best_answer import Asked
from tilewright.service.operations.exchange_document import TrialPart
from tilewright.service.operations.exchange_report import Reason
from tilewright.service.operations.exchange_rows import Source
from tilewright.tuner import roofline
from tilewright.tuner.device import DeviceModel
from tilewright.tuner.verify import C_DEFAULT

OVER_PEAK = 1.1
"""How far over the data sheet's FLOP/s a time may be: clocks may be higher than the sheet's."""


@dataclass(frozen=True)
class Place:
    """Where a study's rows belong, and what decides about them."""

    asked: Asked
    described: DeviceModel
    sources: Collection[Source]  # that were ever registered, and today's

    @property
    def work(self) -> tuple[int, int]:
        """FLOPs and bytes of one launch."""
        return self.asked.kernel.flops(self.asked.problem), self.asked.kernel.bytes_moved(self.asked.problem)

    @cached_property
    def usable(self) -> list[str]:
        """The names of the variants that the problem and the device model admit."""
        return [variant.name for variant in self.asked.usable_variants]

    @cached_property
    def peak_gflops(self) -> float | None:
        """What the device's arithmetic cannot exceed; memory counts for nothing, since caches may be faster."""
        problem = self.asked.problem
        return roofline.roof_gflops(self.described, problem.dtype, self.work[0], 1, self.asked.accuracy)

    def is_impossible(self, time_ms: float) -> bool:
        """Whether no device of the model can be that fast."""
        peak = self.peak_gflops
        return peak is not None and roofline.gflops(self.work[0], time_ms) > OVER_PEAK * peak


def refusal(part: TrialPart, place: Place, *, is_verified: bool) -> tuple[Reason, str] | None:
    """Why this row is not taken, or None."""
    if part.variant not in place.usable:
        return Reason.UNKNOWN_VARIANT, f"{part.variant} is none of {', '.join(place.usable) or '(none)'}"
    if (part.variant, part.source_hash) not in place.sources:
        return Reason.UNKNOWN_SOURCE, f"{part.variant} never had a source with the hash {part.source_hash[:12]} here"
    if not place.asked.is_member(Configuration.of(part.variant, part.configuration)):
        return Reason.OUTSIDE_THE_SPACE, "the space of this problem on this device model has no such configuration"
    return None if part.time_ms is None else _refused_time(part, part.time_ms, place, is_verified=is_verified)


def _refused_time(part: TrialPart, time_ms: float, place: Place, *, is_verified: bool) -> tuple[Reason, str] | None:
    if is_verified and not is_proven(part.bound_ratio):
        return Reason.NOT_VERIFIED, f"its bound ratio is not at most {C_DEFAULT:g}"
    if place.is_impossible(time_ms):
        return Reason.IMPOSSIBLE_TIME, f"{time_ms:g} ms is beyond the device's peak"
    return None


def is_proven(bound_ratio: float | None) -> bool:
    """Whether this is the error of a result that was verified."""
    return bound_ratio is not None and bound_ratio <= C_DEFAULT


def figures(place: Place, time_ms: float) -> dict[str, float | None]:
    """Rates of the time, from this installation's own counts of the work."""
    asked, (flops, bytes_moved) = place.asked, place.work
    percent = roofline.percent_of_roof(asked.kernel, asked.problem, place.described, time_ms)
    return {
        "gflops": roofline.gflops(flops, time_ms),
        "gb_per_s": roofline.gb_per_s(bytes_moved, time_ms),
        "roof_ratio": None if percent is None else percent / 100,
    }
